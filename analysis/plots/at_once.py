"""Several figures drawn at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

#: Fewer than these are drawn before another process is there.
_FEW = 4


def at_once(draw: Sequence[Callable[[], bytes]], processes: int | None = None) -> list[bytes]:
    """What each of `draw` returns, in their order; as many at a time as there are cores.

    The processes are copies of this one, which have loaded everything already. Only Linux makes such copies safely; elsewhere one
    figure comes after the other.

    Args:
        draw: each makes one file, and none depends on another.
        processes: how many draw, this one among them; None: one for each core that this process may use, up to four.
    """
    if sys.platform != "linux" or len(draw) < _FEW:
        return [make() for make in draw]
    processes = processes or min(4, len(os.sched_getaffinity(0)))
    made: dict[int, bytes] = {}
    helpers: list[_Helper] = []
    try:
        with suppress(OSError):  # no more processes are allowed
            helpers.extend(_Helper(draw, range(first, len(draw), processes)) for first in range(1, processes))
        for index in range(0, len(draw), processes):
            made[index] = draw[index]()
        for helper in helpers:
            made |= helper.made()
    finally:
        for helper in helpers:
            helper.end()
    # A helper that never began or was ended (no memory left, say) leaves its part to this process.
    return [made[index] if index in made else make() for index, make in enumerate(draw)]


class _Helper:
    """A copy of this process that draws the figures `part` and sends them."""

    def __init__(self, draw: Sequence[Callable[[], bytes]], part: range) -> None:
        context = multiprocessing.get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_draw, args=(draw, part, sender), daemon=True)
        self._process.start()
        sender.close()

    def made(self) -> dict[int, bytes]:
        """Numbers and contents of the figures; those that it did not get to are missing."""
        found: dict[int, bytes] = {}
        with suppress(EOFError):
            while True:
                index, content = self._receiver.recv()
                found[index] = content
        return found

    def end(self) -> None:
        self._process.terminate()
        self._process.join()
        self._receiver.close()


def _draw(draw: Sequence[Callable[[], bytes]], part: range, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends this process
    # What goes wrong here goes wrong again in the process that asked, and is told there.
    with suppress(Exception):
        for index in part:
            sender.send((index, draw[index]()))
    sender.close()
