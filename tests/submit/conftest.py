"""A room to work in, and the command line in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from submit_helpers import TOY, Submit, command, plain_environment


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
