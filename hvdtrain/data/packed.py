"""Decode once: every image of a tree as pixels of one size, in a file on the node that all its ranks map into memory.

    packed = pack(tree, 224, world, gather_objects)
    packed.images[indices]                       # uint8, shape (k, 224, 224, 3): no decoding, no copy of the whole

The file is kept, named after the tree and the size, for other runs and the other cells of a study on this node. It is written aside
by all ranks of the node at once, then renamed; a checksum tells whether it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.data.alive import alive
from hvdtrain.data.folders import Tree
from hvdtrain.data.memory import Batches
from hvdtrain.data.packed_file import MORE_ROOM, finish, intact, prepare, try_lock
from hvdtrain.data.packing import Progress, Share, chunks, decode_files
from hvdtrain.errors import UserError, agreed, printable
from hvdtrain.world import World

Gather = Callable[[Any], list[Any]]
_VERSION = 2
#: Between two looks whether another run has let go of a node's cache.
_RETRY_SECONDS = (0.5, 2.0)


@dataclass(frozen=True)
class Packed:
    """Attributes:
    images: uint8, shape (n, size, size, 3), mapped read-only.
    labels: int64, shape (n,).
    classes: names of the classes.
    good: indices of images that could be read; the other rows are black.
    bad: files that could not, each with the reason.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    good: np.ndarray
    bad: tuple[tuple[str, str], ...]


class Rows:
    """Some rows of an array of bytes, for loaders: `rows[indices]` reads only those."""

    def __init__(self, array: np.ndarray, rows: np.ndarray) -> None:
        # A plain array over the same memory: numpy.memmap does bookkeeping each time that it is indexed.
        self._array, self._rows = np.asarray(array), rows
        self.shape, self.dtype = (len(rows), *array.shape[1:]), array.dtype
        self._memory = Batches()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = self._rows[index]
        if np.ndim(rows) != 1:
            return np.array(self._array[rows])
        # "clip" lets numpy write straight to `out`; every number in `rows` is one of a row.
        return np.take(self._array, rows, axis=0, out=self.empty(len(rows)), mode="clip")

    def empty(self, n: int) -> np.ndarray:
        """Memory for `n` rows."""
        return self._memory.empty((n, *self.shape[1:]))

    def view(self, index: int) -> np.ndarray:
        """One row, not copied; read-only where the array is."""
        row: np.ndarray = self._array[self._rows[index]]
        return row


