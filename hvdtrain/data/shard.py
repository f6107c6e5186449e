"""Which samples a rank trains on in each step, so that N ranks together do what one rank does on the union.

The order of an epoch depends on seed and epoch only, not on the number of ranks. Step g of the world covers the
same `batch_size * size` samples of that order that step g of one rank with that batch would, and each rank takes its
part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hvdtrain.errors import UserError

Uneven = Literal["pad", "drop"]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ShardBatch:
    """One rank's part of one step.

    Attributes:
        indices: of samples, shape (n,), n >= 1.
        samples: how many of them count: n, or 0 when the batch only keeps this rank in step with the others.
        weight: factor for the mean loss over `indices`; with it the average over ranks is the mean over the step's samples.
        union: how many samples of all ranks count in this step.
        position: of the first of `indices` in the order of the epoch; no other batch of the epoch has it, but of those that only
            keep ranks in step.
    """

    indices: Indices
    samples: int
    weight: float
    union: int
    position: int


def epoch_order(
    n_samples: int, seed: int, epoch: int, shuffle: bool = True, weights: NDArray[np.float64] | None = None
) -> Indices:
    """Order of the samples in one epoch: shape (n_samples,), the same on every rank, new for every epoch.

    With `weights`, shape (n_samples,), each place is drawn by itself: a sample comes as often as its weight says, on average.
    """
    if not shuffle:
        return np.arange(n_samples, dtype=np.int64)
    draw = np.random.default_rng([seed, epoch])
    if weights is not None:
        return draw.choice(n_samples, n_samples, p=weights / weights.sum()).astype(np.int64)
    return draw.permutation(n_samples).astype(np.int64)


def checked_weights(weights: ArrayLike, n_samples: int, shuffle: bool) -> NDArray[np.float64]:
    """For `epoch_order`.

    Raises:
        UserError: not one number for each sample, a negative one or none above 0, or an order that is not to be drawn.
    """
    given = np.asarray(weights, np.float64)
    if given.shape != (n_samples,):
        raise UserError(f"weights has shape {given.shape}; there is one weight for each of {n_samples} samples")
    if not (np.isfinite(given).all() and (given >= 0).all() and given.sum() > 0):
        raise UserError("weights must be numbers of 0 or more, and not all 0")
    if not shuffle:
        raise UserError("weights draw samples at random, so they need shuffle=True")
    return given


def steps_per_epoch(n_samples: int, batch_size: int, size: int, uneven: Uneven) -> int:
    """Steps that every rank makes in one epoch.

    Raises:
        ValueError: no sample, or `drop` would drop them all; says what is legal.
    """
    if n_samples < 1:
        raise ValueError("the data set is empty")
    together = batch_size * size
    if uneven == "pad":
        return -(-n_samples // together)
    if n_samples < together:
        raise ValueError(
            f"{n_samples} samples do not fill one step of {size} ranks x {batch_size}; "
            f'take a batch size of at most {max(1, n_samples // size)}, fewer ranks, or uneven="pad"'
        )
    return n_samples // together


def steps_left(n_samples: int, batch_size: int, size: int, uneven: Uneven) -> int:
    """Steps for what is left of an epoch that was begun before, maybe with another number of ranks; 0 when nothing is."""
    together = batch_size * size
    return -(-n_samples // together) if uneven == "pad" else n_samples // together


def shard(
    order: Indices, batch_size: int, rank: int, size: int, uneven: Uneven = "pad", start: int = 0
) -> Iterator[ShardBatch]:
    """The batches of `rank` in one epoch; every rank gets the same number of them.

    A last step that the samples do not fill is shared out as evenly as possible (`pad`), or left out (`drop`).

    Args:
        order: from `epoch_order`, shape (n_samples,).
        start: how many samples of the order all ranks together have trained on before.
    """
    together = batch_size * size
    steps = (
        steps_left(len(order) - start, batch_size, size, uneven)
        if start
        else steps_per_epoch(len(order), batch_size, size, uneven)
    )
    for begin in range(start, start + steps * together, together):
        union = order[begin : begin + together]
        share, extra = divmod(len(union), size)
        first = rank * share + min(rank, extra)
        mine = union[first : first + share + (rank < extra)]
        if len(mine):
            yield ShardBatch(mine, len(mine), len(mine) * size / len(union), len(union), begin + first)
        else:
            # Every rank must take part in every step; a sample of weight nothing changes no gradient.
            yield ShardBatch(union[:1], 0, 0.0, len(union), begin)


def share(n_samples: int, batch_size: int, rank: int, size: int) -> list[Indices]:
    """Batches of `rank` for evaluation: disjoint, covering, in order; ranks may have different numbers of them."""
    mine = np.array_split(np.arange(n_samples, dtype=np.int64), size)[rank]
    return [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
