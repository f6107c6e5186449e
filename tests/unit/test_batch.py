"""How an attempt in a batch job is judged, which launcher it takes, and who may write its records."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hvdtrain import attempts, record
from hvdtrain.checkpoint import Store
from hvdtrain.horovod_build.check import BuildInfo
from hvdtrain.launch import allocation, batch, choice, ending
from hvdtrain.launch.ending import Policy, is_early_warning, judge, warning_seconds

DIED = "rank 1 on node2 died without a word, last heard of at step 12"


def ending_of(status: int, **more: Any) -> tuple[str, bool]:
    plain = {"job_state": "RUNNING", "left": 3000.0, "warning": 120.0, "reason": "", "recorded": None, "progress": True}
    found = judge(status, **{**plain, "accidents": 0, "policy": Policy(), **more})  # type: ignore[arg-type]
    return found.status, found.requeue


@pytest.mark.parametrize(
    ("status", "facts", "expected"),
    [
        (0, {"recorded": "completed"}, ("completed", False)),
        # preemption, and the time limit
        (75, {"recorded": "preempted"}, ("preempted", True)),
        (75, {"recorded": "preempted", "left": 100.0}, ("timeout", True)),
        (75, {"recorded": "preempted", "left": 100.0, "progress": False}, ("timeout", False)),
        (75, {"recorded": "preempted", "left": None}, ("preempted", True)),
        (75, {"recorded": "preempted", "policy": Policy(on=())}, ("preempted", False)),
        (75, {"recorded": "preempted", "accidents": 9}, ("preempted", True)),
        (137, {"left": -1.0}, ("timeout", True)),
        (1, {"left": 100.0}, ("timeout", True)),
        # Near its limit a job may fail by itself, too, and would again.
        (1, {"left": 100.0, "reason": "rank 1 on b failed: ValueError: no"}, ("failed", False)),
        (143, {"left": 100.0, "reason": DIED}, ("timeout", True)),
        (143, {"left": 100.0, "reason": "rank 1 on b was asked to stop: SIGUSR1 came"}, ("timeout", True)),
        # After the limit SLURM ends all processes, and what ranks say then comes of that.
        (1, {"left": -2.0, "reason": "rank 1 on b failed: RuntimeError: worker killed"}, ("timeout", True)),
        # cancelled: SLURM is ending the job, and nobody wants it back
        (75, {"recorded": "preempted", "job_state": "COMPLETING"}, ("cancelled", False)),
        # Preempted without grace: SLURM itself starts it again, and has counted that.
        (75, {"recorded": "preempted", "job_state": "COMPLETING", "restarts": True}, ("preempted", False)),
        (143, {"job_state": "COMPLETING", "restarts": True}, ("preempted", False)),
        (143, {"job_state": "CANCELLED"}, ("cancelled", False)),
        # Preempted before ranks catch signals, while they import: they die of the first one.
        (143, {"preempted": True, "accidents": 1}, ("preempted", True)),
        (138, {"preempted": True, "accidents": 1, "progress": False}, ("preempted", True)),
        (140, {"preempted": True, "accidents": 1}, ("preempted", True)),
        (143, {"preempted": True, "policy": Policy(on=("timeout",))}, ("preempted", False)),
        (143, {"preempted": True, "job_state": "COMPLETING"}, ("cancelled", False)),
        (143, {"accidents": 1}, ("failed", False)),
        (139, {"preempted": True, "accidents": 1}, ("failed", False)),
        # srun ends the others by SIGTERM when one fails, and that one has said why.
        (143, {"preempted": True, "recorded": "failed", "reason": "ValueError: no"}, ("failed", False)),
        (143, {"preempted": True, "accidents": 1, "reason": "rank 3 on b failed: ValueError: no"}, ("failed", False)),
        # Of several, some caught it already.
        (143, {"preempted": True, "accidents": 1, "reason": DIED}, ("preempted", True)),
        (143, {"preempted": True, "recorded": "preempted", "reason": "rank 0 was asked to stop"}, ("preempted", True)),
        # accidents have a budget, a program's own errors have none
        (1, {"recorded": "failed", "reason": DIED}, ("failed", True)),
        (137, {}, ("failed", True)),
        (1, {"recorded": "failed", "reason": DIED, "accidents": 1}, ("failed", False)),
        (1, {"recorded": "failed", "reason": DIED, "policy": Policy(retries=0)}, ("failed", False)),
        (1, {"recorded": "failed", "reason": DIED, "may_requeue": False}, ("failed", False)),
        (75, {"recorded": "preempted", "may_requeue": False}, ("preempted", False)),
        (0, {"may_requeue": False}, ("failed", False)),
        (1, {"recorded": "failed", "reason": "ValueError: no"}, ("failed", False)),
        (143, {"recorded": "failed", "reason": "rank 3 on b failed: ValueError: no"}, ("failed", False)),
        (1, {"recorded": "diverged", "reason": "the loss is nan"}, ("diverged", False)),
        (2, {"recorded": "failed", "reason": "no such file"}, ("failed", False)),
        # srun says 0 when a node fails under it
        (0, {}, ("failed", True)),
        (0, {"job_state": "COMPLETING"}, ("preempted", False)),
    ],
)
def test_endings(status: int, facts: dict[str, Any], expected: tuple[str, bool]) -> None:
    assert ending_of(status, **facts) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 120.0), (86400.0, 120.0), (300.0, 60.0), (60.0, 12.0), (10.0, 5.0)]
)
def test_short_jobs_are_warned_later(limit: float | None, expected: float) -> None:
    assert warning_seconds(120.0, limit) == expected


@pytest.mark.parametrize(
    ("left", "early"), [(None, False), (3000.0, False), (170.0, True), (121.0, True), (120.0, False), (5.0, False)]
)
def test_slurm_warns_up_to_a_minute_early(left: float | None, early: bool) -> None:
    assert is_early_warning(left, 120.0) is early


def build(mpi: str | None = None, nccl: str | None = None) -> BuildInfo:
    return BuildInfo("0.28.1", "key", "edits", "3.11", "linux", "g++", mpi=mpi, nccl=nccl)


@pytest.mark.parametrize(
    ("types", "built", "ethernet", "expected", "why"),
    [
        (["none", "pmix", "pmix_v4"], build("Open MPI 5"), False, "pmix", "offers pmix_v4"),
        (["none", "pmix", "pmix_v4"], build("Open MPI 5"), True, "gloo", "several nodes without InfiniBand"),
        (["none", "pmix", "pmix_v4"], build("Open MPI 5", nccl="2.28"), True, "pmix", "offers pmix_v4"),
        (["none", "pmi2"], build("Open MPI 5"), False, "gloo", "offers no pmix (none, pmi2)"),
        (["pmix_v4"], build("MPICH 4.2"), False, "gloo", "Horovod has MPICH 4.2, which SLURM's PMIx may not start"),
        (["pmix"], build(), False, "gloo", "built without MPI"),
        (["pmix"], None, False, "gloo", "no Horovod of hvdtrain is installed here"),
    ],
)
def test_the_launcher_and_why(
    types: list[str], built: BuildInfo | None, ethernet: bool, expected: str, why: str
) -> None:
    name, reason = choice.decide(types, built, ethernet)
    assert name == expected
    assert why in reason


JOB = """\
JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName=digits.ab
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:10 TimeLimit=1-02:00:30 TimeMin=N/A
   StartTime=2026-01-01T10:00:00 EndTime=2026-01-02T12:00:30 Deadline=N/A
   Partition=all AllocNode:Sid=login:1
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n-t4-[1-2],n-v100-1
   JOB_GRES=gpu:6
     Nodes=n-t4-[1-2] CPU_IDs=0-1 Mem=2000 GRES=gpu:t4:2(IDX:0-1)
     Nodes=n-v100-1 CPU_IDs=0-1 Mem=2000 GRES=gpu:v100:2(IDX:0-1)
