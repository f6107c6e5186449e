"""A folder of checkpoints for each training of a process: two in one would go on from each other's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from hvdtrain import record

#: Folders that this process has given out, and what makes the training that has one the same when it asks again.
_given: dict[Path, tuple[weakref.ref[object], ...]] = {}


def place(asked: Path | str | Literal[False] | None) -> Path | None:
    """Where checkpoints are to go. None: beside the records, when there are any. False: nowhere."""
    if asked is False:
        return None
    run = record.run_dir()
    return Path(asked) if asked is not None else run / "checkpoints" if run is not None else None


def own_folder(asked: Path, say: Callable[[str], None], *training: object, number: int = 1) -> Path:
    """`asked`, or the first of `asked`-2, `asked`-3, ... that no other training of this process has.

    A script that is started again asks in the same order as before, and so finds what it has saved.

    Args:
        say: is told when another training has `asked`.
        training: objects that the same training gives when it asks again, as its optimizer; none: each call is another's.
        number: where to begin, as 2 for `asked`-2.
    """
    mine = tuple(weakref.ref(each) for each in training if each is not None)
    first = folder = _numbered(asked, number)
    while (place := folder.resolve()) in _given and not (mine and _given[place] == mine):
        number += 1
        folder = _numbered(asked, number)
    if folder != first:
        say(f"checkpoints go to {folder}, for another training of this process has {first}")
    _given[place] = mine
    return folder


def left_behind(asked: Path | None, folder: Path | None) -> str:
    """What to tell a loop that found nothing in its `folder`, when it `asked` for one that holds another training's checkpoints."""
    if asked is None or folder is None or folder == asked or not any(asked.glob("*.json")):
        return ""
    return (
        f"nothing is saved in {folder}, so this training begins with the model as it is. {asked} belongs to another training of "
        "this process, with an optimizer or loader of its own; to go on from there, give those of that training, or start a process"
    )


def _numbered(folder: Path, number: int) -> Path:
    return folder if number == 1 else Path(f"{folder}-{number}")
