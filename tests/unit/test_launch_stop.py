"""`python -m hvdtrain.launch` that is told to end: which signals it heeds, what its launchers are told, and what it says then."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

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
