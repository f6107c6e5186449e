"""Data for `model.fit` that gives each rank its part of every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from hvdtrain._keras.ahead import Ahead, Key
from hvdtrain._keras.start import in_process, world
from hvdtrain.data.alive import alive
from hvdtrain.data.shard import ShardBatch, Uneven, checked_weights, epoch_order, shard, share, steps_per_epoch
from hvdtrain.errors import UserError, refuse_unknown

#: Of `keras.utils.PyDataset`.
_OPTIONS = ("workers", "max_queue_size", "use_multiprocessing")


class Loader(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of this rank, for `model.fit`. Each epoch has a new order, the same for any number of ranks.

    Attributes:
        epoch: whose batches it gives, from 1; `fit` sets it.
        batch_size: samples of this rank in a step, on all its devices.
        n_samples: of the whole data set.
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        batch_size: int,
        shuffle: bool,
        uneven: Uneven,
        seed: int,
        weights: Any,
        options: dict[str, Any],
    ) -> None:
        super().__init__(**_of_keras(options))
        self._ahead = _ahead(self._make, options)
        self.batch_size = batch_size
        self.n_samples = length_of(arrays)
        self._arrays = arrays
        self._shuffle = shuffle
        self._weights = None if weights is None else checked_weights(weights, self.n_samples, shuffle)
        self._uneven: Uneven = uneven
        self._seed = seed
        self._batches: tuple[int, int, list[ShardBatch]] = (0, 0, [])
        self.epoch = 1
        self._skipped = 0
        self._options = options
        self._for_evaluation: ValidationLoader | None = None
        self._limit: int | None = None
        self._class_weight: dict[int, float] | None = None
        #: Last steps that would leave a device of this process without a sample, and batch normalisation without a mean.
        self._too_small = int(0 < self.n_samples % batch_size < in_process() and uneven == "pad")
        try:
            steps_per_epoch(self.n_samples, batch_size, world().size, uneven)
        except ValueError as error:
            raise UserError(str(error)) from None
        if len(self) == 0:
            raise UserError(f"{self.n_samples} samples for {in_process()} devices: each needs at least one")

    def start(self, epoch: int, skipped: int = 0) -> None:
        """Give the batches of `epoch` from now on, without its first `skipped` samples of the whole world."""
        self.epoch, self._skipped = epoch, skipped

    def train_as(self, steps: int | None = None, class_weight: dict[int, float] | None = None) -> None:
        """What a `fit` asks for, until it is over.

        Args:
            steps: those of an epoch: its first ones; None: all.
            class_weight: the weight that a sample of each class has in the loss.

        Raises:
            UserError: no step, or always the same ones; samples have weights of their own, or several targets.
        """
        if steps is not None and steps < 1:
            raise UserError(f"an epoch has at least one step: steps_per_epoch={steps}")
        if steps is not None and steps < self._steps() and not self._shuffle:
            raise UserError(
                f"with shuffle=False each epoch would have the same steps: leave out steps_per_epoch={steps}"
            )
        given = self._arrays[1:]
        if class_weight is not None and (len(given) != 1 or keras.tree.is_nested(given[0]) or np.ndim(given[0]) > 2):
            raise UserError("class_weight goes with one class for each sample, y, and without sample_weight")
        if class_weight != self._class_weight and self._ahead:
            self._ahead.forget()
        self._limit, self._class_weight, self._batches = steps, class_weight, (0, 0, [])

    def batches(self) -> list[ShardBatch]:
        """This rank's part of each remaining step of the epoch; every rank has as many."""
        return self._batches_of(self.epoch, self._skipped)

    def _batches_of(self, epoch: int, skipped: int) -> list[ShardBatch]:
        known = self._batches
        if known[:2] == (epoch, skipped):
            return known[2]
        order = epoch_order(self.n_samples, self._seed, epoch, self._shuffle, self._weights)
        batches = list(shard(order, self.batch_size, world().rank, world().size, self._uneven, skipped))
        del batches[len(batches) - self._too_small :]
        made = self._steps() - len(batches)
        del batches[max(0, len(self) - made) :]
        self._batches = (epoch, skipped, batches)
        return batches

    def __len__(self) -> int:
        """Steps in an epoch, the same on every rank; of an epoch that goes on in its middle, all of them too."""
        return self._steps() if self._limit is None else min(self._limit, self._steps())

    def _steps(self) -> int:
        return steps_per_epoch(self.n_samples, self.batch_size, world().size, self._uneven) - self._too_small

    def __getitem__(self, step: int) -> tuple[Any, ...]:
        key = self.key(step)
        picked: tuple[Any, ...] = self._ahead.get(key, len(self)) if self._ahead else self._make(key)
        alive("training")  # of an update that takes many batches it may be the only sign
        return picked

    def key(self, step: int) -> Key:
        """Which batch a step has in the epoch that is given now."""
        return self.epoch, self._skipped, step

    def _make(self, key: Key) -> tuple[Any, ...]:
        epoch, skipped, step = key
        batches = self._batches_of(epoch, skipped)
        # In an epoch that goes on in its middle the first steps are passed over: any batch will do for them.
        index = step - (len(self) - len(batches))
        indices = batches[min(max(index, 0), len(batches) - 1)].indices if batches else np.zeros(1, np.int64)
        picked = _picked(self._arrays, indices, epoch)
        return picked if self._class_weight is None else (*picked, _of_classes(picked[1], self._class_weight))

    def consumed(self, steps: int) -> int:
        """Samples of the epoch that the world has trained on after `steps` of the steps that are given now."""
        return min(self.n_samples, self._skipped + steps * self.batch_size * world().size)

    def for_evaluation(self) -> ValidationLoader:
        """Of the same arrays: each sample once, where ranks that have none in the last step of an epoch take one of others'.

        Raises:
            UserError: it trains on samples that are others in each epoch, or has fewer of them than ranks.
        """
        if any(hasattr(leaf, "in_epoch") for leaf in keras.tree.flatten(list(self._arrays))):
            raise UserError(
                "this loader gives samples that are others in each epoch (augmented): evaluate what they are made from, "
                "hvdtrain.keras.validation_loader(x, y, batch_size=...)"
            )
        if self._for_evaluation is None:  # once: it may have threads
            self._for_evaluation = ValidationLoader(self._arrays, self.batch_size, self._options)
        return self._for_evaluation


