"""Learning-rate rules: at one rank all are the same, so `submit` trains one run for all of them, and it counts for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.assemble import assemble
from analysis.scaling import scaling
from analysis.tables import read_inputs
from tests.analysis.conftest import AddCell

CURVE = [0.8 - 0.5 * 0.6**epoch for epoch in range(20)]


def rules_study(add_cell: AddCell, seeds: int = 1, **more: Any) -> Path:
    """`--gpus 1,2,4 --lr-rule linear,sqrt`."""
    for seed in range(seeds):
        for rule, extra in (("linear", 5.0), ("sqrt", 0.0)):
            for ranks in (1, 2, 4) if rule == "linear" else (2, 4):
                cell = {"lr_rule": rule, **({"name": rule} if ranks > 1 else {}), **more}
                study = add_cell(
                    ranks, [50.0 * ranks + extra] * 20, CURVE, seed=seed, cell=cell, facts={"lr_rule": rule}
                )
    return study


def test_one_rank_is_the_baseline_of_every_rule(add_cell: AddCell) -> None:
    given = read_inputs([rules_study(add_cell, seeds=2)])
    assert len(given.runs) == 10, "no run is listed twice"
    for group in scaling(given.table):
        assert [(point.n_gpus, point.replicates) for point in group.points] == [(1, 2), (2, 2), (4, 2)]
        assert group.baseline is not None and group.baseline.absolute
    parts = {part.group.lr_rule: part for part in assemble(given).parts}
    linear, sqrt = parts["linear"], parts["sqrt"]
    assert sorted(sqrt.curves) == [1, 2, 4]
    assert sqrt.curves[1][1].count == 2
    shared = "At 1 CPU rank every learning-rate rule is the same: its runs are those of another rule."
    assert shared in sqrt.notes and shared not in linear.notes


def test_it_is_one_way_to_the_target_and_said_once(add_cell: AddCell) -> None:
    given = read_inputs([rules_study(add_cell)])
    best = analysis.recommend(given.table, runs=given.runs)
    assert sorted(way.name for way in best.ways) == [
        "1 CPU rank",
        "2 CPU ranks, linear rule",
        "2 CPU ranks, sqrt rule",
        "4 CPU ranks, linear rule",
        "4 CPU ranks, sqrt rule",
    ]
    insights = assemble(given).insights
    assert [(split.fields["lr_rule"], split.base, split.n_gpus) for split in insights.splits] == [
        ("linear", 1, 2), ("linear", 1, 4), ("sqrt", 1, 2), ("sqrt", 1, 4)
    ]  # fmt: skip
    assert all(split.statistical is not None for split in insights.splits)
    assert [group.batches.tolist() for group in insights.epochs.groups] == [[32, 64, 128]] * 2
    assert [way.fields["lr_rule"] for way in insights.answers[0].forecasts] == ["linear", "sqrt"]


def test_a_finding_of_one_rank_is_raised_once(add_cell: AddCell) -> None:
    rising = [0.1 + 0.04 * epoch for epoch in range(20)]
    for seed, rate in enumerate((50.0, 100.0, 101.0)):
        add_cell(1, [rate] * 20, rising, seed=seed, cell={"lr_rule": "linear"})
    for rule in ("linear", "sqrt"):
        study = add_cell(
            2, [180.0] * 20, CURVE, cell={"lr_rule": rule, "name": rule}, facts={"lr_rule": rule}
        )  # fmt: skip
    given = read_inputs([study])
    messages = [finding.message for finding in analysis.diagnose(given.table, given.runs) if "1 " in finding.message]
    assert len([said for said in messages if said.startswith("1 ranks: one throughput")]) == 1
    assert len([said for said in messages if said.startswith("1 CPU rank: not stable")]) == 1


@pytest.mark.parametrize(
    "other",
    [{"settings": {"width": 9}}, {"extra_arguments": ["--width", "9"]}, {"environment": {"A": "b"}}],
)
def test_another_configuration_has_no_part_in_it(add_cell: AddCell, other: dict[str, Any]) -> None:
    add_cell(1, cell={"lr_rule": "linear"})
    study = add_cell(2, cell={"lr_rule": "sqrt", **other}, facts={"lr_rule": "sqrt"})
    assert [len(group.points) for group in scaling(analysis.read(study))] == [1, 1]


def test_a_rule_that_was_asked_for_later_counts_too(add_cell: AddCell) -> None:
    add_cell(1, cell={"lr_rule": "auto"})
    study = add_cell(2, cell={"lr_rule": "sqrt"}, facts={"lr_rule": "sqrt"})
    assert {group.lr_rule: len(group.points) for group in scaling(analysis.read(study))} == {"linear": 1, "sqrt": 2}


def test_the_global_batch_may_be_what_is_held(add_cell: AddCell) -> None:
    add_cell(1, cell={"lr_rule": "linear"}, facts={"batch_size": 64})
    for rule in ("linear", "sqrt"):
        for ranks in (2, 4):
            study = add_cell(
                ranks, cell={"lr_rule": rule, "name": rule}, facts={"lr_rule": rule, "batch_size": 64 // ranks}
            )
    groups = scaling(analysis.read(study))
    assert [(group.global_batch, [point.n_gpus for point in group.points]) for group in groups] == [(64, [1, 2, 4])] * 2


def test_a_horizon_is_that_of_its_rule(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "workload,gpu_type,n_gpus,per_gpu_batch,lr_rule,epochs,metric,value\n"
    linear = "".join(
        f"net,V100,{n},32,linear,30,epochs_to_stability,{value}\n" for n, value in ((2, 15), (4, 19), (8, 25))
    )
    sqrt = "".join(f"net,V100,{n},32,sqrt,200,epochs_to_stability,{value}\n" for n, value in ((2, 14), (4, 15)))
    for text in (linear, linear + sqrt, linear.replace("linear", "") + sqrt):
        path.write_text(head + text)
        raised = [finding for finding in analysis.diagnose(analysis.read(path)) if finding.code == "horizon"]
        assert [(finding.numbers["epochs"], len(finding.rows)) for finding in raised] == [(30, 3)]