def pack(tree: Tree, size: int, place: World, gather: Gather, *, max_bad: int | None = None) -> Packed:
    """The pixels of `tree`; decoded by all ranks of each node unless a run before has done it. All ranks must call it.

    Args:
        size: edge in pixels.
        place: this rank's.
        gather: gives every rank what each rank passed to it.
        max_bad: files that may be unreadable; default: one in a hundred, at least ten.

    Raises:
        UserError: too many unreadable files, or no other (the first ten are named), or no room; on all ranks alike.
    """
    legal = max(10, len(tree.files) // 100) if max_bad is None else max_bad
    _same_everywhere(tree, place, gather)
    rows, row = len(tree.files), size * size * 3
    base = cache_folder() / place.node / f"{tree.key}-{size}-v{_VERSION}"
    leader = place.local_rank == 0
    lock = _lock(base.with_suffix(".lock"), leader, place, gather)
    try:
        # A node that has the file waits for those that have not.
        whole = leader and intact(base, tree, row)
        problem = prepare(base, rows, row) if leader and not whole else ""
        told = gather((place.node, leader, whole, problem))
        _raise_any(each[3] for each in told)
        have = next(each[2] for each in told if each[0] == place.node and each[1])
        share, problem = (Share(), "") if have else _decode_share(tree, size, base.with_suffix(".part"), place)
        shares = gather((place.node, share, problem))
        _raise_any(each[2] for each in shares)
        if leader and not have:
            problem = finish(base, rows, row, [each[1] for each in shares if each[0] == place.node])
        _raise_any(gather(problem))
        manifest = json.loads(base.with_suffix(".json").read_text(encoding="utf-8"))
        images = np.memmap(base.with_suffix(".u8"), np.uint8, "r", shape=(rows, size, size, 3))
        # What one node cannot read the others leave out too, or ranks would share out different data. The lock is kept until all
        # have told: another run that finds fault with the files may then take them away.
        told_bad = gather(manifest["bad"] if leader else [])
    finally:
        if lock is not None:
            # Not there when all went well. What cannot be removed now is removed by the next run.
            with contextlib.suppress(OSError):
                base.with_suffix(".part").unlink()
            lock.close()
    bad = dict(sorted(tuple(entry) for each in told_bad for entry in each))
    bad_files = tuple((tree.files[index], reason) for index, reason in bad.items())
    _report(tree, bad_files, legal, place)
    good = np.setdiff1d(np.arange(rows), list(bad))
    return Packed(images, tree.labels, tree.classes, good, bad_files)


def _same_everywhere(tree: Tree, place: World, gather: Gather) -> None:
    """Raise UserError on all ranks where a node has other files, as copies on local disks may be."""
    names = hashlib.sha256(json.dumps([tree.classes, tree.files]).encode()).hexdigest()
    told = gather((names, place.node, len(tree.files), len(tree.classes)))
    other = next((each for each in told if each[0] != told[0][0]), None)
    if other is not None:
        described = " and ".join(
            f"{files} images of {classes} classes on {node}" for _, node, files, classes in (told[0], other)
        )
        raise agreed(
            UserError(f"{tree.root} is not the same on all nodes: {described}, or other names. Copy it there anew")
        )


def cache_folder() -> Path:
    """On this node: $HVDTRAIN_CACHE, else the job's own scratch ($SLURM_TMPDIR, $TMPDIR), else the system's."""
    given = os.environ.get("HVDTRAIN_CACHE")
    if given:
        return Path(given).expanduser()
    scratch = os.environ.get("SLURM_TMPDIR", "")
    # In a container the variable is there and, unless the site mounts it, the folder is not.
    return Path(scratch if os.path.isdir(scratch) else tempfile.gettempdir()) / f"hvdtrain-{os.getuid()}"


def _lock(path: Path, leader: bool, place: World, gather: Gather) -> Any:
    """This node's cache for this run alone, on all nodes or on none: or of two runs each may have a node that the other waits for.

    Returns:
        The leader's open file, which gives the lock back when it is closed; None for others.

    Raises:
        UserError: there can be no cache on some node.
    """
    said: list[str] = []
    while True:
        file, problem = None, ""
        if leader:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = try_lock(path)
            except OSError as error:
                problem = f"{path.parent}: {error.strerror}; set HVDTRAIN_CACHE to a folder on the node's own disk"
        told = gather((place.node, leader and file is None, problem))
        taken = sorted({node for node, failed, _ in told if failed})
        if file is not None and taken:
            file.close()
        _raise_any(each[2] for each in told)
        if not taken:
            return file
        if place.rank == 0 and taken != said:
            print(f"hvdtrain: another run packs images on {', '.join(taken)}; waiting", file=sys.stderr, flush=True)
            said = taken
        alive()
        # Not in step with the other run, and without drawing from the generators of the training.
        time.sleep(random.SystemRandom().uniform(*_RETRY_SECONDS))


def _decode_share(tree: Tree, size: int, part: Path, place: World) -> tuple[Share, str]:
    """This rank's images, in threads: one for each core that it may use; and what kept them from being written."""
    rows = list(chunks(len(tree.files), place.local_rank, place.local_size))
    progress = Progress(sum(map(len, rows)), shown=place.rank == 0)
    try:
        return decode_files([tree.root / name for name in tree.files], rows, size, part, cores_of(place), progress), ""
    except OSError as error:
        return Share(), f"{part}: {error.strerror}; {MORE_ROOM}"


def cores_of(place: World) -> int:
    """How many cores this rank may use; those that ranks of its node share are shared out."""
    return max(1, len(os.sched_getaffinity(0)) // _sharers(place))


def _sharers(place: World) -> int:
    """Ranks of this node that share the same cores: those that are not bound to their own."""
    return place.local_size if len(os.sched_getaffinity(0)) >= (os.cpu_count() or 1) else 1


def _raise_any(problems: Iterable[str]) -> None:
    found = next((problem for problem in problems if problem), "")
    if found:
        raise agreed(UserError(found))


def _report(tree: Tree, bad: tuple[tuple[str, str], ...], legal: int, place: World) -> None:
    """The same on every rank, from the manifest."""
    named = "".join(printable(f"\n  {name}: {reason}") for name, reason in bad[:10])
    more = f"\n  and {len(bad) - 10} more" if len(bad) > 10 else ""
    if len(bad) > legal or len(bad) == len(tree.files):
        may = f"; {legal} may be (--max-bad)" if len(bad) > legal else ""
        raise agreed(
            UserError(f"{len(bad)} of {len(tree.files)} images in {tree.root} cannot be read{may}:{named}{more}")
        )
    if place.rank == 0:
        if tree.empty:
            print(
                f"hvdtrain: {len(tree.empty)} of {len(tree.classes)} classes have no image: {_first(tree.empty)}",
                flush=True,
            )
        if tree.strangers:
            print(
                f"hvdtrain: {len(tree.strangers)} files are no images by their names, such as {printable(tree.strangers[0])}",
                flush=True,
            )
        if bad:
            print(
                f"hvdtrain: {len(bad)} of {len(tree.files)} images cannot be read and are left out:{named}{more}",
                flush=True,
            )
        if lost := _without_good(tree, bad):
            print(
                f"hvdtrain: {len(lost)} of {len(tree.classes)} classes have none that can be read: {_first(lost)}",
                flush=True,
            )


def _without_good(tree: Tree, bad: tuple[tuple[str, str], ...]) -> list[str]:
    """Classes of which no image can be read, though they have some."""
    unreadable = {name for name, _ in bad}
    good = {label for name, label in zip(tree.files, tree.labels.tolist(), strict=True) if name not in unreadable}
    return [name for label, name in enumerate(tree.classes) if label not in good and name not in tree.empty]


def _first(names: Sequence[str]) -> str:
    return printable(", ".join(names[:10])) + (", ..." if len(names) > 10 else "")
