"""Data loaders that give each rank its part of every step."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

from torch.utils.data import DataLoader, Dataset

from hvdtrain._torch.start import world
from hvdtrain.data.shard import ShardBatch, Uneven, epoch_order, shard, share, steps_per_epoch
from hvdtrain.errors import UserError


class Loader:
    """Batches of this rank. Every iteration is one epoch, in a new order that is the same for any number of ranks.

    Attributes:
        epoch: number of the epoch that the next iteration gives, from 1; set it to resume.
        samples: how many samples of the current batch count (0 for one that only keeps ranks in step).
        weight: multiply the mean loss of the current batch by it, so that the average over ranks is the mean over all
            samples of the step. 1.0 except in a last step that the samples do not fill.
        batch_size: samples per rank and step.
    """

    def __init__(
        self, dataset: Dataset[Any], batch_size: int, shuffle: bool, uneven: Uneven, seed: int, options: Any
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.epoch = 1
        self.samples = 0
        self.weight = 1.0
        self._n_samples = len(cast(Sized, dataset))
        self._shuffle = shuffle
        self._uneven = uneven
        self._seed = seed
        self._options = options
        try:
            self._steps = steps_per_epoch(self._n_samples, batch_size, world().size, uneven)
        except ValueError as error:
            raise UserError(str(error)) from None

    def __len__(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        order = epoch_order(self._n_samples, self._seed, self.epoch, self._shuffle)
        self.epoch += 1
        batches = list(shard(order, self.batch_size, world().rank, world().size, self._uneven))
        for batch, data in zip(batches, _load(self.dataset, batches, self._options), strict=True):
            self.samples, self.weight = batch.samples, batch.weight
            yield data


class ValidationLoader:
    """This rank's share of a data set for evaluation, in order; ranks may have different numbers of batches."""

    def __init__(self, dataset: Dataset[Any], batch_size: int, options: Any) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        indices = share(len(cast(Sized, dataset)), batch_size, world().rank, world().size)
        self._batches = [ShardBatch(each, len(each), 1.0) for each in indices]
        self._options = options

    def __len__(self) -> int:
        """Batches of this rank."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(_load(self.dataset, self._batches, self._options))


def _load(dataset: Dataset[Any], batches: list[ShardBatch], options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_sampler=[batch.indices.tolist() for batch in batches], **options)


def loader(
    dataset: Dataset[Any],
    batch_size: int,
    *,
    shuffle: bool = True,
    uneven: Uneven = "pad",
    seed: int = 0,
    **options: Any,
) -> Loader:
    """A loader of training batches of `batch_size` samples for this rank.

    Args:
        dataset: map-style, with a length; the same on every rank.
        uneven: what to do with a last step that the samples do not fill: "pad" shares it out, to be weighted with
            `loader.weight` (as `fit` does); "drop" leaves it out.
        seed: of the order; must be the same on every rank.
        options: passed to `torch.utils.data.DataLoader` (num_workers, pin_memory, ...).

    Raises:
        UserError: the data set is empty, or smaller than one step with `drop`.
    """
    if batch_size < 1:
        raise UserError(f"a batch has at least one sample, not {batch_size}")
    if uneven not in ("pad", "drop"):
        raise UserError(f'uneven="{uneven}" is not one of "pad", "drop"')
    return Loader(dataset, batch_size, shuffle, uneven, seed, options)


def validation_loader(dataset: Dataset[Any], batch_size: int, **options: Any) -> ValidationLoader:
    """A loader of this rank's share of `dataset` for evaluation: the shares are disjoint and cover it."""
    return ValidationLoader(dataset, batch_size, options)
