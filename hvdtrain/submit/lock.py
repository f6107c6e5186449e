"""One submit at a time per study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hvdtrain.lock import Lock, try_lock

NAME = ".lock"


class StudyLock(Lock):
    """The lock of one study folder, held until `close`. `descriptor` may be inherited by a running cell.

    A cell that outlives its submit thus keeps the study locked: nobody starts it a second time beside itself.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__(folder / NAME)

    def refusal(self, holder: dict[str, Any], alive: bool) -> str:
        """Who works on the study, and how to end a cell that nobody minds."""
        if not alive:
            return (
                f"a cell of the study {self._folder} still runs although its submit was killed; "
                f"end it with: kill -- -{holder.get('group')}"
            )
        return (
            f"the study {self._folder} is in use by another submit (process {holder.get('pid')} on {holder.get('host')}); "
            "wait for it, or give this one another --study"
        )

    def __enter__(self) -> StudyLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def in_use(folder: Path) -> bool:
    """Whether somebody works on the study now."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no lock, or a study of somebody else: then it cannot be told
        return (folder / NAME).exists()
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)
