"""Memory for batches that is used again: the kernel takes five times as long to hand out fresh pages as it takes to fill them."""

from __future__ import annotations

import math
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
        self._free: deque[np.ndarray] = deque(maxlen=kept)

    def empty(self, shape: Sequence[int]) -> np.ndarray:
        """Like numpy.empty, of bytes. Threads may call it side by side."""
        size = math.prod(shape)
        try:
            block = self._free.pop()
        except IndexError:
            block = np.empty(size, np.uint8)
        if len(block) < size:
            block = np.empty(size, np.uint8)
        # A new array over the block's memory, not a view of the block: views of views are views of this one, and keep it alive.
        array: np.ndarray = np.ndarray(shape, np.uint8, buffer=block.data)
        weakref.finalize(array, self._free.append, block).atexit = False
        return array
