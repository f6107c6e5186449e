"""Decodes a share of a tree into the packed file, in threads: decoders work outside of Python's lock, and a thread starts at once.

(Processes would each take a third of a second to start, in which a core decodes a thousand images; a fork would not survive MPI.)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hvdtrain.data.alive import alive
from hvdtrain.data.memory import Batches
from hvdtrain.errors import UserError

try:
    import xxhash

    from hvdtrain.data.decode import Unopened, Unreadable, decode
except ImportError as error:
    raise UserError(f"images are packed with Pillow and xxhash: {error}. Type: pip install 'hvdtrain[data]'") from None

#: Images that are decoded and written together: few writes, of pixels that are still in the core's cache.
CHUNK = 8
#: A checksum in the file.
SUM = np.dtype(np.uint64)


@dataclass
class Share:
    """What came of some files; every rank is told of every other's, so it is small.

    Attributes:
        bad: rows that could not be read, each with the reason; their pixels are black.
        unopened: those among them that nobody has looked into.
    """

    bad: list[tuple[int, str]] = field(default_factory=list)
    unopened: list[int] = field(default_factory=list)


def chunks(n: int, part: int, parts: int) -> Iterator[range]:
    """Rows of the chunks that one of `parts` ranks decodes."""
    for begin in range(part * CHUNK, n, parts * CHUNK):
        yield range(begin, min(begin + CHUNK, n))


def decode_files(
    paths: Sequence[Path],
    rows: Iterable[range],
    size: int,
    target: Path,
    threads: int,
    progress: Callable[[int], None],
) -> Share:
    """Decode the files of `rows` into their rows of `target`, and the checksum of each into its place behind all rows.

    Args:
        paths: of all rows.
        rows: disjoint ranges.
        size: edge in pixels.
        target: of at least len(paths) * (size * size * 3 + SUM.itemsize) bytes.
        threads: how many decode.
        progress: called about once a second with the number of files done.

    Raises:
        OSError: `target` cannot be written.
    """
    rows, sums = list(rows), np.empty(len(paths), SUM)
    share, memory, done = Share(), Batches(), 0
    with open(target, "r+b", buffering=0) as file, ThreadPoolExecutor(threads) as pool:
        running = {pool.submit(_decode_chunk, paths, chunk, file.fileno(), memory, size, share, sums) for chunk in rows}
        try:
            while running:
                ended, running = wait(running, timeout=1.0, return_when=FIRST_EXCEPTION)
                done += sum(each.result() for each in ended)
                progress(done)
        finally:
            pool.shutdown(cancel_futures=True)
        # Not by the threads, of which only one at a time may write to a file.
        for chunk in rows:
            place = len(paths) * size * size * 3 + chunk.start * SUM.itemsize
            _write(file.fileno(), sums[chunk.start : chunk.stop], place)
    share.bad.sort()
    return share


def _decode_chunk(
    paths: Sequence[Path], rows: range, file: int, memory: Batches, size: int, share: Share, sums: np.ndarray
) -> int:
    pixels = memory.empty((len(rows), size, size, 3))
    for row, out in zip(rows, pixels, strict=True):
        try:
            decode(paths[row], size, out)
        except Unreadable as error:
            out[...] = 0
            share.bad.append((row, str(error)))
            if isinstance(error, Unopened):
                share.unopened.append(row)
        sums[row] = checksum(out)
    _write(file, pixels, rows.start * size * size * 3)
    return len(rows)


def _write(file: int, data: np.ndarray, offset: int) -> None:
    left = data.reshape(-1).view(np.uint8).data
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


def checksum(data: np.ndarray) -> int:
    """64 bits that change when any byte of `data` does; contiguous."""
    return xxhash.xxh3_64_intdigest(data.data)


class Progress:
    """A line on stderr every few seconds, of a rate that the user can wait by."""

    def __init__(self, total: int, shown: bool) -> None:
        self._total, self._shown = total, shown
        self._began = self._last = time.monotonic()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        alive()
        if self._shown and now - self._last >= 2:
            self._last = now
            rate = done / (now - self._began)
            print(
                f"hvdtrain: packing images: {done / self._total:.0%}, {rate:.0f} images/s", file=sys.stderr, flush=True
            )
