"""Ways that nobody measured: twice the largest size, from studies whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.jobtime import job_times
from analysis.tables import read_inputs
from hvdtrain import record
from tests.analysis.conftest import AddCell

TARGET = 0.8


def _epochs(ranks: int) -> float:
    """To the target: E = Emin (1 + B / Bcrit) with Emin 8 and Bcrit 256, 32 samples per rank."""
    return 8 * (1 + 32 * ranks / 256)


def _seconds(ranks: int) -> float:
    """Of one epoch: Amdahl's law with 4 % that is not shared."""
    return 10 * (0.04 + 0.96 / ranks)


def _study(add_cell: AddCell, sizes: list[int], seeds: int = 2) -> Path:
    numbers = np.arange(1, 41)
    for ranks in sizes:
        for seed in range(seeds):
            # At the target after exactly that many epochs, and rising for long enough that smoothing moves nothing.
            curve = 0.95 * (1 - (1 - TARGET / 0.95) ** (numbers / _epochs(ranks)))
            # The record holds training with a quarter of a second of validation.
            rates = np.full(len(numbers), 1000 / (_seconds(ranks) - 0.25)) * (1 + 0.01 * (-1) ** seed)
            study = add_cell(ranks, rates.tolist(), curve.tolist(), seed=seed)
    return study


def test_a_study_with_curves_is_forecast_at_twice_its_largest_size(add_cell: AddCell) -> None:
    given = read_inputs([_study(add_cell, [1, 2, 4, 8])])
    best = analysis.recommend(given.table, target=TARGET, runs=given.runs)
    assert best.basis == "target"
    (ahead,) = best.forecasts
    assert (ahead.n_gpus, ahead.measured, ahead.basis) == (16, False, "target")
    assert ahead.epochs == pytest.approx(_epochs(16), rel=0.12)
    truth = _epochs(16) * _seconds(16)
    assert ahead.low < truth < ahead.high
    assert ahead.seconds == pytest.approx(truth, rel=0.2)
    # An interval that holds everything would say nothing.
    assert ahead.high / ahead.low < 4
    assert best.fastest is not None and best.fastest.measured


def test_what_an_attempt_took_around_its_epochs_is_of_that_attempt(add_cell: AddCell) -> None:
    study = add_cell(1, status=None)
    folder = study / "digits-n1-s0"
    (folder / "epochs.jsonl").unlink()
    log = record.EpochLog(folder / "epochs.jsonl")
    for number in range(1, 11):
        log.append(record.Epoch(number, seconds=100.0, samples_per_second=10.0, restart=int(number > 8)))
    result = record.finish(folder, "completed", 0)
    record.write_json(folder / "result.json", {**result, "seconds": 500.0})
    given = read_inputs([study])
    (job,) = job_times(given.table, given.runs)
    assert job.around == 300
    # A third attempt that found everything trained.
    record.write_json(folder / "result.json", {**result, "seconds": 60.0, "restart": 2})
    given = read_inputs([study])
    (job,) = job_times(given.table, given.runs)
    assert (job.around, job.total(10)) == (60, 1060)


def test_slow_epochs_of_the_largest_size_shrink_with_it(add_cell: AddCell) -> None:
    # Every third epoch takes twice as long: a second of every epoch is in four thirds of one.
    sizes = [1, 2, 4, 8]
    numbers = np.arange(1, 41)
    for ranks in sizes:
        seconds = _seconds(ranks) * np.where(numbers % 3 == 0, 2, 1)
        curve = 0.95 * (1 - (1 - TARGET / 0.95) ** (numbers / _epochs(ranks)))
        study = add_cell(ranks, (1000 / (seconds - 0.25)).tolist(), curve.tolist())
    given = read_inputs([study])
    best = analysis.recommend(given.table, target=TARGET, runs=given.runs)
    assert {way.n_gpus: way.seconds for way in best.ways} == pytest.approx(
        {ranks: 4 / 3 * _epochs(ranks) * _seconds(ranks) for ranks in sizes}, rel=0.15
    )
    (ahead,) = best.forecasts
    truth = 4 / 3 * _epochs(16) * _seconds(16)
    assert ahead.seconds == pytest.approx(truth, rel=0.2)
    assert ahead.low < truth < ahead.high


def test_one_batch_says_nothing_about_the_next(add_cell: AddCell) -> None:
    given = read_inputs([_study(add_cell, [2])])
    assert analysis.recommend(given.table, target=TARGET, runs=given.runs).forecasts == ()


def test_a_configuration_that_misses_the_target_counts_no_epochs(add_cell: AddCell) -> None:
    study = _study(add_cell, [1, 2, 4])
    for seed in range(2):
        add_cell(8, [900.0] * 40, [0.5] * 40, seed=seed)
    given = read_inputs([study])
    best = analysis.recommend(given.table, target=TARGET, runs=given.runs)
    assert [way.n_gpus for way in best.unreached] == [8]
    # Its speed was measured, but nothing is said of twice a size that does not get there.
    assert best.forecasts == ()


def test_a_batch_that_misses_the_target_is_not_expected_to_reach_it_on_more_ranks(add_cell: AddCell) -> None:
    study = _study(add_cell, [1, 2, 4])
    for seed in range(2):
        add_cell(4, [900.0] * 40, [0.5] * 40, seed=seed, cell={"name": "b64"}, facts={"batch_size": 64})
    given = read_inputs([study])
    best = analysis.recommend(given.table, target=TARGET, runs=given.runs)
    assert [(way.n_gpus, way.per_gpu_batch) for way in best.unreached] == [(4, 64)]
    assert best.forecasts == ()  # eight ranks with 32 each make the same step
