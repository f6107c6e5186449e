"""A batch most of whose runs had not settled when they ended is not counted by those that had."""

from __future__ import annotations

import math

import analysis
from analysis.as_json import as_json
from analysis.assemble import assemble
from analysis.plain import epochs
from analysis.plots.costs import epochs_plot
from analysis.settled import lower_bounds
from analysis.tables import read_inputs
from analysis.target import ways
from tests.analysis.conftest import AddCell

SETTLED = [0.8 - 0.5 * 0.6**epoch for epoch in range(20)]
RISING = [0.1 + 0.04 * epoch for epoch in range(20)]


def test_most_runs_that_have_not_settled_are_a_lower_bound(add_cell: AddCell) -> None:
    for seed in range(3):
        add_cell(1, [100.0] * 20, SETTLED, seed=seed)
        add_cell(2, [200.0] * 20, SETTLED if seed < 2 else RISING, seed=seed)
        study = add_cell(4, [400.0] * 20, SETTLED if seed == 0 else RISING, seed=seed)
    read = read_inputs([study])
    found = assemble(read).insights
    (group,) = found.epochs.groups
    assert group.batches.tolist() == [32, 64], "one of three is outvoted, two are not"
    (said,) = [finding for finding in found.findings if "lower bound" in finding.message]
    assert said.code == "horizon"
    assert said.message.startswith("global batch 128: 2 of 3 runs had not settled")
    # Without a target times are to stability.
    stable = {way.n_gpus: way.epochs for way in ways(read.table, None, read.runs)}
    assert stable[4] is None
    assert stable[1] == stable[2] is not None


def test_what_is_expected_is_not_below_what_is_known_not_to_be_enough(add_cell: AddCell) -> None:
    for ranks, curve in ((1, SETTLED), (2, SETTLED), (4, RISING)):
        study = add_cell(ranks, [100.0 * ranks] * 20, curve)
    report = assemble(read_inputs([study]))
    (group,) = report.insights.epochs.groups
    assert group.bounds == ((128, 20),)
    assert group.bound(64) == 0
    for batch in (128, 256):  # as many are not enough at twice the batch either, and there too the laws are refuted
        low, middle, high = group.interval(batch)
        assert low >= 20 and math.isnan(middle) and math.isinf(high)
    rows = analysis.fit_epochs(report.table, lower_bounds(report.runs)).predict([128, 256])
    assert rows["low"].min() >= 20 and rows[["value", "by_power", "by_log2"]].isna().all(axis=None)
    sheet = epochs(group)
    assert sheet is not None
    assert [(row[0], row[1]) for row in sheet.rows if row[2] != "measured"] == [("128", "> 20")]
    (said,) = as_json(report)["epochs_against_batch"]
    assert said["next_batch"] is None
    assert said["not_settled_by"] == [{"batch": 128.0, "epochs": 20.0}]
    drawn = epochs_plot(group)
    assert drawn is not None and "batch 128: not settled by 20" in drawn.alt and "Expected" not in drawn.alt
    assert not [finding for finding in report.insights.findings if "is expected at epoch" in finding.message]


def test_a_smaller_batch_that_has_not_settled_takes_no_forecast_away(add_cell: AddCell) -> None:
    for ranks, curve in ((1, SETTLED), (2, RISING), (4, SETTLED)):
        study = add_cell(ranks, [100.0 * ranks] * 20, curve)
    (group,) = assemble(read_inputs([study])).insights.epochs.groups
    sheet = epochs(group)
    assert sheet is not None
    assert [row[2] for row in sheet.rows] == ["measured", "measured", "measured, not settled", "expected"]


def test_the_smallest_batch_is_drawn_where_it_has_not_settled(add_cell: AddCell) -> None:
    for ranks, curve in ((1, RISING), (2, SETTLED), (4, SETTLED)):
        study = add_cell(ranks, [100.0 * ranks] * 20, curve)
    (group,) = assemble(read_inputs([study])).insights.epochs.groups
    drawn = epochs_plot(group)
    assert drawn is not None and drawn.figure.axes[0].get_xlim()[0] < 32
    assert group.interval(32)[0] == 20


def test_a_short_trial_takes_no_forecast_away(add_cell: AddCell) -> None:
    for ranks, pace in ((1, 0.75), (2, 0.8), (4, 0.85)):
        study = add_cell(ranks, [100.0 * ranks] * 40, [0.8 - 0.5 * pace**epoch for epoch in range(40)])
    add_cell(8, [800.0] * 9, [0.2 + 0.04 * epoch for epoch in range(9)])
    report = assemble(read_inputs([study]))
    (said,) = as_json(report)["epochs_against_batch"]
    assert said["not_settled_by"] == [{"batch": 256.0, "epochs": 9.0}]
    assert said["next_batch"]["value"] > 25
    assert [finding for finding in report.insights.findings if "is expected at epoch" in finding.message]
