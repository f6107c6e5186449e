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


@pytest.mark.parametrize("name", ["torch", "random.py", "sklearn", "hvdtrain", "__main__"])
def test_a_name_that_would_hide_a_module_is_refused(name: str, tmp_path: Path) -> None:
    """The folder of a job is where its imports are looked for first: random.py would be what PyTorch takes for Python's own."""
    with pytest.raises(UserError, match=r'"\w+" is a module that a job, or what it imports, may need'):
        new.write(name, "torch", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_lies_in_the_folder_itself_is_no_module_to_hide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard: images of flowers, say, beside flowers.py."""
    (tmp_path / "flowers").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert new.write("flowers", "torch", tmp_path).is_file()
    with pytest.raises(UserError, match="exists already"):
        new.write("flowers", "torch", tmp_path)
    for folder in ("birds", "jobs"):
        (tmp_path / folder).mkdir()
    assert new.write("birds", "torch", tmp_path / "jobs").is_file(), "nor is a folder of images elsewhere one"
    (tmp_path / "jobs/birds.py").unlink()
    (tmp_path / "birds/swan.py").touch()
    with pytest.raises(UserError, match="is a module that a job"):
        new.write("birds", "torch", tmp_path / "jobs")
