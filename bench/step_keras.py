"""What a training step costs with Keras 3 on TensorFlow: hvdtrain beside what a user would write instead.

    python bench/step_keras.py --ranks 2,4 --rounds 5 --json bench/results/step_keras.json

Every contender trains the same models on the same random data, in processes of its own, and they take turns:

    hvdtrain        `DistributedOptimizer` and `model.fit` with all that is on by default, under the launcher that `auto` picks
    hvdtrain gloo   the same without MPI
    hand-written    Horovod's DistributedGradientTape in a compiled loop, started alike
    hand, fit       the same tape in the `train_step` of a model, and `model.fit`
    multiworker     MultiWorkerMirroredStrategy's collectives in a compiled loop of `strategy.run` (`fit` of Keras 3 fails there)
    single          one process with as many threads as a rank has, and a rank's batch, in the same compiled loop

An epoch's training seconds over its steps, first epoch not counted. Printed are medians over the rounds, and the median and
quartiles of the ratios within a round: above 1, ours is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from turns import chosen, compare_steps

import hvdtrain.keras as hk

#: Contender -> launcher, and what runs in each rank.
CONTENDERS = {
    "hvdtrain": ("auto", "hvdtrain"),
    "hvdtrain gloo": ("local", "hvdtrain"),
    "hand-written": ("auto", "hand"),
    "hand, fit": ("auto", "fit"),
    "multiworker": ("auto", "multiworker"),
    "single": ("none", "single"),
}
BATCH = 32


def small_cnn() -> keras.Model:
    """About 0.2 million parameters on 28x28 pixels."""
    convolutions = [
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
    ]
    dense = [layers.MaxPooling2D(), layers.Flatten(), layers.Dense(256, activation="relu"), layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *convolutions, *dense])


def wide_mlp() -> keras.Model:
    """Six layers of 1,024: 6.3 million parameters and little to compute, so the gradients' way counts most."""
    hidden = [layers.Dense(1024, activation="relu") for _ in range(6)]
    return keras.Sequential([keras.Input((1024,)), *hidden, layers.Dense(10)])


#: Model -> how to make it, and steps of an epoch.
MODELS = {"small CNN": (small_cnn, 200), "6 x 1024 MLP": (wide_mlp, 60)}


class Epochs(keras.callbacks.Callback):
    """Seconds of each epoch from its first step to its last."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self.began)


def by_hvdtrain(model: keras.Model, x: np.ndarray, y: np.ndarray, epochs: int) -> list[float]:
    """Seconds of each epoch."""
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.001, momentum=0.9), lr_rule="none")
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    clock, train = Epochs(), hk.loader(x, y, batch_size=BATCH, seed=0)
    model.fit(train, epochs=epochs, callbacks=[clock, *hk.callbacks(checkpoints=False)], verbose=0)
    return clock.seconds


def hand_written(model: keras.Model, contender: str) -> Callable[[Any, Any], Any]:
    """The compiled step of any tutorial: x, y -> loss."""
    optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
    optimizer.build(model.trainable_variables)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if contender == "hand":
        import horovod.tensorflow as hvd

        hvd.broadcast_variables([each.value for each in (*model.variables, *optimizer.variables)], root_rank=0)
    total = _sum_of(contender)
    # Horovod's tape knows TensorFlow's variables, not those of Keras around them.
    weights = [each.value for each in model.trainable_variables]

    @tf.function(jit_compile=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = criterion(y, model(x, training=True))
        if contender == "hand":
            tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, weights)
        optimizer.apply(total(grads), model.trainable_variables)
        return loss

    return step


def by_hand(model: keras.Model, x: np.ndarray, y: np.ndarray, epochs: int, contender: str) -> list[float]:
    """Seconds of each epoch."""
    step = hand_written(model, contender)
    seconds = []
    for _ in range(epochs):
        began, losses = time.perf_counter(), 0.0
        for batch in batches(x, y):
            losses += float(step(*batch))
        seconds.append(time.perf_counter() - began)
    return seconds


class TapeInFit(keras.Sequential):  # type: ignore[misc]
    """Averages where Keras 3 leaves room for it."""

    def train_step(self, data: Any) -> Any:
        import horovod.tensorflow as hvd

        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        grads = hvd.DistributedGradientTape(tape).gradient(loss, [each.value for each in self.trainable_variables])
        self.optimizer.apply(grads, self.trainable_variables)
        return self.compute_metrics(x, y, predicted, None)


def with_tape(layers: list[Any]) -> keras.Model:
    """Compiled, and started alike on all ranks."""
    import horovod.tensorflow as hvd

    model = TapeInFit(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([each.value for each in (*model.variables, *model.optimizer.variables)], root_rank=0)
    return model


def by_hand_in_fit(model: keras.Model, x: np.ndarray, y: np.ndarray, epochs: int) -> list[float]:
    """Seconds of each epoch."""
    model, clock = with_tape(model.layers), Epochs()
    # Past the check that hvdtrain makes: it refuses a model whose optimizer it does not know.
    keras.Model.fit.__wrapped__(model, batches(x, y), epochs=epochs, callbacks=[clock], verbose=0)
    return clock.seconds


def batches(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Of this rank. Without self-tuning, whose thread makes the end of each epoch wait for it."""
    world, untuned = hk.world(), tf.data.Options()
    untuned.autotune.enabled = False
    data = tf.data.Dataset.from_tensor_slices((x[world.rank :: world.size], y[world.rank :: world.size]))
    return data.shuffle(len(x), seed=0).batch(BATCH).prefetch(2).with_options(untuned)


def _sum_of(contender: str) -> Any:
    """What makes averages of gradients where the tape does not."""
    if contender != "multiworker":
        return lambda grads: grads
    from hvdtrain._keras.backends import backend

    strategy, size = backend().ranks()._strategy, hk.world().size  # type: ignore[attr-defined]

    def add_up(grads: Any) -> Any:
        here = [tf.identity(grad) for grad in grads]
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    return lambda grads: [each / size for each in strategy.run(add_up, args=(grads,))]


def rank(options: argparse.Namespace) -> None:
    """One rank of one contender."""
    world = hk.init({"multiworker": "multiworker", "single": "single"}.get(options.rank, "horovod"))
    found = {}
    for name, (make, steps) in chosen(options, MODELS).items():
        keras.utils.set_random_seed(0)
        model = make()
        n = BATCH * world.size * (2 if options.tiny else steps)
        x = np.random.default_rng(0).normal(size=(n, *model.input_shape[1:])).astype("float32")
        y = np.random.default_rng(1).integers(0, 10, n)
        epochs = 2 if options.tiny else 5
        if options.rank == "hvdtrain":
            seconds = by_hvdtrain(model, x, y, epochs)
        elif options.rank == "fit":
            seconds = by_hand_in_fit(model, x, y, epochs)
        else:
            seconds = by_hand(model, x, y, epochs, options.rank)
        found[name] = statistics.median(seconds[1:]) * BATCH * world.size / n
    if world.rank == 0:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    compare_steps(__doc__, __file__, CONTENDERS, ["hand-written", "hand, fit", "multiworker"], rank)
