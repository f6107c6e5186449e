"""One submit at a time per study. The lock belongs to open files, so a process that dies leaves none behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError

NAME = ".lock"
#: When a submit is killed outright the kernel ends its cell, which may need a moment.
ORPHAN_SECONDS = 20.0
_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class StudyLock:
    """The lock of one study folder, held until `close`. `descriptor` may be inherited by a running cell.

    A cell that outlives its submit thus keeps the study locked: nobody starts it a second time beside itself.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire(folder)
            self.describe()
        except BaseException:
            self.close()
            raise

    def describe(self, group: int | None = None) -> None:
        """Write into the file who holds it, and the process group of the cell that runs."""
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "group": group}
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(facts).encode(), 0)

    def release(self) -> None:
        """Let others work on the study, before this process is done with it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go. A cell that inherited the descriptor keeps the lock."""
        os.close(self.descriptor)

    def __enter__(self) -> StudyLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _acquire(self, folder: Path) -> None:
        end = time.monotonic() + ORPHAN_SECONDS
        while not _try_lock(self.descriptor):
            holder = _holder(self.descriptor)
            if _alive(holder):
                raise UserError(
                    f"the study {folder} is in use by another submit "
                    f"(process {holder.get('pid')} on {holder.get('host')}); "
                    "wait for it, or give this one another --study"
                )
            if time.monotonic() > end:
                raise UserError(
                    f"a cell of the study {folder} still runs although its submit was killed; "
                    f"end it with: kill -- -{holder.get('group')}"
                )
            time.sleep(0.1)


def in_use(folder: Path) -> bool:
    """Whether somebody works on the study now."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no lock, or a study of somebody else: then it cannot be told
        return (folder / NAME).exists()
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some parallel file systems are mounted without locks; two submits at once are rarer than such mounts.
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _holder(descriptor: int) -> dict[str, Any]:
    with contextlib.suppress(ValueError):  # it may be about to be written
        facts = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
        if isinstance(facts, dict):
            return facts
    return {}


def _alive(holder: dict[str, Any]) -> bool:
    """Whether the submit that wrote `holder` lives; one on another machine is taken to."""
    if holder.get("host") != socket.gethostname():
        return bool(holder)
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
