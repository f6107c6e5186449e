"""Requests to stop: SIGTERM, SIGUSR1 and SIGUSR2, as a flag that training looks at between steps.

Clusters announce a preemption or a time limit by a signal, often to one rank only. Training loops carry the flag along with the
gradients of each step, so that all ranks learn of it in the same step, write one checkpoint and end with `RESTART`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Exit status of a training that was asked to stop and left a checkpoint: start me again (EX_TEMPFAIL of sysexits.h).
RESTART = 75
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(SystemExit):
    """Training ended because it was asked to, with status `RESTART`.

    `agreed`: all ranks raise it after the same step. Else this rank ends by itself, and takes the others along.
    """

    def __init__(self, reason: str, number: int = 0, agreed: bool = True) -> None:
        super().__init__(RESTART)
        self.number = number
        self.reason = reason
        self.agreed = agreed

    def __str__(self) -> str:
        return self.reason


_requested = 0
_watchers = 0
_alone: Callable[[Stopped], None]
_forks_watched = False
_forking = threading.local()


def install(alone: Callable[[Stopped], None] = lambda stopped: None) -> None:
    """Catch the signals from now on. Does nothing off the main thread, where Python allows no handler.

    Args:
        alone: called when a signal comes while no loop watches, before this rank ends by raising what it is given.
    """
    global _alone, _forks_watched
    _alone = alone
    if not _forks_watched:
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
        _forks_watched = True
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, _on_signal)


def requested() -> int:
    """Number of the first signal that asked this rank to stop, or 0."""
    return _requested


def agreed(number: int) -> None:
    """All ranks stop because of signal `number`, which came to one of them: from now on signals change nothing here either."""
    global _requested
    _requested = _requested or number


def name(number: int) -> str:
    """Of a signal, for messages; another rank's request may have any number."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


@contextmanager
def watching() -> Iterator[None]:
    """While a loop that looks at `requested` runs: a signal sets the flag and does nothing else.

    Outside, nobody would look, so a signal ends this rank at once. It leaves what training wrote before.
    """
    global _watchers
    _watchers += 1
    try:
        yield
    finally:
        _watchers -= 1


def watch_always() -> None:
    """For loops of one's own, which ask in each step: as `watching`, to the end of the process."""
    global _watchers
    _watchers += 1


def leaving() -> None:
    """This rank is on its way out: launchers that hurry it with signals change nothing any more."""
    watch_always()


def _before_fork() -> None:
    # What comes to the child before it has handlers of its own would be lost.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    """A forked helper is no rank: SIGTERM ends it, as multiprocessing relies on for daemons; the others are not for it."""
    for number in SIGNALS:
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    _after_fork()


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _requested
    first = _requested == 0
    # A second signal changes nothing: the checkpoint of the first may be under way.
    _requested = _requested or number
    if first and _watchers == 0:
        stopped = Stopped(f"{name(number)} came while no training was under way", number, agreed=False)
        _alone(stopped)
        raise stopped
