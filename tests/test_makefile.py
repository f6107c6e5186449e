"""`make demo` on a machine whose Python is too old, or brings no venv."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Stands in for an interpreter: what it is told goes into `calls`.
INTERPRETER = '#!/bin/sh\necho "$*" >> {folder}/calls\n'


def make(folder: Path, target: str, python: str) -> subprocess.CompletedProcess[str]:
    """What `make` says of a file in the environment, with such a script as PYTHON."""
    interpreter = folder / "python"
    interpreter.write_text(INTERPRETER.format(folder=folder) + python)
    interpreter.chmod(0o755)
    venv = folder / "venv"
    command = ["make", "--no-print-directory", f"VENV={venv}", f"PYTHON={interpreter}", f"{venv}/bin/{target}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("python", ['test "$1" != -c', "exit 127"])
def test_a_python_that_is_too_old_makes_no_environment(tmp_path: Path, python: str) -> None:
    done = make(tmp_path, "python", python)
    assert done.returncode == 2
    assert "needs Python 3.10 or newer; name one: make demo PYTHON=python3.11" in done.stdout
    assert "venv" not in (tmp_path / "calls").read_text()


def test_half_an_environment_is_made_again(tmp_path: Path) -> None:
    """Debian without python3-venv leaves an interpreter that has no pip."""
    half = f'if [ "$1" = -m ]; then mkdir -p {tmp_path}/venv/bin; touch {tmp_path}/venv/bin/python; exit 1; fi'
    assert make(tmp_path, "python", half).returncode == 2
    assert make(tmp_path, "python", "exit 0").returncode == 0
    assert (tmp_path / "calls").read_text().count("-m venv") == 2


def test_an_old_environment_says_how_to_be_rid_of_it(tmp_path: Path) -> None:
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text("#!/bin/sh\nexit 1\n")
    (binaries / "python").chmod(0o755)
    done = make(tmp_path, ".torch", "exit 1")
    assert done.returncode == 2
    assert f"make clean VENV={tmp_path}/venv, then make demo PYTHON=python3.11" in done.stdout
