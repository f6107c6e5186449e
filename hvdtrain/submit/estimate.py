"""How long a cell and a study will still take. Pure arithmetic on what has been seen."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hvdtrain.record import Epoch

#: Recent epochs tell more than early ones, which include warm-up and filling caches.
_RECENT = 5


def seconds_per_epoch(epochs: Sequence[Epoch]) -> float | None:
    """Median wall clock of the recent epochs; None when none is known."""
    known = [epoch.seconds for epoch in epochs[-_RECENT:] if epoch.seconds is not None]
    return statistics.median(known) if known else None


def cell_remaining(epochs: Sequence[Epoch], total: int | None, elapsed: float, usual: float | None) -> float | None:
    """Seconds until the running cell ends: from its own epochs, else from `usual`, what such cells take in all."""
    each = seconds_per_epoch(epochs)
    if total is not None and each is not None:
        return max(0.0, (total - epochs[-1].epoch) * each)
    return None if usual is None else max(0.0, usual - elapsed)


def usual_seconds(gpus: int, ended: Sequence[tuple[int, float]]) -> float | None:
    """What a cell of `gpus` ranks takes, from `(ranks, seconds)` of ended ones: of as many ranks, else of any."""
    like = [seconds for ranks, seconds in ended if ranks == gpus] or [seconds for _, seconds in ended]
    return statistics.median(like) if like else None


def study_remaining(
    current: float | None, elapsed: float, gpus: int, pending: Sequence[int], ended: Sequence[tuple[int, float]]
) -> float | None:
    """Seconds until all cells have ended. `pending` are the ranks of those that have not begun.

    A cell whose like has not ended yet is taken to need what the running one will have needed.
    """
    if current is None:
        return None
    seen = [*ended, (gpus, elapsed + current)]
    return current + sum(usual_seconds(ranks, seen) or 0.0 for ranks in pending)


def shown(seconds: float | None) -> str:
    """A duration for people: `8 s`, `3 min 20 s`, `2 h 05 min`; `?` when unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