"""


def test_what_slurm_says_of_the_job() -> None:
    job = allocation.parse("7", JOB)
    assert (job.state, job.restarts, job.may_requeue, job.nodes) == ("RUNNING", 2, True, "n-t4-[1-2],n-v100-1")
    assert job.limit == 26 * 3600 + 30
    assert job.gpus == {"t4": 4, "v100": 2}
    assert job.gpu_types == ["t4", "v100"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", False),  # hidden where nothing is preempted
        ("PreemptEligibleTime=2026-01-01T10:00:00 PreemptTime=None", False),
        ("PreemptEligibleTime=2026-01-01T10:00:00 PreemptTime=2026-01-01T10:00:07", True),
        # That was an attempt before.
        ("PreemptEligibleTime=2026-01-01T09:00:00 PreemptTime=2026-01-01T09:59:59", False),
        ("PreemptTime=None SuspendTime=None SecsPreSuspend=0", False),
    ],
)
def test_whether_this_attempt_was_chosen_for_preemption(line: str, expected: bool) -> None:
    assert allocation.parse("7", JOB.replace("   Partition=all", f"   {line}\n   Partition=all")).preempted is expected


def array_task(number: int, task: int, gpus: int) -> str:
    return (
        f"JobId={number} ArrayJobId=5 ArrayTaskId={task} JobName=digits.{task}\n   JobState=RUNNING Restarts={task}\n"
        f"   NodeList=n{task}\n     Nodes=n{task} CPU_IDs=0 Mem=1 GRES=gpu:t4:{gpus}(IDX:0)\n\n"
    )


def test_the_task_that_has_the_number_of_its_array_is_not_the_array() -> None:
    """Asked for it, scontrol shows all tasks, in any order."""
    text = array_task(6, 0, 1) + array_task(5, 2, 2) + array_task(7, 1, 4)
    job = allocation.parse("5", text)
    assert (job.alone, job.name, job.nodes, job.restarts, job.gpus) == ("5_2", "digits.2", "n2", 2, {"t4": 2})
    assert allocation.parse("7", array_task(7, 1, 4)).alone == "5_1"
    assert allocation.parse("7", "JobId=7 JobName=x\n   JobState=RUNNING\n").alone == "7"


@pytest.mark.parametrize(("said", "expected"), [("Requeue=0", False), ("Requeue=1", True), ("", True)])
def test_only_slurm_s_word_turns_requeueing_off(said: str, expected: bool) -> None:
    assert allocation.parse("7", f"JobId=7 JobName=x\n   JobState=RUNNING {said}\n").may_requeue is expected


def test_a_task_knows_itself_when_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name, value in {"JOB_ID": "5", "ARRAY_JOB_ID": "5", "ARRAY_TASK_ID": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert allocation.here().alone == "5_2"
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID")
    assert allocation.here().alone == "5"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_NTASKS": "8"}, 8),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4"}, 8),
        ({"SLURM_JOB_NUM_NODES": "1"}, 1),
    ],
)
def test_ranks_of_the_allocation(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: int) -> None:
    for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert allocation.ranks() == expected


def test_outside_of_a_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert batch.main(["digits"]) == 2
    assert "submit it with sbatch" in capsys.readouterr().err


# --- a later attempt takes over -----------------------------------------------------------------------------------


def test_a_replaced_attempt_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(record.RUN_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setenv(record.ATTEMPT_VARIABLE, "7-0")
    record.write_json(tmp_path / "slurm.json", {"attempt": "7-0"})
    record.begin(tmp_path, {})
    log = record.EpochLog(tmp_path / "epochs.jsonl")
    log.append(record.Epoch(1))
    record.write_json(tmp_path / "slurm.json", {"attempt": "7-1"})
    with pytest.raises(record.SupersededError):
        log.append(record.Epoch(2))
    with pytest.raises(record.SupersededError):
        record.finish(tmp_path, "failed", 1)
    record.note(reason="late")
    assert [epoch.epoch for epoch in record.read_epochs(tmp_path / "epochs.jsonl")] == [1]
    assert "reason" not in (record.read_json(tmp_path / "running.json") or {})
    assert not (tmp_path / "result.json").exists()


def test_an_attempt_that_was_killed_is_closed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(record.ATTEMPT_VARIABLE, raising=False)
    record.write_json(tmp_path / "slurm.json", {"attempt": "7-0", "began": 1000.0, "job_id": "7"})
    assert batch._close_earlier(tmp_path)
    attempts.set_aside(tmp_path)
    result = record.read_json(tmp_path / "attempts" / "1" / "result.json")
    assert result is not None
    assert result["status"] == "preempted"
    assert result["slurm"]["began"] == 1000.0
    assert not batch._close_earlier(tmp_path / "nothing")


def attempt(folder: Path, *epochs: int, checkpoint: Path | None = None) -> bool:
    """One attempt that records these epochs; whether it counts as progress."""
    attempts.set_aside(folder)
    record.write_json(folder / "slurm.json", {"attempt": "7-0"})
    record.begin(folder, {})
    log = record.EpochLog(folder / "epochs.jsonl", next_epoch=epochs[0] if epochs else 1)
    for epoch in epochs:
        log.append(record.Epoch(epoch))
    if checkpoint is not None:
        Store(checkpoint).save(lambda file: None, epoch=epochs[-1] if epochs else 0, step=1)
    progress = batch._progress(folder)
    record.finish(folder, "timeout", 75)
    return progress


def test_what_always_begins_anew_gets_on_once(tmp_path: Path) -> None:
    assert [attempt(tmp_path, 1, 2, 3), attempt(tmp_path, 1, 2, 3), attempt(tmp_path, 1, 2)] == [True, False, False]


def test_what_goes_on_in_its_own_way_gets_on_each_time(tmp_path: Path) -> None:
    assert [attempt(tmp_path, 1, 2), attempt(tmp_path, 3, 4), attempt(tmp_path), attempt(tmp_path, 5)] == [
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("place", ["run/checkpoints", "elsewhere"])
def test_a_checkpoint_is_progress_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.delenv(record.ATTEMPT_VARIABLE, raising=False)
    monkeypatch.setenv(record.RUN_DIR_VARIABLE, str(tmp_path / "run"))
    assert attempt(tmp_path / "run", checkpoint=tmp_path / place)
    assert attempt(tmp_path / "run", checkpoint=tmp_path / place)
    time.sleep(0.02)
    assert not attempt(tmp_path / "run")


def test_accidents_are_counted_for_one_job(tmp_path: Path) -> None:
    for number, (status, job) in enumerate([("failed", "7"), ("preempted", "7"), ("failed", "8")], start=1):
        record.write_json(
            tmp_path / "attempts" / str(number) / "result.json", {"status": status, "slurm": {"job_id": job}}
        )
    assert batch._accidents(tmp_path, "7") == 1


def test_the_reason_for_giving_up_says_what_to_type() -> None:
    facts: dict[str, Any] = {
        "job_state": "RUNNING",
        "left": 10.0,
        "warning": 12.0,
        "reason": "",
        "recorded": "preempted",
    }
    found = judge(75, **facts, progress=False, accidents=0, policy=Policy())
    assert "give a longer --time, or let the job save checkpoints, then `hvdtrain resume`" in found.reason
    assert ending.Policy().retries == 1
