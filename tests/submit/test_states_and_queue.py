"""What SLURM says, read: states, reasons, squeue, scontrol, sacct; and a cell's state from that and from its records."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from hvdtrain import record
from hvdtrain.site import commands
from hvdtrain.submit import queue, states, usage
from hvdtrain.submit.queue import Job, Usage
from hvdtrain.submit.submissions import Submission, find
from hvdtrain.submit.view import CellView, bring_together, look


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("PENDING", "pending"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("NODE_FAIL", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("TIMEOUT", "timeout"),
        ("PREEMPTED", "preempted"),
        ("REQUEUE_HOLD", "held"),
        ("SOMETHING_NEW", "unknown"),
        ("", "unknown"),
    ],
)
def test_states(state: str, word: str) -> None:
    assert states.translate(state) == word


def test_reasons() -> None:
    assert states.explain("PartitionTimeLimit") == (
        "PartitionTimeLimit: its --time is longer than the partition allows: it will never start"
    )
    assert states.explain("(ReqNodeNotAvail, UnavailableNodes:n1)").endswith(
        "nodes that it needs are down, drained or reserved"
    )
    assert states.explain("SomethingNew") == "SomethingNew"
    assert states.explain("None") == ""


SQUEUE = (
    "12_0\tn2-t4.ab\tRUNNING\t2026-01-01T10:00:00\t2026-01-01T10:00:01\t0:05\tnode1\tNone\n"
    "12_1\tdigits.cd\tPENDING\t2026-01-01T10:00:00\tN/A\t0:00\t\tJobArrayTaskLimit\n"
    "13\tn8.ef\tPENDING\t2026-01-01T10:00:00\t2026-01-01T12:00:00\t0:00\t\tResources\n"
)


def test_squeue() -> None:
    jobs = queue.parse_squeue(SQUEUE)
    assert [job.status for job in jobs.values()] == ["running", "pending", "pending"]
    assert jobs["12_1"].why() == "JobArrayTaskLimit: --max-parallel cells run already"
    assert jobs["13"].why() == (
        "Resources: waiting for free nodes or GPUs; SLURM expects it to start at 2026-01-01T12:00:00"
    )


def test_scontrol() -> None:
    text = (
        "JobId=15 ArrayJobId=12 ArrayTaskId=3 JobName=a UserId=ada(1) JobState=FAILED Reason=NonZeroExitCode Restarts=2 "
        "ExitCode=1:0 NodeList=n1 RunTime=00:00:03 StartTime=2026-01-01T10:00:00\n"
        "JobId=16 JobName=b JobState=PENDING Reason=Priority Restarts=0 ExitCode=0:0 NodeList=(null)\n"
    )
    jobs = queue.parse_scontrol(text)
    assert jobs["12_3"].restarts == 2
    assert jobs["12_3"].why() == "exit code 1:0"
    assert jobs["16"].live


def test_scontrol_of_a_name_with_blanks() -> None:
    text = "JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName=my study.ab UserId=u(1) JobState=FAILED ExitCode=127:0"
    assert queue.parse_scontrol(text)["7_0"].name == "my study.ab"


SACCT = """\
12_0|15|NODE_FAIL|42|billing=8,cpu=8,gres/gpu:v100=2,gres/gpu=2,node=1|n1|0:0|0|2026-01-01T10:00:00|n2
12_0|15|COMPLETED|20|billing=8,cpu=8,gres/gpu:v100=2,gres/gpu=2,node=1|n2|0:0|7200|2026-01-01T10:02:00|n2
12_[1-2]|16|PENDING|0||None assigned|0:0||Unknown|digits.cd
17|17|CANCELLED by 0|0||None assigned|0:0||Unknown|n4
"""


def test_every_attempt_counts_once() -> None:
    jobs, used = queue.parse_sacct(SACCT)
    assert jobs["12_0"].status == "completed"
    assert [(row.gpus, row.seconds, row.energy_joules) for row in used["12_0"]] == [(2, 42, None), (2, 20, 7200)]
    assert {row.name for row in used["12_0"]} == {"n2"}
    assert "17" not in used
    spent = usage.from_accounting(used["12_0"], 2)
    assert (spent.gpu_hours, spent.estimated, spent.joules) == (2 * 62 / 3600, False, 7200)
    assert usage.from_accounting([Usage(0, 3600)], 4).gpu_hours == 4


def test_an_estimate_adds_up_attempts(tmp_path: Path) -> None:
    record.write_json(tmp_path / "cell.json", {"gpus": 4})
    for number, seconds in (("1", 100), ("2", 50)):
        facts = {"status": "preempted", "slurm": {"began": 1000.0, "ended": 1000.0 + seconds}}
        record.write_json(tmp_path / "attempts" / number / "result.json", facts)
    record.write_json(tmp_path / "slurm.json", {"began": 2000.0})
    spent = usage.estimate(record.read_cell(tmp_path), now=2030.0)
    assert (spent.gpu_hours, spent.estimated) == (4 * 180 / 3600, True)


def test_an_attempt_that_was_killed_used_nothing_after_its_last_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "n2"
    began = time.time() - 7200
    record.write_json(folder / "cell.json", {"name": "n2", "gpus": 2, "cluster": "slurm"})
    record.write_json(folder / "slurm.json", {"began": began})
    record.write_json(folder / "running.json", {})
    record.EpochLog(folder / "epochs.jsonl").append(record.Epoch(1))
    (folder / "log").mkdir()
    (folder / "log" / "rank-1.log").write_text("epoch 1\n")
    for number, name in enumerate(("slurm.json", "running.json", "epochs.jsonl", "log/rank-1.log")):
        os.utime(folder / name, (began + 200 * number,) * 2)
    submission = {name: value for name, value in dataclasses.asdict(SUBMITTED).items() if name != "folder"}
    record.write_json(tmp_path / "submissions" / SUBMITTED.folder / "submission.json", submission)
    monkeypatch.setattr(queue, "accounted", lambda ids, since: ({}, {}))
    monkeypatch.setattr(queue, "remembered", dict)
    for state, hours in (("RUNNING", 4.0), ("PENDING", 1 / 3), ("NODE_FAIL", 1 / 3), (None, 1 / 3)):
        jobs = {} if state is None else {"7": Job("7", state, "n2.ab")}
        monkeypatch.setattr(queue, "live_and_recent", lambda others, jobs=jobs: jobs)
        (seen,) = look(tmp_path, [record.read_cell(folder)]).cells
        assert seen.spent is not None and seen.spent.estimated
        assert seen.spent.gpu_hours == pytest.approx(hours, rel=0.01), state


@pytest.mark.parametrize("state", ["COMPLETED", None])
def test_a_result_that_the_file_system_hides_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """An NFS client that asked for a file before it was there goes on saying so, until somebody lists the folder."""
    folder = tmp_path / "n2"
    cell(tmp_path, "completed")
    submission = {name: value for name, value in dataclasses.asdict(SUBMITTED).items() if name != "folder"}
    record.write_json(tmp_path / "submissions" / SUBMITTED.folder / "submission.json", submission)
    listed: list[str] = []
    read, listdir = record.read_json, os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [listed.append(str(path)), listdir(path)][1])
    hidden = folder / "result.json"
    monkeypatch.setattr(
        record, "read_json", lambda path: None if path == hidden and str(folder) not in listed else read(path)
    )
    monkeypatch.setattr(
        queue, "live_and_recent", lambda others: {} if state is None else {"7": Job("7", state, "n2.ab")}
    )
    monkeypatch.setattr(queue, "accounted", lambda ids, since: ({}, {}))
    monkeypatch.setattr(queue, "remembered", dict)
    (seen,) = look(tmp_path, [record.read_cell(folder)]).cells
    assert (seen.status, seen.why) == ("completed", "")
    assert seen.record.result is not None


# --- a submission that was accepted without our hearing of it -----------------------------------------------------

ONE = Submission("0001-n2.ab", "n2.ab", ("n2",), ("n2.ab",), "2026-01-01T10:00:00")
TWO = Submission("0002-d.cd", "d.cd", ("n2", "n4"), ("n2.ab", "n4.ef"), "2026-01-01T10:00:00")


@pytest.mark.parametrize(
    ("submission", "job", "expected"),
    [
        (ONE, Job("7", "PENDING", "n2.ab", submitted="2026-01-01T10:00:05"), "7"),
        (ONE, Job("7", "COMPLETED", "n2.ab", submitted="2026-01-01T10:00:05"), "7"),
        (ONE, Job("7", "COMPLETED", "n2.ab", submitted="2026-01-01T08:00:00"), None),  # an earlier one of the same cell
        (ONE, Job("7_0", "RUNNING", "n2.ab"), None),  # a task of an array
        (ONE, Job("7", "PENDING", "n2.xx"), None),
        (TWO, Job("8_1", "PENDING", "d.cd"), "8"),
        (TWO, Job("8_1", "RUNNING", "n4.ef"), "8"),  # a task takes its cell's name when it starts
    ],
)
def test_found_again_by_its_name(submission: Submission, job: Job, expected: str | None) -> None:
    assert find(submission, [job]) == expected


# --- records and queue together -----------------------------------------------------------------------------------


def cell(folder: Path, result: str | None = None, reason: str = "", **more: object) -> record.CellRecord:
    record.write_json(folder / "n2" / "cell.json", {"name": "n2", "gpus": 2, "cluster": "slurm"})
    if result is not None:
        record.write_json(folder / "n2" / "result.json", {"status": result, "reason": reason, **more})
    return record.read_cell(folder / "n2")


SUBMITTED = Submission("0001-n2.ab", "n2.ab", ("n2",), ("n2.ab",), "2026-01-01T10:00:00", job="7")


@pytest.mark.parametrize(
    ("result", "state", "expected"),
    [
        (None, "PENDING", "pending"),
        (None, "RUNNING", "running"),
        ("preempted", "PENDING", "pending"),
        ("completed", "COMPLETING", "completed"),
        ("completed", "COMPLETED", "completed"),
        ("diverged", "FAILED", "diverged"),
        ("preempted", "CANCELLED by 0", "cancelled"),
        ("timeout", "TIMEOUT", "timeout"),
        (None, "TIMEOUT", "timeout"),
        (None, "NODE_FAIL", "failed"),
        (None, "COMPLETED", "failed"),
        (None, "SOMETHING_NEW", "unknown"),
        ("preempted", "SOMETHING_NEW", "unknown"),
        ("completed", "SOMETHING_NEW", "completed"),
        ("completed", None, "completed"),
        (None, None, "unknown"),
    ],
)
def test_who_knows_better(tmp_path: Path, result: str | None, state: str | None, expected: str) -> None:
    job = None if state is None else Job("7", state, "n2.ab")
    assert bring_together(cell(tmp_path, result), SUBMITTED, job).status == expected


@pytest.mark.parametrize(
    ("result", "job", "expected", "why"),
    [
        ("preempted", Job("7", "FAILED", exit_code="127:0"), "failed", "it never started training"),
        ("preempted", Job("7", "NODE_FAIL"), "failed", "a node failed"),
        ("timeout", Job("7", "DEADLINE"), "timeout", "the job's deadline passed"),
        ("failed", Job("7", "CANCELLED by 0"), "cancelled", ""),
        ("failed", Job("7", "PENDING"), "pending", "started again after: it died"),
        ("completed", Job("7", "CANCELLED by 0"), "completed", "it died"),
        ("preempted", None, "preempted", "it died"),
    ],
)
def test_a_start_after_what_is_recorded_knows_better(
    tmp_path: Path, result: str, job: Job | None, expected: str, why: str
) -> None:
    started_again = cell(tmp_path, result, "it died", requeued=True)
    view = bring_together(started_again, SUBMITTED, job)
    assert view.status == expected
    assert why in view.why


def test_a_started_again_cell_says_after_what(tmp_path: Path) -> None:
    view = bring_together(
        cell(tmp_path, "preempted", "SIGTERM came"), SUBMITTED, Job("7", "PENDING", reason="BeginTime")
    )
    assert view.why.startswith("started again after: SIGTERM came; BeginTime: it was requeued")


def test_a_job_that_never_started_explains_itself(tmp_path: Path) -> None:
    broken = cell(tmp_path)
    (broken.folder / "log").mkdir()
    (broken.folder / "log" / "job.log").write_text("slurm_script: line 5: module: command not found\n")
    view = bring_together(broken, SUBMITTED, Job("7", "FAILED", exit_code="127:0"))
    assert view.status == "failed"
    assert view.why == (
        "it never started training (exit code 127:0); last line of its log: slurm_script: line 5: module: command not found"
    )


def test_cells_that_slurm_never_got(tmp_path: Path) -> None:
    never = Submission("0001-n2.ab", "n2.ab", ("n2",), ("n2.ab",), "2026-01-01T10:00:00")
    assert bring_together(cell(tmp_path), never, None).status == "not submitted"
    assert bring_together(cell(tmp_path), never, None, answered=False).status == "unknown"
    assert bring_together(cell(tmp_path), None, None) == CellView(cell(tmp_path), "not submitted")


def test_whose_jobs_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo` and `su` may leave the name of somebody else in the environment."""
    monkeypatch.setenv("LOGNAME", "somebody-else")
    asked: list[str] = []
    monkeypatch.setattr(queue.commands, "call", lambda argv: [asked.extend(argv), ""][1])
    queue.live_and_recent()
    assert f"--user={os.getuid()}" in asked


def test_the_jobs_of_a_colleague_s_study_are_asked_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = cell(tmp_path)
    submission = {name: value for name, value in dataclasses.asdict(SUBMITTED).items() if name != "folder"}
    record.write_json(tmp_path / "submissions" / SUBMITTED.folder / "submission.json", submission)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    asked: list[str] = []
    monkeypatch.setattr(queue.commands, "call", lambda argv, *more: [asked.extend(argv), ""][1])
    look(tmp_path, [seen])
    assert f"--user={owner},{owner + 1}" in asked


def test_accounting_is_asked_about_the_cluster_that_somebody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(commands, "call", lambda argv: asked.extend(argv) or "")
    monkeypatch.setenv("SLURM_CLUSTERS", "x")
    monkeypatch.delenv("SBATCH_CLUSTERS", raising=False)
    queue.accounted(["1"], "2026-01-01T00:00:00")
    assert "--clusters=x" in asked
    asked.clear()
    monkeypatch.delenv("SLURM_CLUSTERS")
    queue.accounted(["1"], "2026-01-01T00:00:00")
    assert not [word for word in asked if word.startswith("--clusters")]