class ValidationLoader(keras.utils.PyDataset):  # type: ignore[misc]
    """This rank's share of a data set for evaluation, in order; ranks may have different numbers of batches."""

    def __init__(self, arrays: Sequence[Any], batch_size: int, options: dict[str, Any]) -> None:
        super().__init__(**_of_keras(options))
        self._ahead = _ahead(self._make, options)
        self._arrays = arrays
        self.n_samples = length_of(arrays)
        self._batches = share(self.n_samples, batch_size, world().rank, world().size)
        if self.n_samples < world().size:
            raise UserError(f"{self.n_samples} samples for evaluation cannot be shared by {world().size} ranks")

    def __len__(self) -> int:
        """Batches of this rank."""
        return len(self._batches)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        key = (0, 0, index)
        picked: tuple[Any, ...] = self._ahead.get(key, len(self)) if self._ahead else self._make(key)
        alive("validation")
        return picked

    def _make(self, key: Key) -> tuple[Any, ...]:
        return _picked(self._arrays, self._batches[key[2]])


def loader(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int,
    shuffle: bool = True,
    uneven: Uneven = "pad",
    seed: int = 0,
    weights: Any = None,
    **options: Any,
) -> Loader:
    """Training data for `model.fit`: `batch_size` samples of them for each device in each step.

    Args:
        x: an array, shape (n, ...), or a dictionary or tuple of arrays; memory-mapped ones are read as they are needed. One with a
            method `in_epoch(epoch, indices)` is asked for what its samples are in that epoch: `hvdtrain.data.affine.Augmented`.
        y: targets, likewise.
        sample_weight: of each sample in the loss, shape (n,).
        uneven: what to do with a last step that the samples do not fill: "pad" shares it out (the gradient is weighted so that
            it is that of all samples alike), "drop" leaves it out.
        seed: of the order; must be the same on every rank.
        weights: how often each sample is to come against others, shape (n,), for classes of unequal size: n are drawn for an epoch,
            and some come twice. The same for any number of ranks.
        options: `workers`: threads that make batches before they are asked for, 1 (none) by default; `max_queue_size`: how many
            batches they make ahead, 10 by default. With `use_multiprocessing` Keras' own processes do it.

    Raises:
        UserError: no sample, arrays of different lengths, less than one step with `drop`, or an option that does not exist.
    """
    refuse_unknown(options, _OPTIONS, "a loader's options")
    if batch_size < 1:
        raise UserError(f"a batch has at least one sample, not {batch_size}")
    if uneven not in ("pad", "drop"):
        raise UserError(f'uneven="{uneven}" is not one of "pad", "drop"')
    return Loader(as_arrays(x, y, sample_weight), batch_size * in_process(), shuffle, uneven, seed, weights, options)


