"""The states of this rank's random generators, as values that a checkpoint can hold without pickled code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hvdtrain._torch.start import from_rank_zero, world
from hvdtrain._torch.workers import seed_from, seed_generators
from hvdtrain.errors import Diverged


def state() -> dict[str, Any]:
    """Of Python, numpy, torch and this rank's GPU."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    found = {
        "python": [version, list(numbers), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if world().device != "cpu":
        found["cuda"] = torch.cuda.get_rng_state(world().device)
    return found


def restore(saved: dict[str, Any]) -> None:
    """Go on from `state()`."""
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(saved["torch"])
    if world().device != "cpu" and "cuda" in saved:
        torch.cuda.set_rng_state(saved["cuda"], world().device)


def differ_by_rank(seed: int, *place: int) -> None:
    """Let every rank but 0 draw numbers of its own from here on: models begin alike, dropout must not be alike.

    Args:
        place: where the script is; the same when it is started again, another in each training, or all would drop alike.
    """
    if world().rank == 0:
        return
    own = seed_from(seed, world().rank, *place)
    seed_generators(own)
    if world().device != "cpu":
        torch.cuda.manual_seed(own)


@contextmanager
def alike_afterwards() -> Iterator[None]:
    """Ranks may draw numbers of their own inside; then all go on as rank 0 would, for a script splits its data by them.

    Of errors only one that all ranks raise in the same step lets them agree.
    """
    try:
        yield
    except Diverged as error:
        if error.agreed:
            _as_rank_zero()
        raise
    _as_rank_zero()


def _as_rank_zero() -> None:
    if world().size > 1:
        restore(from_rank_zero(state()))
