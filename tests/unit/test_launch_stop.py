"""`python -m hvdtrain.launch` that is told to end: which signals it heeds, what its launchers are told, and what it says then."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from hvdtrain.record import read_json
from tests.unit.starting import eventually, script, started

WAITS = """
import os, sys, time
from pathlib import Path
out = Path(sys.argv[1])
(out / f"up-{os.getpid()}").touch()
while not (out / "heard").exists():
    time.sleep(0.02)
time.sleep(0.5)
"""


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_an_ignored_hangup_stays_ignored(tmp_path: Path, launcher: str) -> None:
    """As by `nohup python -m hvdtrain.launch ... &` goes on when the terminal closes."""
    command = ("-m", "hvdtrain.launch", "-n", 2, "--launcher", launcher, script(tmp_path, WAITS), tmp_path)
    with started(*command, ignored=[signal.SIGHUP]) as process:
        assert eventually(lambda: len(list(tmp_path.glob("up-*"))) == 2)
        process.send_signal(signal.SIGHUP)
        (tmp_path / "heard").touch()
        assert process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_the_starter_itself_keeps_ignoring_what_it_was_born_ignoring(tmp_path: Path, number: signal.Signals) -> None:
    ranks = f"touch {tmp_path}/up-$HOROVOD_RANK; while ! [ -e {tmp_path}/heard ]; do sleep 0.02; done; sleep 0.5"
    with started("-m", "hvdtrain.launch.local", "-n", 2, "--", "sh", "-c", ranks, ignored=[number]) as process:
        assert eventually(lambda: len(list(tmp_path.glob("up-*"))) == 2)
        process.send_signal(number)
        (tmp_path / "heard").touch()
        assert process.wait(20) == 0


# Stands for srun with ranks that leave a checkpoint: it passes on what srun passes on, and ends its step at all else. It starts
# nothing, so it says when it is up.
SRUN = """#!/bin/sh
trap 'if [ -e "$OUT/deaf" ]; then touch "$OUT/told"; else exit 75; fi' USR1
trap 'exit 9' TERM
trap ':' INT  # it only says how to abort
trap 'exit 1' HUP
touch "$OUT/up-srun"
while :; do sleep 0.02; done
"""


def srun(folder: Path) -> dict[str, str]:
    """The variables with which a launcher finds the stand-in."""
    path = folder / "bin" / "srun"
    path.parent.mkdir()
    path.write_text(SRUN)
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}", "OUT": str(folder)}


@pytest.mark.parametrize("launcher", ["gloo", "pmix"])
@pytest.mark.parametrize(
    ("number", "status", "outcome"),
    [
        (signal.SIGTERM, 75, "preempted"),
        (signal.SIGUSR1, 75, "preempted"),
        (signal.SIGINT, 130, "cancelled"),
        (signal.SIGHUP, 129, "cancelled"),
    ],
)
def test_srun_is_told_in_words_that_it_passes_on(
    tmp_path: Path, launcher: str, number: signal.Signals, status: int, outcome: str
) -> None:
    options = ("-n", 2, "--launcher", launcher, "--run-dir", tmp_path / "run")
    with started("-m", "hvdtrain.launch", *options, script(tmp_path, "pass"), **srun(tmp_path)) as process:
        assert eventually((tmp_path / "up-srun").exists)
        process.send_signal(number)
        assert process.wait(10) == status
    result = read_json(tmp_path / "run" / "result.json") or {}
    assert (result["status"], result["exit_code"]) == (outcome, status)


def test_who_presses_ctrl_c_again_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "deaf").touch()
    options = ("-n", 2, "--launcher", "gloo")
    with started("-m", "hvdtrain.launch", *options, script(tmp_path, "pass"), **srun(tmp_path)) as process:
        assert eventually((tmp_path / "up-srun").exists)
        process.send_signal(signal.SIGINT)
        assert eventually((tmp_path / "told").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130


def test_a_terminal_that_closes_tells_twice_and_is_not_impatient(tmp_path: Path) -> None:
    (tmp_path / "deaf").touch()
    options = ["-n", "2", "--launcher", "gloo", str(script(tmp_path, "pass"))]
    hurried = f"import sys\nfrom hvdtrain.launch import cli\ncli.STOP_SECONDS = 3\nsys.exit(cli.main({options}))"
    with started("-c", hurried, **srun(tmp_path)) as process:
        assert eventually((tmp_path / "up-srun").exists)
        process.send_signal(signal.SIGHUP)
        assert eventually((tmp_path / "told").exists)
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        assert process.wait(8) == 129


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_one_rank_that_does_not_end_in_time_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    job = script(tmp_path, "from hvdtrain import stop\nstop.install()\nstop.watch_always()\n" + WAITS)
    options = ["-n", "1", "--run-dir", str(tmp_path / "run"), str(job), str(tmp_path)]
    hurried = f"import sys\nfrom hvdtrain.launch import cli\ncli.STOP_SECONDS = 1\nsys.exit(cli.main({options}))"
    with started("-c", hurried) as process:
        assert eventually(lambda: bool(list(tmp_path.glob("up-*"))))
        process.send_signal(number)
        assert process.wait(5) == 128 + number
    assert (read_json(tmp_path / "run" / "result.json") or {})["status"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(("launcher", "ranks"), [("none", 1), ("mpirun", 2)])
def test_a_job_that_knows_nothing_of_stopping_is_cancelled_by_the_signal_that_came(
    tmp_path: Path, number: signal.Signals, launcher: str, ranks: int
) -> None:
    options = ("-n", ranks, "--launcher", launcher, "--run-dir", tmp_path / "run")
    with started("-m", "hvdtrain.launch", *options, script(tmp_path, WAITS), tmp_path) as process:
        assert eventually(lambda: len(list(tmp_path.glob("up-*"))) == ranks)
        process.send_signal(number)
        assert process.wait(10) == 128 + number
    result = read_json(tmp_path / "run" / "result.json") or {}
    assert (result["status"], result["reason"]) == ("cancelled", f"ended by signal {number.name}")
