"""The command line answers at once, because it imports nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from submit_helpers import command, plain_environment

from tests.yardstick import assert_within, wall_seconds

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


def test_help(room: Path) -> None:
    assert_within(0.4, lambda: wall_seconds(command("--help"), cwd=room, env=plain_environment()))


def test_dry_run_of_64_cells(room: Path) -> None:
    grid = ["--job", "toy.py", "--gpus", "2,3,4,5", "--lr-rule", "linear,sqrt", "--seeds", "8", "--dry-run"]
    assert_within(1.0, lambda: wall_seconds(command(*grid), cwd=room, env=plain_environment()))
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
