"""Where the jobs are: beside the package in a clone, inside it in an installed wheel; whether two paths are one; new folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hvdtrain.errors import UserError, nearest

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder (or file) `name` of this project: `jobs`, `slurm`, `constraints.txt`."""
    in_clone = _PACKAGE.parent / name
    # An installed package has site-packages above it, which may hold anybody's "jobs".
    if (_PACKAGE.parent / "pyproject.toml").is_file() and in_clone.exists():
        return in_clone
    return _PACKAGE / "shipped" / name


def same(one: Path, other: Path) -> bool:
    """Whether both are one folder or file, be it through links or through two mounts; of what is not there, by its path."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one.resolve() == other.resolve()


def make_folder(folder: Path, what: str) -> None:
    """Make `folder`, which is `what`, unless it is there.

    Raises:
        UserError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reasons = {errno.EEXIST: "it is a file", errno.ENOTDIR: "a part of its path is a file"}
        why = reasons.get(error.errno or 0, error.strerror)
        raise UserError(f"{what} {folder} cannot be made: {why}; give another place") from None


def job_names() -> list[str]:
    """Names of the jobs that come with the project, as `--job` takes them."""
    return sorted(path.stem for path in shipped("jobs").glob("*.py") if not path.stem.startswith("_"))


def find_job(job: str) -> Path:
    """The file behind `--job`: one of the project's names, or a path ending in `.py`.

    Raises:
        UserError: there is no such job; the message lists the legal names and the nearest.
    """
    if job.endswith(".py"):
        path = Path(job).expanduser()
        if path.is_file():
            return path.resolve()
        raise UserError(f'job file "{job}" does not exist (looked in {Path.cwd()}); give the path of a Python file')
    if job in job_names():
        return shipped("jobs") / f"{job}.py"
    names = ", ".join(job_names())
    raise UserError(
        f'no job "{job}"; the jobs are {names}, or give the path of your own file.py{nearest(job, job_names())}'
    )
