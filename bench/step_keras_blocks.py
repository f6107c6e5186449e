"""A step of Keras 3 on TensorFlow beside a hand-written one, on a machine whose speed drifts from second to second.

    python bench/step_keras_blocks.py --ranks 2,4 --json bench/results/step_keras_blocks.json

The contenders are threads of the same ranks and take turns every ten steps (`blocks.py`):

    hvdtrain            `DistributedOptimizer` and `model.fit` with all that is on by default
    not measuring       the same without the clock of the phases and the norms of the gradients
    hand-written        Horovod's DistributedGradientTape in a compiled loop
    hand-written again  the same once more: what of a difference is noise
    hand, fit           the same tape in the `train_step` of a model, and `model.fit`

Printed are medians, and their ratio to that of both hand-written ones together over all starts, with a 90 % interval: above 1 is
slower.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
from blocks import REFERENCE, BeforeStep, compare_steps, steps, take_turns
from step_keras import BATCH, MODELS, TapeInFit, batches, hand_written, with_tape

import hvdtrain.keras as hk
from hvdtrain._keras.optimizer import synchronization


class Hook(keras.callbacks.Callback):
    """Takes turns in `fit`."""

    def __init__(self, before_step: BeforeStep) -> None:
        super().__init__()
        self._before_step = before_step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._before_step(batch)


def by_hvdtrain(make: Callable[[], Any], x: Any, y: Any, before_step: BeforeStep, measuring: bool = True) -> None:
    model = make()
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.001, momentum=0.9), lr_rule="none")
    if not measuring:
        wire: Any = synchronization(optimizer).wire
        wire._mark = lambda name, after: None
        wire._add_norms = lambda grads, averaged: averaged
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    ours = [Hook(before_step), *hk.callbacks(checkpoints=False)]
    model.fit(hk.loader(x, y, batch_size=BATCH, seed=0), epochs=1, callbacks=ours, verbose=0)


def by_hand(make: Callable[[], Any], x: Any, y: Any, before_step: BeforeStep) -> None:
    step, total = hand_written(make(), "hand"), 0.0
    for number, batch in enumerate(batches(x, y)):
        before_step(number)
        total += float(step(*batch))


def by_hand_in_fit(make: Callable[[], Any], x: Any, y: Any, before_step: BeforeStep) -> None:
    model: TapeInFit = with_tape(make().layers)
    # Past the check that hvdtrain makes: it refuses a model whose optimizer it does not know.
    keras.Model.fit.__wrapped__(model, batches(x, y), epochs=1, callbacks=[Hook(before_step)], verbose=0)


CONTENDERS: dict[str, Callable[..., None]] = {
    "hvdtrain": by_hvdtrain,
    "not measuring": functools.partial(by_hvdtrain, measuring=False),
    **dict.fromkeys(REFERENCE, by_hand),
    "hand, fit": by_hand_in_fit,
}


def compare(model: Any, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of a step by contender and round."""
    make = model[0]
    shape, n = make().input_shape[1:], BATCH * hk.world().size * steps(options.rounds)
    few = np.random.default_rng(0).normal(size=(2048, *shape)).astype("float32")
    x, y = few[np.arange(n) % len(few)], np.random.default_rng(1).integers(0, 10, n)
    given = {name: functools.partial(run, make, x, y) for name, run in CONTENDERS.items()}
    return take_turns(given, options)


if __name__ == "__main__":
    compare_steps(__doc__, __file__, MODELS, compare, hk.init)
