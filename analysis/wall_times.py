"""What the wall times of a training log say: a clock that counts on from epoch to epoch, or how long each epoch took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

#: Later than this, in s, is a date (Unix time), not how long an epoch took.
_DATE = 1e8
#: A clock falls when a run is started again; one that falls this often, and in a quarter of the epochs, falls in a pattern.
_FALLS = 2
#: A clock has grown by so much before the last epoch of a start. Epochs that differ by chance, or slow down, do not.
_GROWN, _OF_TWO = 1.15, 1.5
#: A clock of a long start-up grows by little, but evenly: its steps differ by no more than this, durations that rise do.
_EVEN = 1.25
#: Durations of fewer epochs than this may all rise by chance, and of fewer than that by about the same step.
_FEW, _FEWEST = 6, 4
#: Each start begins at about the same time: what it takes to the end of its first epoch.
_ALIKE, _ABOUT = 1.5, 2.0


def seconds_of(walls: Mapping[int, float], first: int) -> dict[int, float]:
    """Seconds of the epochs that wall times tell.

    Nothing where a few times may be either, a clock's or durations: read as the wrong one they would be off by far.

    Args:
        walls: s, by epoch.
        first: the first epoch of the run; how long it took is not known where a clock began before it.
    """
    epochs = sorted(walls)
    if _are_durations([walls[epoch] for epoch in epochs]):
        return dict(walls)
    found = {
        later: walls[later] - walls[earlier]
        for earlier, later in pairwise(epochs)
        if later - earlier == 1 and walls[later] > walls[earlier]
    }
    begun = walls.get(first, math.inf)
    if not 0 < begun <= sum(found.values()):
        return {} if _may_be_either([walls[epoch] for epoch in epochs]) else found
    # A clock that is back at about its first value counts from a start again, as it did there.
    again = {
        later: walls[later]
        for earlier, later in pairwise(epochs)
        if later - earlier == 1 and walls[later] < walls[earlier] and 0 < walls[later] <= _ABOUT * begun
    }
    return {**found, **again, first: begun}


def _are_durations(times: Sequence[float]) -> bool:
    if min(times, default=0.0) <= 0 or min(times) > _DATE or all(later > earlier for earlier, later in pairwise(times)):
        return False
    starts: list[list[float]] = []
    for time in times:
        if starts and time >= starts[-1][-1]:
            starts[-1].append(time)
        else:
            starts.append([time])
    falls, steps = len(starts) - 1, len(times) - 1
    often = falls >= _FALLS and falls * 4 >= steps
    begins = [start[0] for start in starts]
    if often and max(begins) > _ALIKE * min(begins):
        return True
    if max(begins) <= _ALIKE * min(begins) and _rise_evenly(starts):
        return False
    # Two epochs a start, or whole seconds, may rise by chance.
    told = [start for start in starts if not often or 2 < len(start) == len(set(start))]
    growing = sum(len(start) - 1 for start in told if _grows(start))
    return 2 * growing <= steps - falls


def _may_be_either(times: Sequence[float]) -> bool:
    """Whether these few may be durations that happen to rise, or a clock after a start-up longer than they are."""
    if not times or not 0 < times[0] < _DATE or any(later <= earlier for earlier, later in pairwise(times)):
        return False
    return len(times) < _FEWEST or (len(times) < _FEW and not _rise_evenly([times]))


def _rise_evenly(starts: Sequence[Sequence[float]]) -> bool:
    """Whether all starts rise by about the same step again and again, as a clock does after however long a start-up."""
    rises = [later - earlier for start in starts for earlier, later in pairwise(start)]
    # As few as one or two a start may be alike by chance, and so may those that are one of the log's whole seconds.
    if len(rises) <= 2 * (len(starts) - 1) or len(starts[0]) == 1:
        return False
    whole = all(time == round(time) for start in starts for time in start)
    return min(rises) > (1.0 if whole else 0.0) and max(rises) <= _EVEN * min(rises)


def _grows(start: Sequence[float]) -> bool:
    """Whether times rise as those of a clock; the last one may be that of one slow epoch."""
    if len(start) == 2:
        return start[1] >= _OF_TWO * start[0]
    return len(start) > 2 and start[-2] >= _GROWN * start[0]
