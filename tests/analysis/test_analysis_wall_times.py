"""How long the epochs of a training log took: by a clock, or by durations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.assemble import assemble
from analysis.jobtime import job_times
from analysis.runs import Run
from analysis.tables import read_inputs
from hvdtrain import record
from tests.analysis.conftest import AddCell, accuracy, text_of


def walls(folder: Path, times: Sequence[float]) -> Path:
    path = folder / "log_n2.csv"
    lines = [f"{epoch},{accuracy(epoch)},{time}\n" for epoch, time in enumerate(times)]
    path.write_text("epoch,val_acc,wall_time\n" + "".join(lines))
    return path


def read_of(path: Path) -> tuple[pd.DataFrame, Sequence[Run]]:
    given = read_inputs([path])
    return given.table, given.runs


def metrics(path: Path) -> dict[str, float]:
    table = analysis.read(path)
    return dict(zip(table["metric"], table["value"], strict=True))


def test_wall_times_give_the_seconds_of_every_epoch(tmp_path: Path) -> None:
    path = walls(tmp_path, [12.0 * (epoch + 1) for epoch in range(20)])
    given = read_inputs([path])
    assert [epoch.seconds for epoch in given.runs[0].epochs] == [12.0] * 20
    assert (metrics(path)["epoch_time"], metrics(path)["total_time"]) == (12, 240)
    (job,) = job_times(given.table, given.runs)
    assert (job.epoch, job.first, job.trained, job.total(20)) == (12, 0, 20, 240)


def test_slow_epochs_are_shared_out_over_all(tmp_path: Path) -> None:
    (job,) = job_times(*read_of(walls(tmp_path, [40.0, 40.0, 80.0] * 4)))
    assert (job.epoch, job.total(12)) == (40, pytest.approx(640))
    assert job.total(3) == pytest.approx(160, rel=0.05)
    # A first epoch that compiles is charged once, whatever follows.
    (job,) = job_times(*read_of(walls(tmp_path, [100.0, *[40.0, 80.0, 40.0] * 4])))
    assert (job.epoch, job.total(13)) == (40, pytest.approx(740))
    assert job.total(4) == pytest.approx(260, rel=0.05)


@pytest.mark.parametrize("start", [1.7e9, 86_400.0])
def test_a_clock_does_not_say_how_long_the_first_epoch_took(tmp_path: Path, start: float) -> None:
    path = walls(tmp_path, [start + 12.0 * (epoch + 1) for epoch in range(20)])
    (run,) = read_inputs([path]).runs
    assert [epoch.seconds for epoch in run.epochs] == [None, *[12.0] * 19]
    assert metrics(path)["epoch_time"] == 12
    assert "total_time" not in metrics(path)


def test_times_that_fall_again_and_again_are_durations(tmp_path: Path) -> None:
    (run,) = read_inputs([walls(tmp_path, [12.1, 10.0, 10.3, 9.9, 10.2])]).runs
    assert [epoch.seconds for epoch in run.epochs] == [12.1, 10.0, 10.3, 9.9, 10.2]
    again = [*range(10, 110, 10), *range(10, 60, 10), *range(10, 60, 10)]
    (run,) = read_inputs([walls(tmp_path, [float(one) for one in again])]).runs
    assert [epoch.seconds for epoch in run.epochs].count(10.0) >= 17, "a clock that began anew twice"


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        # A wall clock of each of three attempts.
        ([600, 1200, 1800] * 3, [600, 600, 600] * 3),
        ([700, 1300, 1900, 690, 1290, 1890, 2490, 710, 1310], [700, 600, 600, 690, 600, 600, 600, 710, 600]),
        ([600, 1200, 600, 1200], [600] * 4),
        # One that began long before the first epoch ended.
        ([100, 110, 120, 100, 110], [None, 10, 10, None, 10]),
        ([200, 212, 223, 235, 196], [None, 12, 11, 12, None]),
        ([196, 208, 201, 213, 224, 235], [None, 12, None, 12, 11, 11]),
        ([100, 110, 120] * 3, [None, 10, 10] * 3),
        ([5.5, 5.75, 6.0, 5.5, 5.75, 6.0], [None, 0.25, 0.25] * 2),
        # Whole seconds of epochs that hardly differ.
        ([41, 40, 40, 40, 40, 41, 40, 40, 40, 40], None),
        ([41, 40, 40, 40, 40, 40], None),
        ([40, 40, 40, 40], None),
        ([90, 40, 40, 41, 40, 40, 42, 40], None),
        # Epochs that became slower, and one that was held up.
        ([40, 41, 43, 42, 45, 47, 46, 48, 50, 49], None),
        ([40, 41, 200, 40, 42, 41, 40, 43, 41, 40], None),
        ([40, 40, 40, 40, 40, 40, 200, 40, 40], None),
        ([40, 41, 42, 43, 44, 45, 44, 46, 47, 48, 49, 50], None),
        ([40, 41, 42, 40, 41], None),
        ([50, 40, 42, 44, 46], None),
        ([600, 605, 615, 602, 612, 616], None),
        # Every second is validated too.
        ([40, 42] * 4, None),
        # Every third is validated too.
        ([40, 40, 80] * 4, None),
    ],
)
def test_a_clock_rises_by_an_epoch_at_a_time_and_durations_do_not(
    tmp_path: Path, times: list[float], seconds: list[float | None] | None
) -> None:
    path = walls(tmp_path, times)
    (run,) = read_inputs([path]).runs
    expected = [*times] if seconds is None else seconds
    assert [epoch.seconds for epoch in run.epochs] == expected
    known = [each for each in expected if each is not None]
    assert metrics(path).get("total_time") == (sum(known) if len(known) == len(expected) else None)


@pytest.mark.parametrize(
    ("times", "known"),
    [
        ([40.2, 40.6], False),
        ([40.2, 40.6, 41.5], False),
        ([40, 41, 42], False),
        ([40, 41, 43, 46, 47], False),
        ([100, 110, 120], False),
        # Real clocks: a start-up that the epochs outgrow, one that they rise evenly from, a date.
        ([40, 80], True),
        ([100, 150, 201], True),
        ([100, 110, 120.5, 130], True),
        ([1.7e9, 1.7e9 + 10], True),
    ],
)
def test_a_few_times_that_happen_to_rise_are_no_clock(tmp_path: Path, times: list[float], known: bool) -> None:
    (run,) = read_inputs([walls(tmp_path, times)]).runs
    assert any(epoch.seconds is not None for epoch in run.epochs) is known


def test_two_epochs_that_rise_make_no_size_slow(tmp_path: Path) -> None:
    for ranks, times in ((1, (40.2, 40.6)), (2, (20.4, 20.1))):
        path = tmp_path / f"log_n{ranks}.csv"
        path.write_text(text_of("epoch,val_acc,time", [(epoch, 0.5 + epoch / 10, times[epoch]) for epoch in (0, 1)]))
    given = read_inputs([tmp_path / "log_n1.csv", tmp_path / "log_n2.csv"])
    times_of = given.table[given.table["metric"] == "epoch_time"]
    assert dict(zip(times_of["n_gpus"], times_of["value"], strict=True)) == {2: 20.1}
    assert "retrograde" not in {finding.code for finding in analysis.diagnose(given.table, given.runs)}


@pytest.mark.parametrize("start", [0, 1_700_000_000])
def test_a_clock_of_whole_seconds_stands_still_in_short_epochs(tmp_path: Path, start: int) -> None:
    (run,) = read_inputs([walls(tmp_path, [start + time for time in (1, 1, 1, 2, 2, 3, 3, 3, 4)])]).runs
    assert {epoch.seconds for epoch in run.epochs} == {None, 1}
    assert [epoch.seconds for epoch in run.epochs][3] == 1


def test_a_clock_that_goes_on_after_a_restart_does_not_tell_the_epoch_there(tmp_path: Path) -> None:
    (run,) = read_inputs([walls(tmp_path, [10, 20, 30, 40, 50, 60, 45, 55, 65])]).runs
    assert [epoch.seconds for epoch in run.epochs] == [10, 10, 10, 10, 10, 10, None, 10, 10]


def test_a_gap_of_epochs_is_not_one_epoch(tmp_path: Path) -> None:
    path = tmp_path / "log_n2.csv"
    path.write_text(text_of("epoch,val_acc,time", [(1, 0.1, 10), (2, 0.2, 20), (5, 0.3, 50), (6, 0.4, 60)]))
    (run,) = read_inputs([path]).runs
    assert [epoch.seconds for epoch in run.epochs] == [10, 10, None, 10]
    assert "total_time" not in metrics(path)


def test_an_export_whose_first_epoch_is_not_timed_has_no_total(tmp_path: Path) -> None:
    path = tmp_path / "val_acc_n2.csv"
    path.write_text(text_of("Wall time,Step,Value", [(1.7e9 + 12 * e, e, accuracy(e)) for e in range(20)]))
    given = read_inputs([path])
    assert set(given.table["metric"]) == {"epoch_time", "val_acc", "epochs_to_stability"}
    (job,) = job_times(given.table, given.runs)
    assert job.epoch == pytest.approx(12), "not 19/20 of it"
    assert job.total(20) == pytest.approx(240)


@pytest.mark.parametrize("recorded", [[25, 50, 75, 100], [*range(16, 26)], [1, 2, 3, 5], [0, 25, 50]])
def test_a_log_that_leaves_epochs_out_has_no_total(tmp_path: Path, recorded: list[int]) -> None:
    paths = []
    for ranks in (1, 2):
        paths.append(tmp_path / f"log_n{ranks}.csv")
        lines = [(epoch, epoch / 110, 20 / ranks) for epoch in recorded]
        paths[-1].write_text(text_of("epoch,val_acc,seconds", lines))
    given = read_inputs(paths)
    assert "total_time" not in set(given.table["metric"])
    assert set(given.table["epochs"]) == {recorded[-1] + (recorded[0] == 0)}, "as many were trained"
    best = analysis.recommend(given.table, runs=given.runs, deadline=60)
    assert best.best is None, "only the recorded epochs of 2 ranks would keep it"
    assert best.basis != "whole run"


def test_one_epoch_that_is_not_the_first_holds_no_warm_up(tmp_path: Path) -> None:
    path = tmp_path / "log_n2.csv"
    for epoch, includes in ((1, True), (25, False)):
        path.write_text(text_of("epoch,val_acc,seconds", [(epoch, 0.5, 20)]))
        (part,) = assemble(read_inputs([path])).parts
        assert part.group.points[0].includes_first_epoch is includes


def test_a_study_whose_epoch_is_not_timed_has_no_total(add_cell: AddCell) -> None:
    study = add_cell(1, status=None)
    folder = study / "digits-n1-s0"
    log = record.EpochLog(folder / "epochs.jsonl", next_epoch=4)
    log.append(record.Epoch(4, val_acc=0.9, restart=1))
    record.finish(folder, "completed", 0)
    assert "epoch_time" in metrics(study)
    assert "total_time" not in metrics(study)
