"""Data loaders that give each rank its part of every step."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hvdtrain._torch import stand_in
from hvdtrain._torch.join import JoinLoader
from hvdtrain._torch.rows import at_once
from hvdtrain._torch.start import world
from hvdtrain._torch.workers import Seeded, Worker, seed_from
from hvdtrain.data.shard import Uneven, checked_weights, epoch_order, shard, share, steps_left, steps_per_epoch
from hvdtrain.errors import UserError, refuse_unknown


class TrainLoader(Protocol):
    """What `fit` and `Checkpoints` need of a loader. Both `Loader` and `JoinLoader` are such."""

    batch_size: int
    full: int
    alike: bool
    epoch: int
    samples: int
    weight: float
    union: int
    seed: int

    @property
    def steps(self) -> int | None:
        """Steps of an epoch, where they are known before its end."""

    @property
    def left(self) -> int | None:
        """Steps that the next iteration gives, where they are known before its end."""

    @property
    def fraction(self) -> float:
        """Share of the epoch that the batches given so far make up."""

    def facts(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or what is left of it."""

    def state_dict(self, within: bool = False, finished: int = 0) -> dict[str, Any]:
        """Where in which epoch this rank is.

        Args:
            within: still in the one whose last batch was given.
            finished: epochs that are over, also the one that was broken off.
        """

    def load_state_dict(self, states: list[dict[str, Any]], rank: int) -> str:
        """Go on from the states of all ranks then; returns what could not be kept."""


class Loader:
    """Batches of this rank. Every iteration is one epoch, in a new order that is the same for any number of ranks.

    Attributes:
        epoch: number of the epoch that is under way or comes next, from 1; set it to resume at its beginning.
        consumed: samples of that epoch that all ranks together have been given.
        samples: how many samples of the current batch count (0 for one that only keeps ranks in step).
        weight: multiply the mean loss of the current batch by it, so that the average over ranks is the mean over all
            samples of the step. 1.0 except in a last step that the samples do not fill.
        union: how many samples of all ranks count in the current step.
        batch_size: samples per rank and step.
        full: samples of all ranks in a step that is short of none.
        alike: all ranks have the same `batch_size`.
    """

    alike = True

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        shuffle: bool,
        uneven: Uneven,
        seed: int,
        weights: np.ndarray | None,
        options: dict[str, Any],
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.full = batch_size * world().size
        self.epoch = 1
        self.consumed = 0
        self.samples = 0
        self.weight = 1.0
        self.union = 0
        self.seed = seed
        self._n_samples = len(cast(Sized, dataset))
        self._shuffle = shuffle
        self._weights = weights
        self._uneven = uneven
        self._under_way = self._resumed = self._broken_off = False
        self._batches: list[list[int]] = []
        rows, options = at_once(dataset, options, world().device)
        self._data = _data_loader(Seeded(rows), self._batches, options)
        try:
            self.steps: int = steps_per_epoch(self._n_samples, batch_size, world().size, uneven)
        except ValueError as error:
            raise UserError(str(error)) from None

    def __len__(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self.steps

    @property
    def left(self) -> int:
        """Steps that the next iteration gives: all, or what is left of a resumed epoch."""
        if not self._resumed:
            return self.steps
        return steps_left(self._n_samples - self.consumed, self.batch_size, world().size, self._uneven)

    @property
    def fraction(self) -> float:
        """Share of the epoch that was given so far."""
        return min(1.0, self.consumed / self._n_samples)

    def facts(self) -> dict[str, Any]:
        """All that decides about the order; see `TrainLoader`."""
        weights = None if self._weights is None else zlib.crc32(self._weights.tobytes())
        return {
            "uneven": self._uneven,
            "number of samples": self._n_samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self._shuffle,
            "checksum of weights": weights,
            "epoch": self.epoch,
        }

    def __iter__(self) -> Iterator[Any]:
        """One epoch; after `load_state_dict`, what was left of it."""
        # An iteration that was broken off has consumed something, but the next one is a new epoch all the same.
        start, self._resumed = (self.consumed, False) if self._resumed else (0, False)
        number, self.consumed = self.epoch, start
        order = epoch_order(self._n_samples, self.seed, number, self._shuffle, self._weights)
        batches = list(shard(order, self.batch_size, world().rank, world().size, self._uneven, start))
        self._batches[:] = [
            [seed_from(self.seed, number, batch.position), *batch.indices.tolist()] for batch in batches
        ]
        self.epoch += 1
        self._under_way, self._broken_off = True, False
        try:
            for batch, data in zip(batches, self._data, strict=True):
                self.samples, self.weight, self.union = batch.samples, batch.weight, batch.union
                self.consumed += batch.union
                stand_in.given(batch.samples)
                yield data
        except GeneratorExit:
            self._broken_off = True
            raise
        finally:
            stand_in.over()
        self._under_way = False

    def state_dict(self, within: bool = False, finished: int = 0) -> dict[str, Any]:
        """The epoch under way and how much of it was given; see `TrainLoader`."""
        # What was left by a break is over when the caller says so; in the middle of a loop it is not.
        broken_off = self._broken_off and self.epoch - 1 <= finished
        under_way = within or (self._under_way and not broken_off)
        return {"epoch": self.epoch - under_way, "consumed": self.consumed if under_way else 0}

    def load_state_dict(self, states: list[dict[str, Any]], rank: int) -> str:
        """Go on where `state_dict()` was, also with another number of ranks: the order does not depend on it."""
        self.epoch, self.consumed = states[0]["epoch"], states[0]["consumed"]
        self._resumed = True
        return ""


class ValidationLoader:
    """This rank's share of a data set for evaluation, in order; ranks may have different numbers of batches."""

    def __init__(self, dataset: Dataset[Any], batch_size: int, options: dict[str, Any]) -> None:
        if len(cast(Sized, dataset)) == 0:
            raise UserError("the validation set is empty: leave it out (validation=None), or give it a sample")
        self.dataset = dataset
        self.batch_size = batch_size
        indices = share(len(cast(Sized, dataset)), batch_size, world().rank, world().size)
        rows, options = at_once(dataset, options, world().device)
        self._data = _data_loader(rows, [each.tolist() for each in indices], options)
        self._batches = len(indices)

    def __len__(self) -> int:
        """Batches of this rank."""
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)


