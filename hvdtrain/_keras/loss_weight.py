"""Losses that divide by something else than samples: what is not masked, what is no ignored class, weights.

Each rank would divide by its own part, and the average of that is not what one rank makes of the union. So in a step a rank's loss
is taken times its own divisor over the mean of all ranks' divisors, which makes the average the sum over the union divided by
the divisor of the union.
"""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from hvdtrain._keras.backends import Wire
from hvdtrain._keras.start import replicas

#: Takes the loss of a batch from what its samples or their parts have; of Keras 3.0 to 3.15, which offers no other place to be told
#: of masks that a loss makes itself (`ignore_class`).
_REDUCE = "reduce_weighted_values"
#: Keras' names for means. What else there is ("sum", None) divides by nothing.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class UnionLosses:
    """While inside, losses of Keras that are computed within `step` are those of the union, as far as the average over ranks goes.

    Outside of steps, as in evaluations, of which ranks may make different numbers, they stay as they are.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        # A strategy with several devices traces the step once for each, in threads that take turns.
        self._here = threading.local()
        self._module = sys.modules[keras.losses.Loss.__module__]
        self._own: Callable[..., Any] | None = getattr(self._module, _REDUCE, None)

    def __enter__(self) -> UnionLosses:
        if self._own is None and replicas() > 1:
            warnings.warn(
                f"Keras {keras.__version__} reduces losses in a way that is not known here: those that divide by masks, ignored "
                "classes or weights are close to one rank's with several ranks, not the same",
                stacklevel=2,
            )
        elif replicas() > 1:
            setattr(self._module, _REDUCE, self._reduce)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._own is not None:
            setattr(self._module, _REDUCE, self._own)

    @contextmanager
    def step(self) -> Iterator[None]:
        """All ranks must compute the same losses, in the same order."""
        self._here.numbers = itertools.count()
        try:
            yield
        finally:
            del self._here.numbers

    def _reduce(
        self,
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str = _MEANS[0],
        **options: Any,
    ) -> Any:
        assert self._own is not None
        loss = self._own(values, sample_weight=sample_weight, mask=mask, reduction=reduction, **options)
        numbers = getattr(self._here, "numbers", None)
        if numbers is None or reduction not in _MEANS or len(loss.shape):
            return loss
        divisor = _divisor(reduction, sample_weight, mask)
        return loss if divisor is None else self._wire.of_union(loss, divisor, f"divisor.{next(numbers)}")


def _divisor(reduction: str, sample_weight: Any, mask: Any) -> Any:
    """That Keras has divided a mean by; None where it is as many times the number of samples on all ranks."""
    given = [mask, sample_weight if reduction == "mean_with_sample_weight" else None]
    parts = sorted(
        (keras.ops.cast(each, "float32") for each in given if each is not None), key=lambda each: len(each.shape)
    )
    if not parts:
        return None
    if len(parts) == 2 and len(parts[0].shape) == len(parts[1].shape) - 1:
        parts[1] = keras.ops.squeeze(parts[1], -1)  # the only dimension that Keras lets one have more than the other
    return keras.ops.sum(parts[0] * parts[1] if len(parts) == 2 else parts[0])
