"""Short forms of `model.compile` and `model.fit`, the latter for data that every rank holds in full."""

from __future__ import annotations

import inspect
from typing import Any

import keras

from hvdtrain._keras.fitting import callbacks
from hvdtrain._keras.loader import as_arrays, length_of, loader, validation_loader
from hvdtrain._keras.optimizer import DistributedOptimizer
from hvdtrain._keras.start import world
from hvdtrain._keras.training import Training
from hvdtrain.errors import UserError, refuse_unknown


def compile(model: Any, optimizer: Any, *, lr_rule: str = "auto", warmup_epochs: float = 0.0, **options: Any) -> None:
    """`model.compile` with a distributed `optimizer`; other arguments are passed on."""
    model.compile(optimizer=DistributedOptimizer(optimizer, lr_rule=lr_rule, warmup_epochs=warmup_epochs), **options)


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    batch_size: int = 32,
    epochs: int = 1,
    validation_split: float = 0.0,
    validation_data: Any = None,
    validation_batch_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> keras.callbacks.History:
    """`model.fit` on data that every rank holds in full: each trains on its part. Prints one line per epoch.

    Args:
        model: compiled with an optimizer from `DistributedOptimizer`.
        x: arrays of all samples; or a `loader`, or what gives batches of this rank (`tf.data.Dataset`, `DataLoader`, generator).
        y: targets of all samples, where `x` holds arrays.
        sample_weight: of all samples, shape (n,), likewise.
        batch_size: samples per rank and step.
        validation_split: fraction of the arrays, from their end, that is kept for evaluation.
        validation_data: (x, y) or (x, y, sample_weight) of all samples, or a `validation_loader`.
        validation_batch_size: samples per rank in a step of evaluation; default `batch_size`.
        seed: of the order; must be the same on every rank.
        options: passed to `model.fit`; `callbacks()` is added unless it is among the callbacks.

    Raises:
        UserError: an option that `model.fit` does not have, or arguments that do not go together.
    """
    legal = [name for name in inspect.signature(keras.Model.fit).parameters if name != "self"]
    refuse_unknown(options, legal, "model.fit's arguments")
    if _gives_batches(x):
        if y is not None or sample_weight is not None or validation_split:
            raise UserError(
                f"x is a {type(x).__name__}, which gives y and sample_weight itself, and has no part for validation: give these to "
                "it, and validation_data="
            )
        train = x
    else:
        arrays = [x, y, sample_weight]
        if validation_split:
            if validation_data is not None:
                raise UserError("validation_split and validation_data: give one of them")
            arrays, validation_data = _split(as_arrays(x, y, sample_weight), validation_split)
        train = loader(*arrays, batch_size=batch_size, shuffle=shuffle, seed=seed)
    if isinstance(validation_data, (tuple, list)):
        validation_data = validation_loader(*validation_data, batch_size=validation_batch_size or batch_size)
    given = list(options.pop("callbacks", None) or [])
    if not any(isinstance(each, Training) for each in given):
        given += callbacks()
    options.setdefault("verbose", 2 if world().rank == 0 else 0)
    history: keras.callbacks.History = model.fit(
        train, validation_data=validation_data, epochs=epochs, callbacks=given, **options
    )
    return history


def _gives_batches(x: Any) -> bool:
    if isinstance(x, keras.utils.PyDataset):
        return True
    # A tf.data.Dataset, a DataLoader of PyTorch, a generator.
    return any(hasattr(x, name) for name in ("element_spec", "batch_sampler", "__next__"))


def _split(arrays: list[Any], fraction: float) -> tuple[list[Any], list[Any]]:
    """Samples to train on, and the last ones, to evaluate; as `model.fit` does."""
    if not 0 < fraction < 1:
        raise UserError(f"validation_split={fraction} is not a fraction, between 0 and 1")
    n = length_of(arrays)
    first = int(n * (1 - fraction))
    if not 0 < first < n:
        raise UserError(f"validation_split={fraction} of {n} samples leaves none to train on, or none to evaluate")
    return _cut(arrays, slice(first)), _cut(arrays, slice(first, n))


def _cut(arrays: list[Any], part: slice) -> list[Any]:
    return [None if array is None else keras.tree.map_structure(lambda each: each[part], array) for array in arrays]
