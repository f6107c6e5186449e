"""Runs of one size that were trained for different numbers of epochs, or not validated in all of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import analysis
from analysis.assemble import assemble
from analysis.checks_runs import stability_of
from analysis.plots.gallery import replicates
from analysis.stability import epochs_to_stability
from analysis.tables import read_inputs
from tests.analysis.conftest import AddCell

TIMES = "GPUs,epochs,total time [min]\n1,30,50\n2,30,26\n4,60,28\n"


def test_a_longer_run_is_no_slower_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TIMES)
    found = assemble(read_inputs([path]))
    (part,) = found.parts
    efficiencies = [point.efficiency and point.efficiency.median for point in part.group.points]
    assert efficiencies == pytest.approx([1, 50 / 52, 50 / 56], rel=1e-9)
    assert part.group.points[2].total_time is not None and part.group.points[2].total_time.median == 28 * 60
    assert "Runs of different numbers of epochs are compared by the epoch." in part.notes[0]
    (fit,) = found.insights.fits.values()
    assert replicates(found.table, fit)["value"].tolist() == pytest.approx(fit.data.values.tolist())
    (answer,) = found.insights.answers
    assert answer.basis == "epoch"
    assert {way.n_gpus: way.seconds for way in answer.ways} == pytest.approx({1: 100, 2: 52, 4: 28})


def test_runs_of_one_length_are_compared_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TIMES.replace("60,28", "30,14"))
    (part,) = assemble(read_inputs([path])).parts
    assert "by the epoch" not in part.notes[0]
    assert part.group.baseline is not None and part.group.baseline.value == 3000
    assert analysis.recommend(analysis.read(path)).basis == "whole run"


def test_a_longer_replicate_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("GPUs,epochs,total time [min]\n1,30,50\n1,30,50\n1,60,100\n2,30,26\n")
    assert "outlier" not in {finding.code for finding in analysis.diagnose(analysis.read(path))}
    path.write_text("GPUs,epochs,total time [min]\n1,30,50\n1,30,50\n1,30,100\n2,30,26\n")
    assert "outlier" in {finding.code for finding in analysis.diagnose(analysis.read(path))}


@pytest.mark.parametrize("top", [0.805, 0.72])
def test_runs_that_stopped_early_do_not_bend_the_median_curve(add_cell: AddCell, top: float) -> None:
    def curve(length: int, top: float = 0.78) -> list[float]:
        return [top - 0.5 * 0.6**epoch for epoch in range(length)]

    for seed, length in enumerate((20, 20, 40)):
        study = add_cell(2, [100.0] * length, curve(length, top if length == 40 else 0.78), seed=seed)
    found = stability_of(read_inputs([study]).runs)[2]
    assert found.status == "stable"
    assert found.epoch is not None and 7 <= found.epoch <= 12
    assert found.notices == ("the median curve ends at epoch 20, beyond which 1 of 3 runs went",)


def test_a_short_trial_does_not_cut_the_curves_of_the_others(add_cell: AddCell) -> None:
    for seed, length in enumerate((9, 40, 40)):
        study = add_cell(2, [100.0] * length, [0.8 - 0.5 * 0.85**epoch for epoch in range(length)], seed=seed)
    found = stability_of(read_inputs([study]).runs)[2]
    assert found.epoch is not None and found.epoch > 15
    assert found.notices == ("1 of 3 runs have no accuracy of epoch 40 and are not in the median curve",)


@pytest.mark.parametrize(("every", "counted"), [(2, True), (5, False)])
def test_a_last_epoch_without_validation_hides_no_accuracy(add_cell: AddCell, every: int, counted: bool) -> None:
    """Keras' validation_freq, Lightning's check_val_every_n_epoch. What few validations say is no count of epochs."""
    curve = [0.8 - 0.5 * 0.85**epoch for epoch in range(43)]
    accuracies = [one if number % every == 0 else None for number, one in enumerate(curve, 1)]
    read = read_inputs([add_cell(2, [100.0] * 43, accuracies)])
    value = read.table.set_index("metric")["value"]
    assert value["val_acc"] == [one for one in accuracies if one is not None][-1]
    found = stability_of(read.runs)[2]
    assert f"validated every {every} epochs: the answer is known to one or two of these, not finer" in found.notices
    assert ("epochs_to_stability" in value) is counted
    if counted:
        assert value["epochs_to_stability"] == found.epoch
        assert found.epoch == pytest.approx(epochs_to_stability(curve).epoch, abs=3)


def test_short_trials_and_what_never_was_a_number_hide_no_long_run(add_cell: AddCell) -> None:
    long = [0.8 - 0.5 * 0.6**epoch for epoch in range(40)]
    for seed in range(3):
        add_cell(2, [100.0] * 5, long[:5], seed=seed)
        study = add_cell(4, [100.0] * 40, [math.nan] * 40, seed=seed)
    add_cell(2, [100.0] * 40, long, seed=9)
    add_cell(4, [100.0] * 12, long[:12], seed=9)
    found = stability_of(read_inputs([study]).runs)
    assert found[2].epoch == epochs_to_stability(long).epoch
    assert found[4].longer_than == 12


def test_most_seeds_of_early_stopping_decide(add_cell: AddCell) -> None:
    for seed, length in enumerate((17, 18, 27, 27, 30)):
        study = add_cell(2, [100.0] * length, [0.8 - 0.5 * 0.75**epoch for epoch in range(length)], seed=seed)
    found = stability_of(read_inputs([study]).runs)[2]
    assert found.status == "stable"
    assert found.notices[-2:] == (
        "2 of 5 runs have no accuracy of epoch 27 and are not in the median curve",
        "the median curve ends at epoch 27, beyond which 1 of 5 runs went",
    )
