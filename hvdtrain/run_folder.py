"""Whose a run folder is: two starts that train in one would mix their records and break each other's checkpoints."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain import attempts
from hvdtrain.errors import UserError
from hvdtrain.lock import Lock
from hvdtrain.paths import make_folder, same

#: The run folder that a process above this one, a launcher or a batch script, has made ready and minds.
HELD_VARIABLE = "HVDTRAIN_HELD_DIR"
#: In which SLURM job that process is: sbatch hands all variables on to a job that only begins then.
_HELD_IN_VARIABLE = "HVDTRAIN_HELD_IN"
#: Not the name of a study's lock: whatever folder has that is taken for a study.
_NAME = ".run.lock"


class RunLock(Lock):
    """The lock of one run folder, for the process that starts ranks in it, or for a rank 0 that nobody of ours has started."""

    def __init__(self, folder: Path, elsewhere: str) -> None:
        self._folder = folder
        self._elsewhere = elsewhere
        super().__init__(folder / _NAME)

    def facts(self) -> dict[str, Any]:
        """Who holds it, and in which start of which SLURM job."""
        return {**super().facts(), "job": os.environ.get("SLURM_JOB_ID"), "restart": _restart()}

    def refusal(self, holder: dict[str, Any], alive: bool) -> str:
        """Who works there, or what still does."""
        who = f"process {holder.get('pid')} on {holder.get('host')}"
        if not alive:
            return (
                f"ranks still work in {self._folder} although what started them ({who}) was killed; "
                f"wait for them or end them, or give another {self._elsewhere}"
            )
        return (
            f"another training works in {self._folder} ({who}); wait for it or end it, or give another {self._elsewhere} "
            f"(if that machine is gone, remove {self.path})"
        )

    def has_ended(self, holder: dict[str, Any]) -> bool:
        """SLURM starts a job again only after it has ended it; of a node that died, a file server may keep the lock."""
        job = holder.get("job")
        return job is not None and job == os.environ.get("SLURM_JOB_ID") and holder.get("restart", 0) < _restart()

    def close(self) -> None:
        """Let go at the end, whatever a job may have left running with our descriptor."""
        self.release()
        super().close()


def _restart() -> int:
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def holding(folder: Path) -> dict[str, str]:
    """The variables that tell what this process starts that it minds the run folder `folder`."""
    return {HELD_VARIABLE: str(folder), _HELD_IN_VARIABLE: os.environ.get("SLURM_JOB_ID", "")}


def _is_held(folder: Path) -> bool:
    held = os.environ.get(HELD_VARIABLE)
    if not held or not same(Path(held), folder):
        return False
    theirs, ours = os.environ.get(_HELD_IN_VARIABLE), os.environ.get("SLURM_JOB_ID")
    # A launcher outside of any job has srun make one, and a container may hide it.
    return not theirs or not ours or theirs == ours


def take(folder: Path) -> RunLock | None:
    """Make `folder` ready for a start and hold it until the lock is closed; None when a process above this one does.

    What an earlier start left is set aside.

    Raises:
        UserError: another start works in it, or it is no folder that one could write to.
    """
    try:
        return hold(folder, "--run-dir")
    except OSError as error:
        where = "" if error.filename in (None, str(folder)) else f"{error.filename}: "
        raise UserError(
            f"the run folder {folder} cannot be written: {where}{error.strerror}; give another place"
        ) from None


def hold(folder: Path, elsewhere: str) -> RunLock | None:
    """As `take`, for whoever has words of its own for an OSError. `elsewhere` is the option by which a user gives another place.

    Raises:
        Locked: another start works in it.
    """
    if _is_held(folder):
        return None
    make_folder(folder, "the run folder")
    lock = RunLock(folder, elsewhere)
    try:
        attempts.set_aside(folder)
    except BaseException:
        lock.close()
        raise
    return lock


@contextlib.contextmanager
def held_if_free(folder: Path) -> Iterator[None]:
    """Hold `folder`, so that a start by hand is refused there meanwhile. No lock keeps us out.

    For a batch job: a file server may keep the lock of a node that died, and nobody may be there to remove it.
    """
    lock = None
    try:
        lock = RunLock(folder, "--run-dir")
    except (UserError, OSError) as error:
        print(f"warning: {error}; this job starts all the same", file=sys.stderr)
    with contextlib.closing(lock) if lock is not None else contextlib.nullcontext():
        yield
