"""Stopping: ranks that get a signal at different times agree in which step all of them stop, and for which signal."""

from __future__ import annotations

from hvdtrain import stop

#: Number of the signal that all ranks stop for; 0 until they agreed on one.
_agreed_stop = 0


def agreed_stop() -> int:
    """Number of the signal that all ranks have agreed in some step to stop for, or 0."""
    return _agreed_stop


def agree_to_stop(counts: list[float]) -> int:
    """From how many ranks got each of `stop.SIGNALS`, summed over the ranks: the signal that all now stop for, or 0."""
    global _agreed_stop
    for number, count in zip(stop.SIGNALS, counts, strict=True):
        if count and not _agreed_stop:
            _agreed_stop = int(number)
            stop.agreed(_agreed_stop)
    return _agreed_stop


def own_stop() -> list[float]:
    """For `agree_to_stop`: what this rank was asked, shape (3,)."""
    asked = stop.requested()
    return [float(asked == number) for number in stop.SIGNALS]
