"""`python -m hvdtrain.launch --launcher local`: what each rank is told, and how a world of plain processes ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.launch import local
from hvdtrain.world import World, detect
from tests.unit.starting import eventually, run, script, started
from tests.worlds import still_running

LOCAL = ("--launcher", "local")

TELL = """
import json, os, sys
from pathlib import Path
out = Path(sys.argv[1])
told = {"environ": dict(os.environ), "argv": sys.argv, "name": __name__, "stdin": sys.stdin.read(), "group": os.getpgrp()}
told["rendezvous"] = os.path.isdir(os.environ["HVDTRAIN_RENDEZVOUS_DIR"])
(out / os.environ["HOROVOD_RANK"]).write_text(json.dumps(told))
"""


def tell(folder: Path, ranks: int, *options: object, **variables: str) -> list[dict[str, Any]]:
    """What each rank of a world found around it."""
    ended = run("hvdtrain.launch", "-n", ranks, *LOCAL, *options, script(folder, TELL), folder, "--x=1", **variables)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(ranks)]


def test_each_rank_is_told_its_place(tmp_path: Path) -> None:
    told = tell(tmp_path, 3, "--cpus-per-task", 2, "--stall-timeout", 7)
    node = detect({}).node
    for rank, each in enumerate(told):
        assert detect(each["environ"]) == World(rank, 3, rank, 3, 0, 1, node, "cpu", "local")
        assert each["environ"]["OMP_NUM_THREADS"] == each["environ"]["MKL_NUM_THREADS"] == "2"
        assert each["environ"]["HVDTRAIN_STALL_TIMEOUT"] == "7.0"
        assert "HVDTRAIN_CONNECT_TIMEOUT" not in each["environ"]
        assert each["argv"] == [str(tmp_path / "my $(job)'s.py"), str(tmp_path), "--x=1"]
        assert (each["name"], each["stdin"], each["rendezvous"]) == ("__main__", "", True)
    for name in ("HVDTRAIN_LAUNCH_ID", "HVDTRAIN_RENDEZVOUS_DIR"):
        assert len({each["environ"][name] for each in told}) == 1
    assert len({each["group"] for each in told}) == 3
    assert not Path(told[0]["environ"]["HVDTRAIN_RENDEZVOUS_DIR"]).exists()


def test_the_users_own_thread_count_is_kept_and_each_start_has_its_own_name(tmp_path: Path) -> None:
    first, second = (tell(tmp_path, 1, OMP_NUM_THREADS="7")[0]["environ"] for _ in range(2))
    assert (first["OMP_NUM_THREADS"], first["MKL_NUM_THREADS"]) == ("7", "1")
    assert first["HVDTRAIN_LAUNCH_ID"] != second["HVDTRAIN_LAUNCH_ID"]


# Ranks of plain sh: the starter takes any command. A late one ends when the other has surely been seen to end.
LATE = "while ! [ -e first ]; do sleep 0.01; done; sleep 0.3; "
SEEN = "touch first; "
KILL = "kill -9 $$"


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        (("exit 0", "exit 0"), 0, ""),
        (("exit 0", "exit 3"), 3, ""),
        (("exit 5", "exit 0"), 5, ""),
        # Who failed first is to blame.
        ((f"{LATE} exit 3", f"{SEEN} exit 4"), 4, ""),
        ((f"{SEEN} exit 4", f"{LATE} {KILL}"), 4, ""),
        (("exit 0", KILL), 137, "hvdtrain: rank 1 was killed by SIGKILL\n"),
        (("kill -SEGV $$", "exit 0"), 139, "hvdtrain: rank 0 was killed by SIGSEGV\n"),
    ],
)
def test_the_status_is_that_of_the_rank_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[str, str], status: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ranks = f"if [ $HOROVOD_RANK = 0 ]; then {ends[0]}; else {ends[1]}; fi"
    ended = run("hvdtrain.launch.local", "-n", 2, "--", "sh", "-c", ranks)
    assert (ended.returncode, ended.stderr) == (status, said)


@pytest.mark.parametrize(
    ("job", "status", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('text of the job')", 1, "text of the job\n"),
        ("import os; os.kill(os.getpid(), 9)", 137, ""),
    ],
)
def test_the_status_of_one_rank_alone(tmp_path: Path, job: str, status: int, said: str) -> None:
    ended = run("hvdtrain.launch", "-n", 1, script(tmp_path, job))
    assert (ended.returncode, ended.stderr) == (status, said)


STAYS = """
import os, signal, subprocess, sys, time
from pathlib import Path
out, rank = Path(sys.argv[1]), os.environ.get("HOROVOD_RANK", "0")
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
# As a loader's worker does, but one that would outlive its parent.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(out), "worker"])
(out / f"up-{rank}").touch()
if f"fail-{rank}" in sys.argv:
    while len(list(out.glob("up-*"))) < 2:
        time.sleep(0.01)
    sys.exit(9)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose name, in their command lines, marks all processes of a test."""
    assert still_running(str(tmp_path)) == []
    yield tmp_path
    assert eventually(lambda: still_running(str(tmp_path)) == []), still_running(str(tmp_path))


def stays(folder: Path, *options: object) -> tuple[object, ...]:
    return ("-m", "hvdtrain.launch", "-n", 2, *LOCAL, *options, script(folder, STAYS), folder)


def wait_for_both(folder: Path) -> None:
    assert eventually(lambda: len(list(folder.glob("up-*"))) == 2)
    # Each rank has started one, which bears the rank's name until it is on its own feet.
    assert eventually(
        lambda: len([line for line in still_running(str(folder)) if line.rstrip().endswith("worker")]) == 2
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_command_ends_everything_and_is_a_cancellation(folder: Path, number: signal.Signals) -> None:
    with started(*stays(folder, "--run-dir", folder / "run")) as process:
        wait_for_both(folder)
        process.send_signal(number)
        assert process.wait(10) == 128 + number
    result = json.loads((folder / "run" / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("cancelled", 128 + number)
    assert result["reason"] == f"ended by signal {number.name}"


def test_a_command_that_is_killed_leaves_nothing_behind(folder: Path) -> None:
    with started(*stays(folder)) as process:
        wait_for_both(folder)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL


# The starter itself, with less patience than people need.
IMPATIENT = "import sys; from hvdtrain.launch import local; local.{} = 0.3; sys.exit(local.main(sys.argv[1:]))"


def impatient(patience: str, folder: Path, *how: str) -> tuple[object, ...]:
    job = script(folder, STAYS)
    return ("-c", IMPATIENT.format(patience), "-n", 2, "--", sys.executable, job, folder, *how)


def stderr_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def test_ranks_that_outlive_a_failure_are_killed_and_not_blamed(folder: Path) -> None:
    with started(*impatient("GRACE_SECONDS", folder, "fail-1")) as process:
        assert process.wait(10) == 9
        assert stderr_of(process) == "hvdtrain: rank 0 did not end by itself and was killed\n"


def test_ranks_that_are_deaf_to_the_end_are_killed(folder: Path) -> None:
    with started(*impatient("STOP_SECONDS", folder, "deaf")) as process:
        wait_for_both(folder)
        process.terminate()
        assert process.wait(10) == 143


@pytest.mark.parametrize(
    "arguments", [(), ("-n", "2"), ("-n", "0", "--", "true"), ("-n", "2", "--cpus", "0", "--", "true")]
)
def test_the_starters_own_usage(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        local.main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m hvdtrain.launch.local" in capsys.readouterr().err
