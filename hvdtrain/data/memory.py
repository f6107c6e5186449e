"""Memory for batches that is used again: the kernel takes five times as long to hand out fresh pages as it takes to fill them."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np


class Batches:
    """Arrays of up to a given size, in memory that comes back when nothing looks at them any more: no view, no tensor over them.

    Args:
        kept: how many blocks wait for use at most; the rest goes back to the system.
    """

    def __init__(self, kept: int = 32) -> None:
        self._free: deque[mmap.mmap] = deque(maxlen=kept)

    def empty(self, shape: Sequence[int]) -> np.ndarray:
        """Like numpy.empty, of bytes. Threads may call it side by side."""
        size = math.prod(shape)
        try:
            block = self._free.pop()
        except IndexError:
            block = mmap.mmap(-1, max(1, size))
        if len(block) < size:
            block = mmap.mmap(-1, size)
        # Every view of this array keeps it alive: numpy would follow it to what it is a view of only if that were an array too.
        array: np.ndarray = np.ndarray(shape, np.uint8, buffer=block)
        weakref.finalize(array, self._free.append, block).atexit = False
        return array
