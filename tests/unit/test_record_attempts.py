"""One attempt of a cell from its begin to its result, and the attempts before it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hvdtrain import attempts, record
from hvdtrain.checkpoint import Store
from hvdtrain.record import Epoch, EpochLog, read_json


@pytest.fixture(autouse=True)
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that has just begun."""
    folder = tmp_path / "cell"
    monkeypatch.setenv(record.RUN_DIR_VARIABLE, str(folder))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    record.begin(folder, {"hosts": ["n1", "n2"], "launcher": "gloo"})
    return folder


def test_begin_notes_facts_time_and_restart(cell: Path) -> None:
    running = read_json(cell / "running.json")
    assert running is not None
    assert running.pop("started") == pytest.approx(time.time(), abs=5)
    assert running == {"hosts": ["n1", "n2"], "launcher": "gloo", "restart": 2}


def test_note_adds_to_the_attempt_under_way(cell: Path) -> None:
    record.note(precision="float32", launcher="pmix")
    running = read_json(cell / "running.json")
    assert running is not None
    assert (running["precision"], running["launcher"], running["hosts"]) == ("float32", "pmix", ["n1", "n2"])


def test_note_without_an_attempt_writes_nothing(cell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell / "running.json").unlink()
    record.note(precision="float32")
    monkeypatch.delenv(record.RUN_DIR_VARIABLE)
    record.note(precision="float32")
    assert os.listdir(cell) == []


def test_finish_sums_up_what_was_noted_and_recorded(cell: Path) -> None:
    log = EpochLog(cell / "epochs.jsonl")
    log.append(Epoch(1, samples=1000, seconds=2.0, val_acc=0.5, train_acc=0.4))
    log.append(Epoch(2, samples=1000, seconds=1.5, val_acc=0.75, train_acc=0.8))
    result = record.finish(cell, "completed", 0)
    assert read_json(cell / "result.json") == result
    assert not (cell / "running.json").exists()
    assert result["totals"] == {"epochs": 2, "samples": 2000, "seconds": 3.5, "val_acc": 0.75, "train_acc": 0.8}
    assert (result["status"], result["exit_code"], result["reason"]) == ("completed", 0, "")
    assert (result["hosts"], result["launcher"], result["restart"]) == (["n1", "n2"], "gloo", 2)
    assert 0 <= result["seconds"] < 60 and result["ended"] == pytest.approx(time.time(), abs=5)


def test_the_first_result_stays(cell: Path) -> None:
    first = record.finish(cell, "diverged", 1, "the loss is not a number")
    assert record.finish(cell, "failed", 1, "exit status 1") == first
    assert read_json(cell / "result.json") == first


def test_a_reason_that_a_rank_noted_is_nearer_to_the_cause(cell: Path) -> None:
    record.note(reason="rank 1 on n2 failed: no space left")
    assert record.finish(cell, "failed", 76, "exit status 76")["reason"] == "rank 1 on n2 failed: no space left"


def test_an_attempt_that_never_began_has_a_result_too(tmp_path: Path) -> None:
    result = record.finish(tmp_path / "other", "failed", 2, "no such job")
    assert (result["status"], result["seconds"], result["totals"]["epochs"]) == ("failed", None, 0)
    assert result["totals"]["val_acc"] is None


def test_an_unknown_status_is_refused_before_anything_is_written(cell: Path) -> None:
    legal = "completed, failed, timeout, preempted, cancelled, diverged"
    with pytest.raises(ValueError, match=f"'done' is not one of {legal}"):
        record.finish(cell, "done", 0)
    assert os.listdir(cell) == ["running.json"]


def test_set_aside_keeps_what_earlier_attempts_left(cell: Path) -> None:
    (cell / "script.sh").write_text("srun")
    for attempt in (1, 2):
        EpochLog(cell / "epochs.jsonl").append(Epoch(1, val_acc=attempt / 10))
        record.finish(cell, "failed", attempt)
        attempts.set_aside(cell)
        assert sorted(os.listdir(cell)) == ["attempts", "script.sh"]
        record.begin(cell, {})
    for attempt in (1, 2):
        kept = cell / "attempts" / str(attempt)
        assert sorted(os.listdir(kept)) == ["epochs.jsonl", "result.json"]
        assert record.read_epochs(kept / "epochs.jsonl") == [Epoch(1, val_acc=attempt / 10)]
        result = read_json(kept / "result.json")
        assert result is not None and result["exit_code"] == attempt


