"""Smoothing and plateaus of accuracy curves: pure functions on arrays, many curves at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Curves shorter than this are smoothed over 3 epochs instead of 5.
SHORT = 30
#: Index of the last epoch that has fewer before it than a centred mean of 5 takes.
_FIRST = 1


def smooth(curves: Floats) -> Floats:
    """A running median of 3, then a centred mean of 3 (fewer than 30 epochs) or 5.

    The median removes single bad epochs without moving a step; the mean removes what noise is left. At the ends the
    median is that of the first or last three, the mean that of the epochs that there are.

    Args:
        curves: shape (curves, epochs), or (epochs,) for one; finite, because the sums carry a NaN on to all later epochs.

    Returns:
        The same shape.
    """
    rows = np.atleast_2d(np.asarray(curves, dtype=float))
    length = rows.shape[1]
    # The first and the last epoch take the median of the three nearest: one bad last epoch moves nothing.
    nearest = min(2, length - 1)
    padded = np.concatenate([rows[:, nearest : nearest + 1], rows, rows[:, -nearest - 1 : length - nearest]], axis=1)
    left, middle, right = padded[:, :-2], padded[:, 1:-1], padded[:, 2:]
    # The median of three without a sort.
    medians = np.maximum(np.minimum(left, middle), np.minimum(np.maximum(left, middle), right))
    half = 1 if length < SHORT else 2
    sums = _sums(medians)
    first = np.maximum(np.arange(length) - half, 0)
    last = np.minimum(np.arange(length) + half, length - 1) + 1
    smoothed = (sums[:, last] - sums[:, first]) / (last - first)
    return np.asarray(smoothed.reshape(np.shape(curves)))


def _sums(rows: Floats) -> Floats:
    """Running sums from 0 on: shape (rows, columns + 1). (`np.pad` takes longer than all the rest of a short curve.)"""
    found = np.zeros((rows.shape[0], rows.shape[1] + 1))
    np.cumsum(rows, axis=1, out=found[:, 1:])
    return found


def window(length: int) -> int:
    """How many epochs "sustained" means in a curve of this length: 5, or a tenth of a long one."""
    return max(5, -(-length // 10))


def noise(curves: Floats, smoothed: Floats) -> Floats:
    """Standard deviation of the epoch-to-epoch noise of each curve, shape (curves,).

    From second differences, which a smooth trend does not enter: for independent noise of deviation s they have
    deviation s * sqrt(6). The median makes single jumps (a learning-rate step) count for nothing. Only the second half
    of a curve is used: the climb is no noise.
    """
    rows = np.atleast_2d(curves)
    half = rows[:, rows.shape[1] // 2 :] if rows.shape[1] >= 12 else rows
    if half.shape[1] < 3:
        return np.zeros(len(rows))
    return np.asarray(1.4826 * np.median(np.abs(np.diff(half, n=2, axis=1)), axis=1) / np.sqrt(6.0))


def window_medians(smoothed: Floats, width: int) -> Floats:
    """Median of every `width` successive epochs: shape (curves, epochs - width + 1)."""
    rows = np.atleast_2d(smoothed)
    views: Any = np.lib.stride_tricks.sliding_window_view(rows, width, axis=1)
    return np.asarray(np.median(views, axis=2))


def settled(
    curves: Floats, smoothed: Floats, plateau: Floats, band: Floats, width: int, share: float = 0.8
) -> NDArray[np.int64]:
    """The first epoch (index from 0) inside the band with at least `share` of the next `width` epochs inside too.

    Near the end the epochs that are left count instead of a whole window. Of the first epochs, which are smoothed with
    those after them only, it is none before the curve itself has come up to the band.

    Returns:
        Shape (curves,); the number of epochs where a curve never settles.
    """
    rows = np.atleast_2d(smoothed)
    length = rows.shape[1]
    plateau, band = np.reshape(plateau, (-1, 1)), np.reshape(band, (-1, 1))
    inside = np.abs(rows - plateau) <= band
    sums = _sums(inside.astype(float))
    start = np.arange(length)
    stop = np.minimum(start + 1 + width, length)
    following = np.maximum(stop - start - 1, 1)
    ahead = sums[:, stop] - sums[:, np.minimum(start + 1, length)]
    come_up = (start > _FIRST) | (np.maximum.accumulate(np.atleast_2d(curves), axis=1) >= plateau - band)
    enough = inside & come_up & ((ahead >= share * following) | (start == length - 1))
    return np.asarray(np.where(enough.any(axis=1), enough.argmax(axis=1), length), dtype=np.int64)
