"""The packed file on a node: who may write it, whether it is whole, room for it, and its name once it is done.

While it is written, a `.part` has the pixels of all rows, and behind them a checksum of each.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.data.alive import alive
from hvdtrain.data.folders import Tree
from hvdtrain.data.packing import SUM, Share, checksum

MORE_ROOM = "set HVDTRAIN_CACHE to a folder on the node with more room"
#: What `stat` counts a file's blocks in.
_BLOCK = 512


def try_lock(path: Path) -> Any:
    """The open file, locked; None where another run has it."""
    file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closing gives the lock back
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def intact(base: Path, tree: Tree, row: int) -> bool:
    """Whether a run before has packed `tree`, and nothing that it could not open can be opened now."""
    data, manifest = base.with_suffix(".u8"), base.with_suffix(".json")
    n = len(tree.files)
    try:
        known = json.loads(manifest.read_text(encoding="utf-8"))
        if data.stat().st_size != n * row:
            return False
        if any(_can_be_read(tree.root / tree.files[index]) for index in known.get("unopened", [])):
            return False
        rows = np.asarray(np.memmap(data, np.uint8, "r", shape=(n, row)))
        sums = np.empty(n, SUM)
        for index, pixels in enumerate(rows):
            sums[index] = checksum(pixels)
            alive("checking packed images")  # of a large file on a slow disk this takes long
        return str(known["xxh3"]) == _digest(sums)
    except (OSError, ValueError, KeyError):
        return False


def _can_be_read(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def _digest(sums: np.ndarray) -> str:
    """Of the whole file, from those of its rows: these can be taken by all ranks at once, while the pixels are at hand."""
    return f"{checksum(sums):016x}"


def prepare(base: Path, rows: int, row: int) -> str:
    """Make room for `rows` rows of `row` bytes, or say why not. For who has the lock."""
    try:
        # What an interrupted run left, and a file that is not whole, hold room that this one needs.
        for ending in (".part", ".json", ".u8"):
            base.with_suffix(ending).unlink(missing_ok=True)
        need, promised = rows * (row + SUM.itemsize), _promised(base)
        free = shutil.disk_usage(base.parent).free - promised
        if need > 0.95 * free:
            others = f" beside {promised / 1e9:.1f} GB for other runs that pack now" if promised else ""
            return (
                f"the packed images need {need / 1e9:.1f} GB, and {base.parent} has {max(free, 0) / 1e9:.1f} GB free{others}. "
                f"{MORE_ROOM[0].upper()}{MORE_ROOM[1:]}, or take a smaller --image-size"
            )
        with open(base.with_suffix(".part"), "wb") as file:
            file.truncate(need)
    except OSError as error:
        return _problem(base, error)
    return ""


def _promised(base: Path) -> int:
    """Bytes that other runs on this node have yet to write of files that they have begun; what dead ones left goes."""
    promised = 0
    for part in base.parent.glob("*.part"):
        if part.name.endswith(".json.part"):
            continue
        try:
            lock = try_lock(part.with_suffix(".lock"))
            if lock is not None:
                with lock:
                    part.unlink()
            else:
                status = part.stat()
                promised += max(0, status.st_size - status.st_blocks * _BLOCK)
        except OSError:  # finished meanwhile, or another user's
            continue
    return promised


def finish(base: Path, rows: int, row: int, shares: Sequence[Share]) -> str:
    """What the ranks of this node have decoded, under its name; or what kept it from that."""
    try:
        part = base.with_suffix(".part")
        sums = np.fromfile(part, SUM, rows, offset=rows * row)
        os.truncate(part, rows * row)
        os.replace(part, base.with_suffix(".u8"))
        bad = sorted(entry for share in shares for entry in share.bad)
        unopened = sorted(index for share in shares for index in share.unopened)
        content = {"xxh3": _digest(sums), "bad": bad, "unopened": unopened}
        aside = base.with_suffix(".json.part")
        aside.write_text(json.dumps(content), encoding="utf-8")
        os.replace(aside, base.with_suffix(".json"))
    except OSError as error:
        return _problem(base, error)
    return ""


def _problem(base: Path, error: OSError) -> str:
    return f"{base.parent}: {error.strerror or error}; {MORE_ROOM}"
