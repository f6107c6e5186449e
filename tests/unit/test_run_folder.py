"""A run folder belongs to one start at a time, however it was named; and what an earlier start left there is set aside."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from hvdtrain.errors import UserError
from hvdtrain.record import read_json
from hvdtrain.run_folder import HELD_VARIABLE, holding, take
from tests.unit.starting import eventually, run, script, started

ONE = ("hvdtrain.launch", "-n", "1")
TWO = ("hvdtrain.launch", "-n", "2", "--launcher", "local")
ALONE = ("hvdtrain.run",)
STAYS = """
import pathlib, signal, sys, time
out = pathlib.Path(sys.argv[1])
def end(number, frame):
    time.sleep(1)
    (out / "ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(out / "up").touch()
time.sleep(60)
"""


@pytest.mark.parametrize(("first", "second"), [(TWO, ONE), (ONE, ALONE), (ALONE, ONE)])
def test_a_second_start_in_a_folder_where_one_works_is_refused(
    tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    other = tmp_path / "pass.py"
    other.touch()
    with started("-m", *first, "--run-dir", folder, script(tmp_path, STAYS), tmp_path) as process:
        assert eventually((tmp_path / "up").exists)
        (folder / "running.json").write_text("{}")
        ended = run(*second, "--run-dir", folder, other)
        who = f"process {process.pid} on {socket.gethostname()}"
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"error: another training works in {folder} ({who}); ")
        assert (folder / "running.json").exists() and not (folder / "attempts").exists()
        assert not (folder / "result.json").exists()


@pytest.mark.parametrize("first", [ONE, TWO])
def test_a_start_waits_for_the_ranks_of_one_that_was_killed(tmp_path: Path, first: tuple[str, ...]) -> None:
    folder, other = tmp_path / "run", tmp_path / "other.py"
    other.write_text(f"import os, sys; sys.exit(not os.path.exists({str(tmp_path / 'ended')!r}))")
    with started("-m", *first, "--run-dir", folder, script(tmp_path, STAYS), tmp_path) as process:
        assert eventually((tmp_path / "up").exists)
        process.kill()
        process.wait(10)
        again = run(*ONE, "--run-dir", folder, other)
    assert (again.returncode, again.stderr) == (0, "")


def test_who_waits_for_ranks_of_a_start_that_was_killed_says_so_and_may_be_interrupted(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as killed:
        pass
    lock = take(tmp_path)
    assert lock is not None
    with closing(lock):
        lock.describe(pid=killed.pid)
        with started("-m", *ALONE, "--run-dir", tmp_path, script(tmp_path, "pass")) as process:
            assert process.stderr is not None
            said = process.stderr.readline().decode()
            process.send_signal(signal.SIGINT)
            assert (process.wait(10), process.stderr.read().decode()) == (130, "error: interrupted\n")
    who = f"process {killed.pid} on {socket.gethostname()}"
    assert said == f"note: waiting up to 20 s for what {who}, which was killed, has left running\n"


@pytest.mark.parametrize("how", [ONE, ALONE])
def test_records_that_cannot_be_set_aside_are_no_traceback(tmp_path: Path, how: tuple[str, ...]) -> None:
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "attempts").touch()
    ended = run(*how, "--run-dir", tmp_path, script(tmp_path, "print('it ran')"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: the run folder {tmp_path} cannot be written: {tmp_path}/attempts")
    assert ended.stderr.count("\n") == 1


def test_what_a_job_leaves_running_keeps_no_later_start_out(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    job = script(tmp_path, f"import os; os.system('setsid sleep 30 >/dev/null 2>&1 & echo $! >{pid}')")
    left = []
    try:
        for _ in range(2):
            assert run(*ONE, "--run-dir", tmp_path / "run", job).returncode == 0
            left.append(int(pid.read_text()))
            os.kill(left[-1], 0)  # it is there
    finally:
        for each in left:
            os.kill(each, signal.SIGKILL)


@pytest.mark.parametrize("how", [ONE, ALONE])
def test_what_a_process_above_holds_is_taken_as_it_is(tmp_path: Path, how: tuple[str, ...]) -> None:
    """A rank of a launcher or a batch script; or what a job starts."""
    lock = take(tmp_path)
    assert lock is not None
    with closing(lock):
        (tmp_path / "running.json").write_text('{"launcher": "gloo"}')
        held = {HELD_VARIABLE: str(tmp_path), "HVDTRAIN_RUN_DIR": str(tmp_path)}
        assert run(*how, script(tmp_path, "pass"), **held).returncode == 0
    assert (read_json(tmp_path / "result.json") or {})["launcher"] == "gloo"
    assert not (tmp_path / "attempts").exists()


@pytest.mark.parametrize(("first", "own"), [("7", "8"), ("", "8"), ("7", "7"), ("7", "")])
def test_what_another_job_held_when_it_started_this_one_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, own: str
) -> None:
    """sbatch hands its variables on, and so may whoever starts the follow-up. srun may make a job for a launcher outside of any."""
    monkeypatch.setenv("SLURM_JOB_ID", first)
    for name, value in holding(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", own)
    lock = take(tmp_path)
    assert (lock is not None) is (first == "7" and own == "8")
    if lock is not None:
        lock.close()


def test_a_follow_up_that_a_job_submitted_records_itself(tmp_path: Path) -> None:
    variables = {"HVDTRAIN_RUN_DIR": str(tmp_path / "run")}
    seen = tmp_path / "seen"
    job = script(tmp_path, f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))")
    assert run(*ONE, job, SLURM_JOB_ID="7", **variables).returncode == 0
    exported = {name: value for name, value in json.loads(seen.read_text()).items() if name.startswith("HVDTRAIN_HELD")}
    job.write_text("import sys; sys.exit(4)")
    assert run(*ONE, job, SLURM_JOB_ID="8", **variables, **exported).returncode == 4
    assert (read_json(tmp_path / "run" / "result.json") or {})["status"] == "failed"
    assert (read_json(tmp_path / "run" / "attempts" / "1" / "result.json") or {})["status"] == "completed"


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    locks = [take(tmp_path) for _ in range(2)]
    for lock in locks:
        assert lock is not None
        lock.close()


@pytest.mark.parametrize(
    ("job", "restart", "legal"), [("7", "1", True), ("7", "0", False), ("8", "1", False), (None, None, False)]
)
def test_a_job_that_slurm_starts_again_is_not_kept_out_by_its_dead_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str | None, restart: str | None, legal: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    earlier = take(tmp_path)
    assert earlier is not None
    monkeypatch.setattr(socket, "gethostname", lambda: "node2")
    for name, value in {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": restart}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with closing(earlier):
        if legal:
            assert take(tmp_path) is not None
        else:
            with pytest.raises(UserError, match=r"on node1\).*if that machine is gone, remove .*/\.run\.lock"):
                take(tmp_path)


@pytest.mark.parametrize(("how", "way"), [(ONE, "variable"), (TWO, "variable"), (ALONE, "variable"), (ALONE, "option")])
def test_a_start_that_dies_before_it_begins_leaves_no_earlier_success(
    tmp_path: Path, how: tuple[str, ...], way: str
) -> None:
    folder, job = tmp_path / "run", tmp_path / "job.py"
    options = ("--run-dir", folder) if way == "option" else ()
    variables = {"HVDTRAIN_RUN_DIR": str(folder)} if way == "variable" else {}
    for text, status in [("pass", "completed"), ("import no_such_module", "failed")]:
        job.write_text(text)
        run(*how, *options, job, **variables)
        assert (read_json(folder / "result.json") or {})["status"] == status
    assert (read_json(folder / "attempts" / "1" / "result.json") or {})["status"] == "completed"


def test_a_launcher_records_in_the_folder_of_the_variable_ranks_that_could_not(tmp_path: Path) -> None:
    job = script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run(*TWO, job, HVDTRAIN_RUN_DIR=str(tmp_path / "run")).returncode == 137
    result = read_json(tmp_path / "run" / "result.json") or {}
    assert (result["status"], result["reason"]) == ("failed", "ended by signal SIGKILL")


@pytest.mark.parametrize("how", [ONE, ALONE])
def test_the_variable_means_one_folder_wherever_the_job_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    assert run(*how, script(tmp_path, "import os; os.chdir('elsewhere')"), HVDTRAIN_RUN_DIR="run").returncode == 0
    assert Path("run/result.json").exists() and os.listdir("elsewhere") == []


PLACE = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
RANK_1 = {f"HOROVOD_{name}": value for name, value in PLACE.items()}


@pytest.mark.parametrize(
    ("how", "place", "why", "variables"),
    [
        (ONE, "file", "it is a file", {}),
        (ONE, "file/run", "a part of its path is a file", {}),
        (ALONE, "file", "it is a file", {}),
        (ALONE, "file/run", "a part of its path is a file", {}),
        (ALONE, "file/run", "a part of its path is a file", RANK_1),
        (ALONE, "/proc/run", "No such file or directory", {}),
    ],
)
def test_what_can_be_no_folder_is_refused_before_the_job_runs(
    tmp_path: Path, how: tuple[str, ...], place: str, why: str, variables: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / place
    ended = run(*how, "--run-dir", folder, script(tmp_path, "print('it ran')"), **variables)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"error: the run folder {folder} cannot be made: {why}; give another place\n"
