"""Where a study comes from: code and versions. Nothing heavy is imported to find out."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hvdtrain

_PACKAGES = ("torch", "tensorflow", "keras", "horovod", "numpy")
_GIT_SECONDS = 20.0


def versions() -> dict[str, str | None]:
    """Versions of Python, this package and the frameworks; None for what is not installed."""
    return {
        "python": platform.python_version(),
        "hvdtrain": hvdtrain.__version__,
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def code(job: Path) -> dict[str, dict[str, Any] | None]:
    """The git commit behind the job and behind this package; None outside a repository.

    `dirty` is true when tracked files differ from that commit, or the file itself is not in it.
    """
    package = commit(Path(hvdtrain.__file__))
    # A virtual environment inside somebody's repository does not make this package part of it.
    return {"job": commit(job), "hvdtrain": package if package and package["tracked"] else None}


def commit(file: Path) -> dict[str, Any] | None:
    """The commit that is checked out around `file`, whether it is dirty, and whether `file` is tracked."""
    head = _git(file.parent, "rev-parse", "HEAD")
    if head is None:
        return None
    tracked = _git(file.parent, "ls-files", "--error-unmatch", "--", str(file)) is not None
    changed = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": head, "dirty": bool(changed) or not tracked, "tracked": tracked}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None when it refuses: no repository, no commit yet, no git."""
    program = shutil.which("git")
    if program is None:
        return None
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # looking must not touch the user's index
    try:
        answer = subprocess.run(
            [program, "-C", str(folder), *arguments],
            env=environ,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
