"""`hvdtrain new` writes a job that runs at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain import new
from hvdtrain.errors import UserError


@pytest.mark.ranks
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_new_job_trains_with_one_and_two_ranks(framework: str, tmp_path: Path) -> None:
    commands = (
        ("new", "mine", "--framework", framework),
        ("submit", "--job", "mine.py", "--gpus", "1,2", "--epochs", "6", "--wait"),
    )
    for command in commands:
        ended = subprocess.run(
            [sys.executable, "-m", "hvdtrain", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    for cell in ("n1", "n2"):
        lines = (tmp_path / "runs" / "mine" / cell / "epochs.jsonl").read_text().splitlines()
        assert len(lines) == 6
        assert json.loads(lines[-1])["val_acc"] > 0.9


def test_nothing_is_overwritten_and_names_are_names(tmp_path: Path) -> None:
    path = new.write("mine.py", "torch", tmp_path)
    path.write_text("changed")
    with pytest.raises(UserError, match="exists already; nothing was written"):
        new.write("mine", "keras", tmp_path)
    assert path.read_text() == "changed"
    with pytest.raises(UserError, match="is no name for a job"):
        new.write("../mine", "torch", tmp_path)
    with pytest.raises(UserError, match="is a job of hvdtrain already"):
        new.write("digits", "torch", tmp_path)
