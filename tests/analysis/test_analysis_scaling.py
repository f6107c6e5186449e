"""Speedup, efficiency and the notes without which they mislead."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

import analysis
from analysis.assemble import Part, assemble
from analysis.scaling import scaling
from analysis.tables import read_inputs

AddCell = Callable[..., Path]


def only_part(study: Path) -> Part:
    (part,) = assemble(read_inputs([study])).parts
    return part


def notes(study: Path) -> str:
    return "\n".join(only_part(study).notes)


def test_the_published_caltech_table(caltech: Path) -> None:
    t4, v100 = scaling(analysis.read(caltech))
    assert (t4.gpu_type, v100.gpu_type) == ("T4", "V100")
    assert [point.n_gpus for point in t4.points] == [2, 4]
    assert t4.points[1].speedup is not None
    assert t4.points[1].efficiency is not None
    assert t4.points[1].speedup.median == pytest.approx(209 / 81)
    assert round(t4.points[1].speedup.median, 2) == 2.58
    assert round(100 * t4.points[1].efficiency.median) == 129
    assert v100.points[1].speedup is not None
    assert v100.points[1].efficiency is not None
    assert round(v100.points[1].speedup.median, 2) == 1.82
    assert round(100 * v100.points[1].efficiency.median) == 91
    assert t4.baseline is not None
    assert t4.baseline.text == "against 2 GPUs; relative, not absolute"
    assert t4.points[0].total_time is not None
    assert t4.points[0].total_time.median == 5910


def test_replicates_are_summed_up_by_median_least_and_greatest(add_cell: AddCell) -> None:
    for seed, rate in enumerate([100, 110, 90]):
        add_cell(1, [10, rate, rate], seed=seed)
    for seed, rate in enumerate([300, 330, 390]):
        study = add_cell(4, [10, rate, rate], seed=seed)
    (group,) = scaling(analysis.read(study))
    one, four = group.points
    assert (one.replicates, four.replicates) == (3, 3)
    assert four.speedup is not None
    assert four.efficiency is not None
    base = statistics.median([100, 110, 90])
    assert (four.speedup.median, four.speedup.low, four.speedup.high) == (330 / base, 300 / base, 390 / base)
    assert (four.efficiency.low, four.efficiency.high) == (300 / base / 4, 390 / base / 4)
    assert one.efficiency is not None
    assert one.efficiency.median == 1
    assert group.baseline is not None
    assert (group.baseline.text, group.baseline.absolute) == ("against 1 CPU rank", True)


def test_speed_is_compared_by_what_all_rank_counts_have(tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    path.write_text("n_gpus,metric,value\n1,throughput,100\n1,total_time,60 s\n2,total_time,40 s\n3,val_acc,0.5\n")
    (group,) = scaling(analysis.read(path))
    assert group.baseline is not None
    assert group.baseline.metric == "total_time"
    assert [point.speedup and point.speedup.median for point in group.points] == [1, 1.5, None]


@pytest.mark.parametrize(
    "facts",
    [{"batch_size": 64}, {"lr_rule": "sqrt"}, {"precision": "bfloat16"}, {"device": "gpu", "gpu_models": ["T4"]}],
)
def test_what_differs_besides_ranks_is_another_group(add_cell: AddCell, facts: dict[str, object]) -> None:
    add_cell(1)
    study = add_cell(2, facts=facts)
    assert [len(group.points) for group in scaling(analysis.read(study))] == [1, 1]


def test_a_plain_study_has_no_notes_but_its_baseline(add_cell: AddCell) -> None:
    # One rank alone has no controller, which is no difference worth a note.
    add_cell(1, facts={"launcher": "alone", "controller": None})
    part = only_part(add_cell(2))
    assert part.notes == (
        "Speedup and efficiency against 1 CPU rank. "
        "Computed from samples/s, training only: s/epoch also holds validation.",
    )
    assert part.title == "digits on CPU ranks, batch 32 per rank, linear learning-rate rule, float32"
    assert part.machine == "node01, 8 cores"


def test_other_launchers_hosts_and_too_few_cores_are_said(add_cell: AddCell) -> None:
    add_cell(1)
    add_cell(2, facts={"launcher": "pmix", "controller": "mpi"})
    study = add_cell(16, facts={"hosts": ["node02"]})
    said = notes(study)
    assert "under different launchers (2 CPU ranks: pmix with mpi, 16 CPU ranks: gloo with gloo)" in said
    assert "on different hosts (1, 2 CPU ranks: node01, 16 CPU ranks: node02)" in said
    assert "16 CPU ranks shared 8 cores of node02: they took turns, so the comparison measures that too." in said
    assert "GPU" not in said


def test_ranks_that_found_no_world_are_counted_as_what_they_were(add_cell: AddCell) -> None:
    add_cell(1)
    part = only_part(add_cell(4, facts={"world_size": 1}))
    assert [point.n_gpus for point in part.group.points] == [1]
    assert "4 CPU ranks were asked for, but the run's world had 1 CPU rank" in "\n".join(part.notes)


def test_one_epoch_and_one_rank_count_are_said(add_cell: AddCell) -> None:
    part = only_part(add_cell(2, [50], [0.4]))
    assert part.group.points[0].includes_first_epoch
    said = "\n".join(part.notes)
    assert "includes the first epoch" in said
    assert "One rank count only" in said
    assert "against 2 CPU ranks; relative, not absolute" in said


def test_measurements_from_two_places_in_one_group_are_said(tmp_path: Path) -> None:
    for name, ranks in (("a.csv", 1), ("b.csv", 2)):
        (tmp_path / name).write_text(f"n_gpus,metric,value\n{ranks},throughput,{ranks}00\n")
    (part,) = assemble(read_inputs([tmp_path / "a.csv", tmp_path / "b.csv"])).parts
    assert "Measurements come from a.csv, b.csv" in "\n".join(part.notes)


def test_accuracy_curves_span_the_replicates(add_cell: AddCell) -> None:
    for seed, last in enumerate([0.7, 0.9, 0.8]):
        study = add_cell(1, accuracies=[0.1, 0.2, last], seed=seed)
    spread = only_part(study).curves[1][3]
    assert (spread.median, spread.low, spread.high, spread.count) == (0.8, 0.7, 0.9, 3)