def validation_loader(
    x: Any, y: Any = None, sample_weight: Any = None, *, batch_size: int, **options: Any
) -> ValidationLoader:
    """This rank's share of the data for evaluation: the shares are disjoint and cover it. Arguments as for `loader`."""
    refuse_unknown(options, _OPTIONS, "a loader's options")
    if batch_size < 1:
        raise UserError(f"a batch has at least one sample, not {batch_size}")
    return ValidationLoader(as_arrays(x, y, sample_weight), batch_size * in_process(), options)


def for_evaluation(data: Any) -> Any:
    """What an evaluation takes: of a loader for training each sample once; other data as it is."""
    return data.for_evaluation() if isinstance(data, Loader) else data


def _of_keras(options: dict[str, Any]) -> dict[str, Any]:
    """What Keras is told: threads are ours, so that it starts none."""
    return options if options.get("use_multiprocessing") else {**options, "workers": 1}


def _ahead(make: Callable[[Key], Any], options: dict[str, Any]) -> Ahead | None:
    threads = options.get("workers", 1)
    if threads < 2 or options.get("use_multiprocessing"):
        return None
    return Ahead(make, threads, options.get("max_queue_size", 10))


def as_arrays(*given: Any) -> list[Any]:
    """`given`, whose leaves hold one row for each sample, as what `_picked` can index; without those None at the end."""
    last = max((index for index, each in enumerate(given) if each is not None), default=0)
    return [None if each is None else keras.tree.map_structure(_array, each) for each in given[: last + 1]]


def _array(leaf: Any) -> Any:
    if keras.ops.is_tensor(leaf):
        return keras.ops.convert_to_numpy(leaf)
    if hasattr(leaf, "to_numpy"):
        # Of pandas, which would take numbers of rows for labels: after a shuffle those are of other rows.
        return leaf.to_numpy()
    try:
        len(leaf)
    except TypeError:
        raise UserError(
            f"data of samples are arrays, or dictionaries or tuples of arrays; found {type(leaf).__name__}"
        ) from None
    return leaf


def length_of(arrays: Sequence[Any]) -> int:
    """Samples that all of them hold."""
    lengths = {len(leaf) for leaf in keras.tree.flatten(list(arrays)) if leaf is not None}
    if len(lengths) != 1:
        raise UserError(f"the arrays hold different numbers of samples: {sorted(lengths)}")
    return int(lengths.pop())


def _of_classes(targets: np.ndarray, weights: dict[int, float]) -> np.ndarray:
    """Weights of samples, shape (n,): 1 for classes that have none. As Keras, takes several columns for one of each class."""
    labels = targets.reshape(len(targets), -1)
    labels = labels.argmax(1) if labels.shape[1] > 1 else np.round(labels[:, 0])
    return np.asarray([weights.get(int(label), 1.0) for label in labels], keras.config.floatx())


def _picked(arrays: Sequence[Any], indices: Any, epoch: int | None = None) -> tuple[Any, ...]:
    def pick(array: Any) -> np.ndarray:
        if epoch is not None and hasattr(array, "in_epoch"):
            return np.asarray(array.in_epoch(epoch, indices))
        return np.asarray(array[indices])

    # None inside a tuple would make Keras guess; only trailing ones were cut off.
    return tuple(keras.tree.map_structure(pick, part) for part in arrays)