def test_set_aside_takes_an_attempt_that_never_ended(cell: Path) -> None:
    attempts.set_aside(cell)
    assert os.listdir(cell) == ["attempts"]
    assert os.listdir(cell / "attempts" / "1") == ["running.json"]


def test_set_aside_of_nothing_makes_no_attempt(cell: Path) -> None:
    (cell / "running.json").unlink()
    attempts.set_aside(cell)
    assert os.listdir(cell) == []


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints-ema", "best/kept", "../elsewhere"])
def test_epochs_stay_where_training_goes_on_from_a_checkpoint(cell: Path, place: str) -> None:
    """Wherever the checkpoint is."""
    for epoch in (1, 2):
        EpochLog(cell / "epochs.jsonl", next_epoch=epoch).append(Epoch(epoch))
        Store(cell / place).save(lambda file: None, epoch=epoch, step=epoch)
    record.finish(cell, "timeout", 75)
    attempts.set_aside(cell)
    assert [epoch.epoch for epoch in record.read_epochs(cell / "epochs.jsonl")] == [1, 2]
    assert len(attempts.checkpoints(cell)) == 2
    assert (cell / "checkpoints.json").exists() is not place.startswith("checkpoints")


def test_checkpoints_are_found_after_a_study_has_been_moved(cell: Path, tmp_path: Path) -> None:
    Store(cell / "best" / "kept").save(lambda file: None, epoch=1, step=1)
    Store(tmp_path / "elsewhere").save(lambda file: None, epoch=1, step=1)
    assert read_json(cell / "checkpoints.json") == {"folders": ["best/kept", str(tmp_path / "elsewhere")]}
    moved = cell.rename(tmp_path / "moved")
    assert len(attempts.checkpoints(moved)) == 2


def test_other_files_beside_checkpoints_are_none(cell: Path, tmp_path: Path) -> None:
    attempts.note_checkpoints(cell, tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    assert attempts.checkpoints(cell) == []


def test_what_was_set_aside_is_put_back(cell: Path) -> None:
    EpochLog(cell / "epochs.jsonl").append(Epoch(1))
    record.finish(cell, "failed", 1)
    before = {path.name: path.read_bytes() for path in cell.iterdir()}
    attempts.put_back(cell, attempts.set_aside(cell))
    assert {path.name: path.read_bytes() for path in cell.iterdir()} == before
    attempts.put_back(cell, None)
    aside = attempts.set_aside(cell)
    record.begin(cell, {})
    attempts.put_back(cell, aside)
    assert aside is not None and (aside / "result.json").exists() and not (cell / "result.json").exists()


def test_a_study_is_read_by_cell_finished_or_not(cell: Path) -> None:
    study = cell.parent
    record.write_json(study / "study.json", {})
    record.write_json(cell / "cell.json", {"gpus": 2})
    record.write_json(study / "a-cell" / "cell.json", {"gpus": 1})
    record.finish(study / "a-cell", "completed", 0)
    (study / "no-cell").mkdir()
    first, second = record.read_study(study)
    assert (first.folder.name, second.folder.name) == ("a-cell", "cell")
    assert first.result is not None and first.running is None and first.cell == {"gpus": 1}
    assert second.result is None and second.running is not None and second.epochs == []


def test_what_is_no_study_or_cell_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not a study: it has no study\.json"):
        record.read_study(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no cell\.json"):
        record.read_cell(tmp_path)


def test_what_gpus_did_is_of_the_whole_run(cell: Path) -> None:
    """Rank 0 writes the result while other ranks still sample; the launcher, which ends last, has what they wrote since."""
    (cell / "gpus").mkdir()
    record.write_json(cell / "gpus" / "rank-0.json", {"rank": 0, "energy_j": 50.0})
    first = record.finish(cell, "completed", 0)
    assert [each["energy_j"] for each in first["gpus"]] == [50.0]
    record.write_json(cell / "gpus" / "rank-1.json", {"rank": 1, "energy_j": 40.0})
    record.finish(cell, "completed", 0)
    kept = record.read_json(cell / "result.json")
    assert kept is not None and [each["energy_j"] for each in kept["gpus"]] == [50.0, 40.0]
    assert kept["ended"] == first["ended"]
