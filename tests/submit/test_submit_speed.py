"""The command line answers at once, because it imports nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from submit_helpers import command, plain_environment

pytestmark = pytest.mark.alone

HEAVY = (
    "torch",
    "tensorflow",
    "horovod",
    "numpy",
    "pandas",
    "pydantic",
    "rich",
    "submitit",
    "psutil",
    "scipy",
    "matplotlib",
)


def seconds(arguments: list[str], folder: Path) -> float:
    """The best of a few tries: the others tell how busy the machine is."""
    tries = []
    for _ in range(5):
        began = time.monotonic()
        done = subprocess.run(arguments, cwd=folder, env=plain_environment(), capture_output=True, check=False)
        tries.append(time.monotonic() - began)
        assert done.returncode == 0
    return min(tries)


def interpreter(folder: Path) -> float:
    """What starting Python takes here and now; on a quiet machine about 0.02 s."""
    return seconds([sys.executable, "-c", "pass"], folder)


def test_help(room: Path) -> None:
    assert seconds(command("--help"), room) < 0.4 + 2 * interpreter(room)


def test_dry_run_of_64_cells(room: Path) -> None:
    grid = ["--job", "toy.py", "--gpus", "2,3,4,5", "--lr-rule", "linear,sqrt", "--seeds", "8", "--dry-run"]
    assert seconds(command(*grid), room) < 1.0 + 2 * interpreter(room)
    printed = subprocess.run(
        command(*grid), cwd=room, env=plain_environment(), capture_output=True, text=True, check=True
    )
    assert printed.stdout.count("#### ") == 64


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "hvdtrain.submit", "--help"],
        ["-m", "hvdtrain.submit", "--job", "toy.py", "--gpus", "2,4", "--dry-run"],
        ["-m", "hvdtrain", "--help"],
        ["-m", "hvdtrain", "status", "--help"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(room: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=room,
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "argparse" in imported, "the list of imports must be there to be looked at"
    assert not imported & set(HEAVY)