def _data_loader(dataset: Dataset[Any], batches: list[list[int]], options: dict[str, Any]) -> DataLoader[Any]:
    # Of its own, for DataLoader draws from the global one at each beginning: also where a resumed epoch begins.
    options = {"generator": torch.Generator(), **options}
    if options.get("num_workers"):
        # The list of batches changes from epoch to epoch, the workers need not.
        options.setdefault("persistent_workers", True)
        options["worker_init_fn"] = Worker(options.get("worker_init_fn"))
    return DataLoader(dataset, batch_sampler=batches, **options)


def loader(
    dataset: Dataset[Any],
    batch_size: int,
    *,
    shuffle: bool = True,
    uneven: Literal["pad", "drop", "join"] = "pad",
    seed: int = 0,
    weights: Sequence[float] | np.ndarray | torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """A loader of training batches of `batch_size` samples for this rank.

    Random augmentations differ between ranks, epochs and batches, and are the same again in a resumed run.

    Args:
        dataset: map-style, with a length, the same on every rank; with "join" this rank's own, which may be an `IterableDataset`.
        uneven: what to do when the samples do not divide. "pad" shares out a last step that they do not fill, to be weighted
            with `loader.weight` (as `fit` does); "drop" leaves it out; "join" is for ranks with data of their own, of different
            or unknown length: a rank whose data is through goes on with batches of weight 0 until the last is.
        seed: of order and augmentations; must be the same on every rank.
        weights: how often each sample is to come against others, shape (len(dataset),), for classes of unequal size: as many as
            the data set has are drawn for an epoch, and some come twice. The same for any number of ranks.
        options: passed to `torch.utils.data.DataLoader` (num_workers, pin_memory, ...).

    Returns:
        A `Loader`, or for "join" a `JoinLoader`.

    Raises:
        UserError: the data set is empty, or smaller than one step with `drop`; an option that does not exist, or would change
            the order.
    """
    _refuse(options, batch_size)
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise UserError(f"seed={seed}: take a whole number of 0 or more")
    if uneven not in ("pad", "drop", "join"):
        raise UserError(f'uneven="{uneven}" is not one of "pad", "drop", "join"')
    if uneven == "join":
        if weights is not None:
            raise UserError(
                'weights are for data that all ranks share; with uneven="join" draw from your own in the data set'
            )
        return JoinLoader(dataset, batch_size, shuffle, seed, options)
    if isinstance(dataset, IterableDataset):
        raise UserError(
            f"{type(dataset).__name__} is an IterableDataset: nobody knows its length nor can share it out. Let it give each rank "
            'samples of its own (by hvdtrain.torch.world().rank), and take uneven="join"'
        )
    checked = None if weights is None else checked_weights(weights, len(cast(Sized, dataset)), shuffle)
    return Loader(dataset, batch_size, shuffle, uneven, seed, checked, options)


def validation_loader(dataset: Dataset[Any], batch_size: int, **options: Any) -> ValidationLoader:
    """A loader of this rank's share of `dataset` for evaluation: the shares are disjoint and cover it.

    Args:
        options: passed to `torch.utils.data.DataLoader` (num_workers, pin_memory, ...).

    Raises:
        UserError: the data set is empty or has no length; an option that does not exist, or would change the order.
    """
    _refuse(options, batch_size)
    if isinstance(dataset, IterableDataset):
        raise UserError(
            f"{type(dataset).__name__} is an IterableDataset: nobody knows its length nor can share it out. For validation give a "
            "data set with a length, such as list(dataset), the same on every rank"
        )
    return ValidationLoader(dataset, batch_size, options)


_ONE_ORDER = (
    "ranks share out one order, drawn from seed and epoch: take weights=, shuffle=False or a Subset of the data"
)
#: Options of DataLoader that decide which samples come in what order, and what stands for them here.
_ORDER = {
    "sampler": _ONE_ORDER,
    "batch_sampler": _ONE_ORDER,
    "drop_last": 'take uneven="drop"',
    "shuffle": "evaluation goes through the data in order",
}
_NAMED = ("self", "dataset", "batch_size")


def _refuse(options: dict[str, Any], batch_size: int) -> None:
    """What DataLoader would refuse in words that lead nowhere."""
    if batch_size < 1:
        raise UserError(f"a batch has at least one sample, not {batch_size}")
    legal = [name for name in inspect.signature(DataLoader.__init__).parameters if name not in (*_NAMED, *_ORDER)]
    for name in options:
        if name in _ORDER:
            raise UserError(f"{name}= is not for this loader: {_ORDER[name]}")
    refuse_unknown(options, legal, "DataLoader's options")
