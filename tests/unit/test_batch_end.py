"""What a batch job writes down of its end, and what SLURM then makes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hvdtrain import record
from hvdtrain.launch import batch
from hvdtrain.lock import Locked
from hvdtrain.run_folder import take
from hvdtrain.site.commands import SlurmError


class Controller:
    """`says` is what scontrol prints of the job, `refuses` whether it starts none again."""

    def __init__(self) -> None:
        self.says = "JobState=RUNNING Restarts=0"
        self.refuses = False

    def call(self, argv: Sequence[str], *more: object, **others: object) -> str:
        if argv[:2] == ["scontrol", "requeue"] and self.refuses:
            raise SlurmError("scontrol ended with status 1:\n  Requested operation is presently disabled for job 7")
        return f"JobId=7 JobName=x\n   {self.says}\n" if argv[:2] == ["scontrol", "show"] else ""


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    """Of job 7, which is around this process."""
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", record.ATTEMPT_VARIABLE: ""}.items():
        monkeypatch.setenv(name, value)
    found = Controller()
    monkeypatch.setattr(batch.commands, "call", found.call)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return found


def begun(folder: Path) -> batch.Batch:
    attempt = batch.Batch(batch._parser().parse_args(["--run-dir", str(folder), "--launcher", "gloo", "digits"]))
    record.write_json(folder / "slurm.json", {"attempt": attempt.attempt})
    return attempt


def result(folder: Path) -> dict[str, Any]:
    found = record.read_json(folder / "result.json")
    assert found is not None
    return found


@pytest.mark.parametrize("refuses", [False, True])
def test_only_what_slurm_starts_again_is_said_to_be(
    tmp_path: Path, controller: Controller, capsys: pytest.CaptureFixture[str], refuses: bool
) -> None:
    attempt = begun(tmp_path)
    controller.refuses = refuses
    assert attempt._end(137) == 137
    found = result(tmp_path)
    assert (found["status"], found.get("requeued")) == ("failed", None if refuses else True)
    if refuses:
        assert found["reason"] == "ended by signal SIGKILL; SLURM does not start it again: `hvdtrain retry` goes on"
        assert "presently disabled for job 7" in capsys.readouterr().err
    else:
        assert found["reason"] == "ended by signal SIGKILL; started again (1 of 1 retries)"


def test_a_job_that_may_not_be_started_again_is_not_said_to_be(tmp_path: Path, controller: Controller) -> None:
    attempt = begun(tmp_path)
    controller.says += " Requeue=0"
    assert attempt._end(137) == 137
    assert (result(tmp_path)["reason"], "requeued" in result(tmp_path)) == ("ended by signal SIGKILL", False)


def test_a_start_that_slurm_has_counted_is_one_more(tmp_path: Path, controller: Controller) -> None:
    """Preempted without grace: SLURM itself starts the job again."""
    attempt = begun(tmp_path)
    controller.says = "JobState=COMPLETING Restarts=1"
    assert attempt._end(143) == 143
    assert (result(tmp_path)["status"], result(tmp_path)["requeued"]) == ("preempted", True)


@pytest.mark.parametrize("damage", ["hello\n", "\xff\n"])
def test_epochs_that_cannot_be_read_are_a_failure_with_its_reason(
    tmp_path: Path, controller: Controller, damage: str
) -> None:
    attempt = begun(tmp_path)
    (tmp_path / "epochs.jsonl").write_bytes(f'{{"epoch": 1}}\n{damage}'.encode("latin-1"))
    assert attempt._end(137) == 137
    found = result(tmp_path)
    assert (found["status"], found.get("requeued")) == ("failed", None), "another start would be no better"
    assert "epochs.jsonl" in found["reason"]
    assert not (tmp_path / "epochs.jsonl").exists()
    assert (tmp_path / "epochs.jsonl.unreadable").read_bytes().startswith(b'{"epoch": 1}')


def test_a_killed_attempt_with_epochs_that_cannot_be_read_is_closed(tmp_path: Path, controller: Controller) -> None:
    begun(tmp_path)
    (tmp_path / "epochs.jsonl").write_text("hello\n")
    assert batch._close_earlier(tmp_path)
    found = result(tmp_path)
    assert found["status"] == "preempted"
    assert "SLURM ended this attempt at once" in found["reason"] and "epochs.jsonl, line 1" in found["reason"]
    assert (tmp_path / "epochs.jsonl.unreadable").exists()


def test_a_start_after_epochs_that_cannot_be_read_begins_without_them(tmp_path: Path, controller: Controller) -> None:
    record.write_json(tmp_path / "result.json", {"status": "failed"})
    earlier = tmp_path / "attempts" / "1"
    earlier.mkdir(parents=True)
    for folder in (tmp_path, earlier):
        (folder / "epochs.jsonl").write_text("hello\n")
    assert not batch._close_earlier(tmp_path)
    assert not (tmp_path / "epochs.jsonl").exists()
    begun(tmp_path)
    record.EpochLog(tmp_path / "epochs.jsonl").append(record.Epoch(1))
    assert batch._progress(tmp_path)


@pytest.mark.parametrize(("launcher", "mpi"), [("gloo", "--mpi=none"), ("pmix", "--mpi=pmix_v4")])
def test_guard_ranks_are_started_with_the_mpi_of_their_launcher(
    tmp_path: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch, launcher: str, mpi: str
) -> None:
    attempt = begun(tmp_path)
    attempt.launcher, attempt.given.pmix, attempt.given.srun = launcher, "pmix_v4", ["--overlap"]
    said = []

    class Ended:
        def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
            said.extend(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(batch.subprocess, "Popen", Ended)
    monkeypatch.setattr(batch.signal, "signal", lambda number, handler: None)  # they stay pytest's
    assert attempt._start() == 0
    assert said[said.index("--overlap") + 1] == mpi and sum(word.startswith("--mpi") for word in said) == 1


def test_a_start_by_hand_beside_a_batch_job_is_refused(
    tmp_path: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, refused = begun(tmp_path), []

    def start() -> int:
        with pytest.raises(Locked, match="another training works in"):
            take(tmp_path)
        refused.append(True)
        return 2

    monkeypatch.setattr(attempt, "_start", start)
    attempt.run()
    assert refused == [True]
    after = take(tmp_path)
    assert after is not None
    after.close()


def test_no_lock_keeps_a_batch_job_from_starting(
    tmp_path: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file server may keep that of a node that died, and nobody may be there to remove it."""
    attempt = begun(tmp_path)
    monkeypatch.setattr(attempt, "_start", lambda: 2)
    monkeypatch.delenv("SLURM_JOB_ID")
    other = take(tmp_path)
    assert other is not None
    with closing(other):
        assert attempt.run() == 2
    said = capsys.readouterr().err
    assert said.startswith("warning: another training works in") and said.endswith("; this job starts all the same\n")


def test_a_job_that_was_cancelled_while_it_began_leaves_nothing(
    tmp_path: Path, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.says = "JobState=CANCELLED Restarts=0"
    folder = tmp_path / "taken-back"
    attempt = batch.Batch(batch._parser().parse_args(["--run-dir", str(folder), "--launcher", "gloo", "digits"]))
    assert attempt.run() == 1
    assert not folder.exists()
    assert "SLURM has cancelled this job" in capsys.readouterr().err
