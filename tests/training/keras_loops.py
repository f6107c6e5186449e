"""Training loops of one's own, as a Keras user writes them, each over the same union of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import hvdtrain.keras as hk

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _begin(union: int) -> tuple[Any, Any, Any]:
    world = hk.world()
    keras.utils.set_random_seed(1 if world.rank == 0 else 100 + world.rank)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(5)])
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), lr_rule="none")
    hk.broadcast(model, optimizer)
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(101, 8)).astype("float32"), rng.integers(0, 5, 101)
    return model, optimizer, hk.loader(x, y, batch_size=union // world.size, seed=3)


def _weights(model: Any) -> dict[str, list[Any]]:
    return {"weights": [np.asarray(value, "float64") for value in model.get_weights()]}


def tensorflow_loop(union: int, compiled: bool) -> dict[str, list[Any]]:
    import tensorflow as tf

    model, optimizer, train = _begin(union)

    def step(x: Any, y: Any, weight: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) * weight
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    run = tf.function(step, reduce_retracing=True) if compiled else step
    for epoch in (1, 2):
        train.start(epoch)
        for index, part in enumerate(train.batches()):
            x, y = train[index]
            run(tf.constant(x), tf.constant(y), tf.constant(part.weight, tf.float32))
    return _weights(model)


def torch_loop(union: int) -> dict[str, list[Any]]:
    import torch

    model, optimizer, train = _begin(union)
    for epoch in (1, 2):
        train.start(epoch)
        for index, part in enumerate(train.batches()):
            x, y = train[index]
            model.zero_grad()
            (loss_of(torch.tensor(y), model(torch.tensor(x))) * part.weight).backward()
            with torch.no_grad():
                optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)
    return _weights(model)


LOOPS: dict[str, dict[str, Callable[[int], dict[str, list[Any]]]]] = {
    "tensorflow": {
        "own_loop_compiled": lambda union: tensorflow_loop(union, True),
        "own_loop_eager": lambda union: tensorflow_loop(union, False),
    },
    "torch": {"own_loop": torch_loop},
}
