"""Batches made by threads before they are asked for.

Keras has threads for that too, but takes a tenth of a second to stop them after each epoch, and does not know of epochs that go on
in their middle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: Epoch, samples of it that are left out, and step.
Key = tuple[int, int, int]


class Ahead:
    """Makes the batch that is asked for, and meanwhile those that follow it in the same epoch.

    Args:
        make: the batch of a key; called by several threads.
        threads: how many.
        depth: batches that are made or wait at any time, at most.
    """

    def __init__(self, make: Callable[[Key], Any], threads: int, depth: int) -> None:
        self._make, self._depth = make, max(depth, threads)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hvdtrain-batches")
        self._made: dict[Key, Future[Any]] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """What was made ahead is not what will be asked for."""
        with self._lock:
            for each in self._made.values():
                each.cancel()
            self._made.clear()

    def get(self, key: Key, steps: int) -> Any:
        """The batch of `key`, in an epoch of `steps` steps. What its making raised is raised here."""
        epoch, skipped, step = key
        with self._lock:
            wanted = [(epoch, skipped, each) for each in range(step, min(step + self._depth + 1, steps))]
            for old in self._made.keys() - set(wanted):
                self._made.pop(old).cancel()
            for each in wanted or [key]:
                if each not in self._made:
                    self._made[each] = self._pool.submit(self._make, each)
            future = self._made.pop(key)
        return future.result()
