"""Loader workers that stay until training lets them go, and random numbers for augmentation that a resumed run repeats."""

from __future__ import annotations

import atexit
import ctypes
import gc
import hashlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from hvdtrain import stop
from hvdtrain._torch import rows

_PR_SET_PDEATHSIG = 1


def seed_from(*parts: int) -> int:
    """A seed of 63 bits that differs whenever one of `parts` does."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch's CPU."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed would seed the GPUs too, whose numbers belong to the model.
    torch.default_generator.manual_seed(seed)


def _state() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _restore(state: tuple[Any, Any, torch.Tensor]) -> None:
    python, numpy, cpu = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.default_generator.set_state(cpu)


@contextmanager
def _kept_generators() -> Iterator[None]:
    state = _state()
    try:
        yield
    finally:
        _restore(state)


class Drawing(Iterator[Any]):
    """What iterating over `data` in this process gives, with random numbers of its own from `seed` on.

    As `Seeded` for what no index reaches: a resumed run reads it from its beginning, and gets the same.
    """

    def __init__(self, data: Iterable[Any], seed: int) -> None:
        with _kept_generators():
            seed_generators(seed)
            self._inner = iter(data)
            self._state = _state()

    def __next__(self) -> Any:
        with _kept_generators():
            _restore(self._state)
            try:
                return next(self._inner)
            finally:
                self._state = _state()


class Seeded(Dataset[Any]):
    """A data set whose augmentations draw from generators seeded for each batch.

    So they do not depend on workers, nor on where training was interrupted; and the numbers that the model draws (dropout) do not
    depend on them. Indices come as `[seed, index, index, ...]`.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset
        # Seeding for each batch would cost a small model's step some percent. Around other data sets of tensors `collate_fn` is the
        # user's, and may draw (MixUp).
        self._may_draw = not isinstance(dataset, rows.Rows)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        seed, *wanted = indices
        if not self._may_draw:
            return self._get(wanted)
        if get_worker_info() is not None:
            seed_generators(seed)
            return self._get(wanted)
        with _kept_generators():
            seed_generators(seed)
            return self._get(wanted)

    def _get(self, indices: list[int]) -> list[Any]:
        several = getattr(self.dataset, "__getitems__", None)
        found: list[Any] = several(indices) if several is not None else [self.dataset[index] for index in indices]
        return found


@cache
def end_with_the_rank() -> None:
    """At the end of this process let all loader workers go that are left, such as those kept by `persistent_workers`.

    multiprocessing would send them SIGTERM, which they ignore, and wait for them.
    """
    atexit.register(_end_workers)


def _end_workers() -> None:
    for each in gc.get_objects():
        if type(each) is _MultiProcessingDataLoaderIter:  # isinstance asks objects, and some warn
            each.__del__()


class Worker:
    """`worker_init_fn` of every loader.

    A signal to the whole process group asks the ranks to stop; workers that died of it would take the step with them that ranks
    still have to finish. They end with their rank, however that ends.

    Args:
        then: the user's own.
        seeds: for a data set that no index reaches: workers' generators are seeded from these and the worker's number.
    """

    def __init__(self, then: Callable[[int], None] | None, seeds: tuple[int, ...] = ()) -> None:
        self._then = then
        self._seeds = seeds
        end_with_the_rank()

    def __call__(self, worker: int) -> None:
        for number in stop.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if torch.multiprocessing.get_start_method(allow_none=True) != "forkserver":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == 1:  # the rank died before
                os._exit(1)
        if self._seeds:
            seed_generators(seed_from(*self._seeds, worker))
        if self._then is not None:
            self._then(worker)
