"""Training logs: how long their epochs took, and which lines are of which run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.__main__ import main
from analysis.assemble import assemble
from analysis.jobtime import job_times
from analysis.runs import Run
from analysis.tables import read_inputs
from hvdtrain import record
from hvdtrain.errors import UserError
from tests.analysis.conftest import AddCell


def accuracy(epoch: int) -> float:
    return 0.8 - 0.5 * 0.6**epoch


def walls(folder: Path, times: Sequence[float]) -> Path:
    path = folder / "log_n2.csv"
    lines = [f"{epoch},{accuracy(epoch)},{time}\n" for epoch, time in enumerate(times)]
    path.write_text("epoch,val_acc,wall_time\n" + "".join(lines))
    return path


def text_of(columns: str, lines: Sequence[tuple[object, ...]]) -> str:
    return columns + "\n" + "".join(",".join(map(str, line)) + "\n" for line in lines)


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


def test_runs_in_one_file_are_told_apart_by_ranks_and_seeds(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    lines = [(e, n, seed, accuracy(e) + seed / 100, 60 / n) for e in range(20) for n in (1, 2, 4) for seed in (3, 4)]
    path.write_text(text_of("epoch,num_gpus,seed,val_acc,seconds", lines))
    runs = read_inputs([path]).runs
    assert [(run.n_gpus, run.seed, len(run.epochs)) for run in runs] == [(n, s, 20) for n in (1, 2, 4) for s in (3, 4)]
    assert len({run.source for run in runs}) == 6
    table = analysis.read(path)
    totals = table[table["metric"] == "total_time"]
    assert totals["value"].tolist() == [1200, 1200, 600, 600, 300, 300]
    assert totals["replicate"].tolist() == [3, 4] * 3


@pytest.mark.parametrize("columns", ["GPUs", "workers", "ranks", "n_gpus"])
def test_blocks_of_runs_too_and_percent_is_of_the_whole_file(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "all.csv"
    lines = [(e, f"{n}.0", 0.5 if n == 2 else 100 * accuracy(e)) for n in (1, 2) for e in range(20)]
    path.write_text(text_of(f"epoch,{columns},val_acc", lines))
    one, two = read_inputs([path]).runs
    assert (one.n_gpus, two.n_gpus) == (1, 2)
    assert two.epochs[0].val_acc == 0.005, "0.5 %, because the other run is in percent"


def test_trials_are_replicates_and_what_stays_the_same_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run-4gpu" / "log.csv"
    path.parent.mkdir()
    path.write_text(
        text_of("epoch,trial,run,val_acc", [(e, t, "a", accuracy(e) + t / 99) for e in range(5) for t in (0, 1)])
    )
    assert [(run.n_gpus, run.seed) for run in read_inputs([path]).runs] == [(4, 0), (4, 1)]


TWICE = [(e, 0.1 * e + k / 100) for k in (0, 1) for e in range(5)]


@pytest.mark.parametrize(
    ("columns", "lines", "expected"),
    [
        ("epoch,val_acc", TWICE, 'epoch 0 is there twice, with "val_acc" 0.0 and 0.01.*a column n_gpus or seed'),
        ("epoch,val_acc", sorted(TWICE), "epoch 0 is there twice"),
        ("epoch,loss", TWICE, "epoch 0 is there twice"),
        (
            "epoch,model,val_acc",
            [(e, m, 0.1 + e * k) for e in range(5) for k, m in enumerate("ab")],
            r'epoch 1 is there twice, with "val_acc" 0.1 and 1.1 \(column "model": a and b\)',
        ),
        (
            "epoch,run,val_acc",
            [(e, m, 0.1 * e) for m in ("small", "big") for e in range(5)],
            'column "run" tells runs apart, and "small" is not a whole number of 0 or more',
        ),
        (
            "epoch,gpus,val_acc",
            [(0, 1, 0.5), (0, "", 0.6), (0, 2, 0.7)],
            'column "gpus" .* is empty in a line of epoch 0',
        ),
        (
            "epoch,workers,val_acc",
            [(e, 2 if e < 3 else 4, 0.1 * e) for e in range(6)],
            '"workers" differ between lines, but not as between runs.*2 from epoch 0, 4 from epoch 3',
        ),
        ("epoch,gpus,val_acc", [(30, 1, 0.5), (30, 2, 0.6)], 'in a table of results call the column "epoch" epochs'),
        (
            "epoch,gpus,workers,val_acc",
            [(e, n, 8 * n, 0.1 * e) for n in (1, 2) for e in range(5)],
            r'"gpus" \(1\) and "workers" \(8\) both say the number of ranks',
        ),
        (
            "epoch,run,seed,val_acc",
            [(e, r, s, 0.1 * e) for r in (1, 2) for s in (1, 2) for e in range(5)],
            'only "run" and "seed" together tell the runs on the same ranks apart',
        ),
        ("epoch,val_acc", [("inf", 0.5)], 'column "epoch": "inf" is not finite'),
        ("epoch,val_acc", [("nan", 0.5)], "holds no epochs"),
    ],
)
def test_several_runs_that_nothing_tells_apart_are_refused(
    tmp_path: Path, columns: str, lines: list[tuple[object, ...]], expected: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text_of(columns, lines))
    with pytest.raises(UserError, match=expected) as caught:
        analysis.read(path)
    assert str(caught.value).startswith(str(path))


def test_a_path_and_a_column_that_disagree_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log_n4.csv"
    path.write_text(text_of("epoch,workers,val_acc", [(e, 8, 0.1 * e) for e in range(5)]))
    with pytest.raises(UserError, match="its path says 4 ranks, and a column of it 8"):
        analysis.read(path)


def test_a_test_at_the_end_is_no_validation(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    lines = [(0, 99, 1.0, 0.5, ""), (1, 199, 0.8, 0.6, ""), (2, 200, "", "", 0.4)]
    path.write_text(text_of("epoch,step,train_loss,val_acc,test_acc", lines))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == [0.5, 0.6]
    # Its time is none of an epoch's either.
    path.write_text(text_of("epoch,time,val_acc,test_acc", [(0, 10, 0.5, ""), (1, 20, 0.6, ""), (2, 25, "", 0.4)]))
    (run,) = read_inputs([path]).runs
    assert [(epoch.val_acc, epoch.seconds) for epoch in run.epochs] == [(0.5, 10), (0.6, 10)]
    for columns, line in (("epoch,val_acc,test_acc", (0, 0.5, 0.4)), ("epoch,test_acc,val_acc", (0, 0.4, 0.5))):
        path.write_text(text_of(columns, [line]))
        (run,) = read_inputs([path]).runs
        assert [epoch.val_acc for epoch in run.epochs] == [0.5]
    # Some call their validation a test.
    path.write_text(text_of("epoch,val_loss,test_acc", [(0, 1.0, 0.4), (1, 0.9, 0.5)]))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == [0.4, 0.5]


def test_validations_within_an_epoch_and_a_restart_are_one_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    steps = [(e, 100 * e + 50 * half, 0.1 * e + 0.01 * half) for e in range(4) for half in (0, 1)]
    path.write_text(text_of("epoch,step,val_acc", steps))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == pytest.approx([0.01, 0.11, 0.21, 0.31]), "the last of each"
    losses = [(e, 10 * e + k, 2.0 - k / 10, "", "") for e in range(2) for k in range(3)]
    path.write_text(
        text_of("epoch,step,train_loss,val_acc,test_acc", [*losses, (1, 13, "", 0.7, ""), (1, 13, "", "", 0.6)])
    )
    (run,) = read_inputs([path]).runs
    assert [epoch.train_loss for epoch in run.epochs] == [1.8, 1.8], (
        "losses of single steps contradict nothing, nor does a test"
    )
    path.write_text(text_of("epoch,val_acc", [(0, 0.1), (1, 0.2), (2, 0.3), (1, 0.25), (2, 0.35), (3, 0.4)]))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == [0.1, 0.25, 0.35, 0.4], "what was trained again counts"


def test_a_log_without_times_is_not_drawn_over_time(tmp_path: Path) -> None:
    folders = []
    for name, column, apart in (("without", "lr", 1), ("with", "seconds", 1), ("gaps", "seconds", 5)):
        folder = tmp_path / name
        folder.mkdir()
        for ranks in (1, 2):
            lines = [(epoch, accuracy(epoch), 0.1) for epoch in range(0, 12 * apart, apart)]
            (folder / f"log_n{ranks}.csv").write_text(text_of(f"epoch,val_acc,{column}", lines))
        folders.append(folder)
    drawn = []
    for folder in folders:
        assert main(["report", *map(str, sorted(folder.glob("*.csv"))), "--out", str(folder / "report")]) == 0
        figures = {path.stem for path in (folder / "report" / "figures").iterdir()}
        drawn.append([name in figures for name in ("accuracy_epoch", "accuracy_time")])
    assert drawn == [[True, False], [True, True], [True, False]]


def test_a_log_of_another_tool_may_be_of_data_that_are_not_sharded(tmp_path: Path, add_cell: AddCell) -> None:
    paths = []
    for ranks in (1, 4):
        paths.append(tmp_path / f"run-{ranks}gpu" / "log.csv")
        paths[-1].parent.mkdir()
        lines = [(epoch, accuracy(epoch), 100 + epoch % 2) for epoch in range(20)]
        paths[-1].write_text(text_of("epoch,val_accuracy,seconds", lines))
    given = read_inputs(paths)
    raised = {finding.code: finding for finding in analysis.diagnose(given.table, given.runs)}
    assert "retrograde" not in raised
    assert raised["weak_scaling"].likely.startswith("every rank trains on all data")
    for ranks in (1, 4):
        study = add_cell(ranks, [100.0] * 3)
    own = read_inputs([study])
    assert "retrograde" in {finding.code for finding in analysis.diagnose(own.table, own.runs)}
