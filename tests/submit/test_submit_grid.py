"""Grids, cells and their names."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UserError
from hvdtrain.submit.cell import Cell, Shape, cell_name, differences, fingerprint
from hvdtrain.submit.grid import Common, Grid, expand
from hvdtrain.submit.jobfile import JobFile, find_options

JOB = JobFile(
    Path("/somewhere/toy.py"),
    find_options(
        ast.parse(
            "from hvdtrain import job\n"
            "p = job.parser(None, epochs=9, batch_size=32, lr=0.1)\n"
            "p.add_argument('--width', type=int)\n"
            "p.add_argument('--text')\n"
        )
    ),
)
COMMON = Common(study="toy", job=JOB, launcher="auto", cluster="local")


def cells(grid: Grid, common: Common = COMMON) -> list[Cell]:
    return expand(grid, common, lambda gpus, gpu_type: Shape(1, gpus, 0))[0]


def names(grid: Grid) -> list[str]:
    return [cell.name for cell in cells(grid)]


def test_names_hold_what_was_asked_for_and_nothing_else() -> None:
    assert names(Grid((2, 4))) == ["n2", "n4"]
    assert names(Grid((4,), (32,), ("linear",), (0,), epochs=3)) == ["n4-b32-linear-s0"]
    assert names(Grid((2,), (8, 16), (), (0, 1))) == ["n2-b8-s0", "n2-b8-s1", "n2-b16-s0", "n2-b16-s1"]
    assert names(Grid((2,), settings={"width": ("8", "16"), "text": ("plain",)})) == [
        "n2-width8-text_plain",
        "n2-width16-text_plain",
    ]


def test_a_cell_holds_the_job_defaults_but_does_not_pass_them() -> None:
    (cell,) = cells(Grid((2,), batch_sizes=(64,)))
    assert (cell.batch_size, cell.epochs, cell.lr_rule, cell.seed) == (64, 9, "auto", 0)
    assert cell.arguments == ("--batch-size", "64")


def test_arguments_come_in_order_with_those_after_the_dashes_last() -> None:
    common = Common("toy", JOB, "auto", "local", extra_arguments=("--text", "x y"))
    (cell,) = cells(Grid((2,), (8,), ("sqrt",), (3,), {"width": ("-4",)}, 5), common)
    assert cell.arguments == (
        *("--epochs", "5", "--batch-size", "8", "--lr-rule", "sqrt", "--seed", "3"),
        *("--width=-4", "--text", "x y"),
    )


@pytest.mark.parametrize(
    ("after", "recorded"),
    [
        ("--batch-size 64 --epochs 3 --seed 7 --lr-rule sqrt", (64, 3, 7, "sqrt")),
        ("--batch-size=64 --epochs 2 --epochs=3", (64, 3, 0, "auto")),
        ("--batch-size=64 --batch-size 16 --text --seed=1", (16, 9, 1, "auto")),
        ("--batch-size many --epochs", (None, None, 0, "auto")),  # the job says what is wrong with it
    ],
)
def test_a_cell_records_what_the_job_is_given_after_the_dashes(after: str, recorded: tuple[object, ...]) -> None:
    (cell,) = cells(Grid((2,)), replace(COMMON, extra_arguments=tuple(after.split())))
    assert (cell.batch_size, cell.epochs, cell.seed, cell.lr_rule) == recorded
    assert (cell.name, cell.arguments) == ("n2", tuple(after.split()))


def test_a_value_after_the_dashes_that_submit_cannot_read_is_not_recorded() -> None:
    options = find_options(ast.parse("p.add_argument('--batch-size', type=whole, default=8)"))
    job = JobFile(Path("/somewhere/own.py"), options)
    (cell,) = cells(Grid((2,)), Common("own", job, "auto", "local", ("--batch-size", "64", "--seed", "3")))
    assert (cell.batch_size, cell.seed) == (None, None)


def test_guard_a_cell_that_was_recorded_with_the_defaults_of_what_stands_after_the_dashes_is_the_same() -> None:
    common = replace(COMMON, extra_arguments=("--batch-size", "64", "--seed=7", "--epochs", "3", "--lr-rule", "sqrt"))
    (cell,) = cells(Grid((2,)), common)
    before = {**cell.record(), "batch_size": 32, "seed": 0, "epochs": 9, "lr_rule": "auto"}
    assert fingerprint(before) == fingerprint(cell.record())
    assert differences(before, cell.record()) == []
    (other,) = cells(Grid((2,)), replace(COMMON, extra_arguments=("--batch-size", "16", *common.extra_arguments[2:])))
    assert fingerprint(other.record()) != fingerprint(cell.record())


def test_rules_at_one_rank_are_one_cell_and_it_is_said_once() -> None:
    found, notes = expand(
        Grid((1, 2), lr_rules=("linear", "sqrt"), seeds=(0, 1)), COMMON, lambda n, gpu_type: Shape(1, n, 0)
    )
    assert [cell.name for cell in found] == [
        "n1-s0", "n1-s1", "n2-linear-s0", "n2-linear-s1", "n2-sqrt-s0", "n2-sqrt-s1",
    ]  # fmt: skip
    assert notes == ["at 1 rank every --lr-rule is the same: n1-s0, n1-s1 run once, recorded as linear"]


def test_one_rule_needs_no_note() -> None:
    assert expand(Grid((1, 2), lr_rules=("linear",)), COMMON, lambda n, gpu_type: Shape(1, n, 0))[1] == []


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (Grid((1,), lr_rules=("linear", "sqrt")), "changes nothing with --gpus 1"),
        (Grid((2,), settings={"widht": ("3",)}), 'did you mean "--width"?'),
        (Grid((2,), settings={"width": ("3", "abc")}), '--width of the job "toy" takes a whole number, not "abc"'),
        (Grid((2,), settings={"warmup-epochs": ("-1",)}), "-1 is not a number from 0 on"),
        (
            Grid((2,), seeds=tuple(range(2000))),
            "2000 cells; legal are at most 1000 in one call; one seed is written --seeds 2000,",
        ),
    ],
)
def test_wrong_grids(grid: Grid, said: str) -> None:
    with pytest.raises(UserError) as caught:
        cells(grid)
    assert said in str(caught.value)


def test_an_option_on_both_sides_of_the_dashes_is_refused() -> None:
    common = Common("toy", JOB, "auto", "local", extra_arguments=("--batch-size=64",))
    with pytest.raises(UserError, match="--batch-size is given twice"):
        cells(Grid((2,), batch_sizes=(32,)), common)
    assert cells(Grid((2,)), common)[0].arguments == ("--batch-size=64",)


def test_a_job_without_an_axis() -> None:
    bare = Common(
        "bare", JobFile(Path("/bare.py"), find_options(ast.parse("p.add_argument('--batch')"))), "auto", "local"
    )
    with pytest.raises(UserError, match=re.escape('takes no --batch-size (--batch-size 8); did you mean "--batch"?')):
        cells(Grid((2,), batch_sizes=(8,)), bare)


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=6, unique=True))
def test_any_text_makes_a_safe_name_of_its_own(texts: list[str]) -> None:
    found = names(Grid((2,), settings={"text": tuple(texts)}))
    assert len(set(found)) == len(texts)
    for name in found:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name)
        assert len(name) <= 130


def test_values_that_read_alike_stay_two_cells() -> None:
    found = names(Grid((2,), settings={"text": ("1-width2", "1"), "width": ("3", "2")}))
    assert len(found) == len(set(found)) == 4
    alike = Common(
        "toy",
        JobFile(Path("/x.py"), find_options(ast.parse("p.add_argument('--a')\np.add_argument('--b')"))),
        "auto",
        "local",
    )
    found = [cell.name for cell in cells(Grid((2,), settings={"a": ("1", "1-b2"), "b": ("2-b3", "3")}), alike)]
    assert len(found) == len(set(found)) == 4


def test_long_paths_are_cut_at_their_readable_end() -> None:
    name = cell_name(2, settings={"data-dir": "/home/somebody/data sets/caltech/"})
    assert re.fullmatch(r"n2-data-dir_caltech_[0-9a-f]{6}", name)


def test_the_hash_is_of_the_configuration_and_not_of_the_name() -> None:
    (implicit,), (explicit,), (other,) = cells(Grid((2,))), cells(Grid((2,), (32,))), cells(Grid((2,), (33,)))
    assert implicit.name != explicit.name
    assert fingerprint(implicit.record()) == fingerprint(explicit.record()) == implicit.record()["hash"]
    assert fingerprint(other.record()) != fingerprint(explicit.record())
    assert differences(explicit.record(), other.record()) == ["batch_size 32 -> 33"]


def test_the_rule_does_not_count_at_one_rank() -> None:
    one, two = cells(Grid((1,), lr_rules=("linear",))), cells(Grid((1,), lr_rules=("sqrt",)))
    assert differences(one[0].record(), two[0].record()) == []
    one, two = cells(Grid((2,), lr_rules=("linear",))), cells(Grid((2,), lr_rules=("sqrt",)))
    assert differences(one[0].record(), two[0].record()) == ["lr_rule linear -> sqrt"]


def test_differences_name_nested_values() -> None:
    one = cells(Grid((2,), settings={"width": ("8",)}))[0].record()
    two = cells(Grid((2,), settings={"text": ("8",)}, epochs=20))[0].record()
    assert set(differences(one, two)) == {
        "epochs 9 -> 20",
        "settings.width 8 -> not given",
        "settings.text not given -> 8",
    }
