"""One at a time in a folder. The lock belongs to open files, so a process that dies leaves none behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError

#: When a holder is killed outright the kernel ends what it has started, which may need a moment.
ORPHAN_SECONDS = 20.0
#: Who waits longer is told for what.
_SILENT_SECONDS = 2.0
_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class Locked(UserError):
    """Another process has the lock."""


class Lock(ABC):
    """The lock that is the file `path`, held until `close`. `descriptor` may be inherited by what the holder starts.

    What outlives its holder thus keeps the lock: nobody starts it a second time beside itself.

    Raises:
        Locked: another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire()
            self.describe()
        except BaseException:
            os.close(self.descriptor)
            raise

    def facts(self) -> dict[str, Any]:
        """Who holds it, for those who find it locked."""
        return {"pid": os.getpid(), "host": socket.gethostname()}

    @abstractmethod
    def refusal(self, holder: dict[str, Any], alive: bool) -> str:
        """What to say when `holder` (its `facts`) has it; not `alive`: what that has left behind."""

    def has_ended(self, holder: dict[str, Any]) -> bool:
        """Whether `holder` is known to be gone, whatever the file system says of its lock."""
        return False

    def describe(self, **facts: Any) -> None:
        """Write into the file who holds it, and `facts`."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps({**self.facts(), **facts}).encode(), 0)

    def release(self) -> None:
        """Let others have it: also from what inherited the descriptor."""
        with contextlib.suppress(OSError):  # where files cannot be locked, this one was not
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go. What inherited the descriptor keeps the lock."""
        os.close(self.descriptor)

    def _acquire(self) -> None:
        began, told = time.monotonic(), False
        while not try_lock(self.descriptor):
            holder = _holder(self.descriptor)
            if self.has_ended(holder):
                return
            waited = time.monotonic() - began
            if (alive := _alive(holder)) or waited > ORPHAN_SECONDS:
                raise Locked(self.refusal(holder, alive))
            if waited > _SILENT_SECONDS and not told:
                told = True
                who = f"process {holder.get('pid')} on {holder.get('host')}, which was killed,"
                print(f"note: waiting up to {ORPHAN_SECONDS:.0f} s for what {who} has left running", file=sys.stderr)
            time.sleep(0.1)


def try_lock(descriptor: int) -> bool:
    """Whether the file is locked now by this process, or cannot be locked at all."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some parallel file systems are mounted without locks; two starts at once are rarer than such mounts.
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
    """Whether the process that wrote `holder` lives; one on another machine is taken to."""
    if holder.get("host") != socket.gethostname():
        return bool(holder)
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
