"""A room to work in, and the command line in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from slurm_stand_in import Slurm
from submit_helpers import TOY, Submit, command, plain_environment

from hvdtrain.site import commands
from hvdtrain.submit import sbatch


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """An unpleasant folder to work in, with `toy.py` in it."""
    folder = tmp_path / 'it\'s a "$HOME" `x` room'
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    return folder


@pytest.fixture
def submit(room: Path) -> Submit:
    """Runs `python -m hvdtrain.submit --job toy.py ...` in the room."""

    def run(*arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("--job", "toy.py", *arguments),
            cwd=room,
            env=plain_environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """In a room of its own, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    found = Slurm()
    monkeypatch.setattr(commands, "present", lambda: False)
    monkeypatch.setattr(commands, "call", found.call)
    monkeypatch.setattr(sbatch, "_through_submitit", found.sbatch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return found
