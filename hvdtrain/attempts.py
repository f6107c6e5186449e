"""Attempts at one run: what an ended one left is kept, and what the next one goes on from is known."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from hvdtrain.json_file import read_json, write_json

#: What an attempt leaves that the next one must not find.
_RESULTS = ("running.json", "result.json")
#: What an attempt has while it is under way.
_BEGUN = ("running.json", "slurm.json")
_ELSEWHERE = "checkpoints.json"
#: Names of manifests among other files of the user's.
MANIFESTS = "[0-9]*-epoch-*-step-*.json"


def count(folder: Path) -> int:
    """How many earlier attempts left their records in the run folder `folder`."""
    return len(_numbers(folder))


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in (folder / "attempts").glob("[0-9]*")]


def last_sign(folder: Path) -> float | None:
    """When the attempt in the run folder `folder` wrote something for the last time: Unix time, as the file system has it.

    None where nothing says that one has begun.
    """
    begun = [path for name in _BEGUN if (path := folder / name).exists()]
    times = []
    for path in [*begun, folder / "epochs.jsonl", *folder.glob("log/*")] if begun else ():
        with contextlib.suppress(FileNotFoundError):  # the next attempt may just set it aside
            times.append(path.stat().st_mtime)
    return max(times, default=None)


def checkpoints(folder: Path) -> list[Path]:
    """The manifests of all checkpoints of the run in `folder`, wherever they are."""
    elsewhere = (read_json(folder / _ELSEWHERE) or {}).get("folders", [])
    found = {path for each in elsewhere for path in (folder / each).glob(MANIFESTS)}
    return sorted(found | set(folder.glob("checkpoints*/*.json")))


def note_checkpoints(folder: Path, where: Path) -> None:
    """Note in the run folder `folder` that its checkpoints are in `where`, unless that is where they are looked for anyway."""
    folder, where = folder.resolve(), where.resolve()
    if where.parent == folder and where.name.startswith("checkpoints"):
        return
    # A study may be moved, with what is in it.
    text = str(where.relative_to(folder) if where.is_relative_to(folder) else where)
    noted = (read_json(folder / _ELSEWHERE) or {}).get("folders", [])
    if text not in noted:
        write_json(folder / _ELSEWHERE, {"folders": [*noted, text]})


def set_aside(folder: Path) -> Path | None:
    """Move what an ended attempt left to `attempts/<n>/`, so that the next one starts clean and nothing is lost.

    Where there are checkpoints the next attempt goes on from one of them, so the epochs up to there stay too.

    Returns:
        The folder it is in now; None when there was nothing to move.
    """
    ended = [path for name in _RESULTS if (path := folder / name).exists()]
    epochs = folder / "epochs.jsonl"
    resumable = bool(checkpoints(folder))
    if not ended and (resumable or not epochs.exists()):
        return None
    target = folder / "attempts" / str(1 + max(_numbers(folder), default=0))
    target.mkdir(parents=True)
    if epochs.exists():
        if resumable:
            shutil.copy2(epochs, target / epochs.name)
        else:
            os.replace(epochs, target / epochs.name)
    for path in ended:
        os.replace(path, target / path.name)
    return target


def put_back(folder: Path, aside: Path | None) -> None:
    """Undo `set_aside`, which returned `aside`, when there is no next attempt after all.

    An attempt that began all the same keeps the place.
    """
    if aside is None or any((folder / name).exists() for name in _RESULTS):
        return
    for path in aside.iterdir():
        os.replace(path, folder / path.name)
    aside.rmdir()
    with contextlib.suppress(OSError):  # others are there
        aside.parent.rmdir()
