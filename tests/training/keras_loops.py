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


def _weights(*models: Any) -> dict[str, list[Any]]:
    return {"weights": [np.asarray(value, "float64") for model in models for value in model.get_weights()]}


def _adversaries() -> tuple[Any, ...]:
    """A maker and a judge, whose first layers are alike, and an optimizer for each."""
    world = hk.world()
    keras.utils.set_random_seed(1 if world.rank == 0 else 100 + world.rank)
    layers = keras.layers
    maker = keras.Sequential([keras.Input((8,)), layers.Dense(8, activation="tanh"), layers.Dense(8)])
    judge = keras.Sequential([keras.Input((8,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    of_maker, of_judge = (hk.DistributedOptimizer(keras.optimizers.Adam(rate), lr_rule="none") for rate in (0.01, 0.02))
    hk.broadcast(maker, of_maker)
    hk.broadcast(judge, of_judge)
    return maker, judge, of_maker, of_judge


def _adversarial_losses(maker: Any, judge: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    ops, fake = keras.ops, judge(maker(x))
    of_judge = ops.mean(ops.softplus(-judge(ops.abs(x))) + ops.softplus(fake)) * weight
    return ops.mean(ops.softplus(-fake)) * weight, of_judge


def tensorflow_adversarial(union: int, compiled: bool) -> dict[str, list[Any]]:
    """Both averages in one graph, where nothing orders them."""
    import tensorflow as tf

    train = _begin(union)[2]
    maker, judge, of_maker, of_judge = _adversaries()

    def step(x: Any, weight: Any) -> None:
        with tf.GradientTape(persistent=True) as tape:
            maker_loss, judge_loss = _adversarial_losses(maker, judge, x, weight)
        moves = [tape.gradient(maker_loss, maker.trainable_variables)]
        moves.append(tape.gradient(judge_loss, judge.trainable_variables))
        of_maker.apply(moves[0], maker.trainable_variables)
        of_judge.apply(moves[1], judge.trainable_variables)

    run = tf.function(step, reduce_retracing=True) if compiled else step
    for epoch in (1, 2):
        train.start(epoch)
        for index, part in enumerate(train.batches()):
            run(tf.constant(train[index][0]), tf.constant(part.weight, tf.float32))
    return _weights(maker, judge)


def torch_adversarial(union: int) -> dict[str, list[Any]]:
    import torch

    train = _begin(union)[2]
    maker, judge, of_maker, of_judge = _adversaries()
    own = [[variable.value for variable in model.trainable_variables] for model in (maker, judge)]
    for epoch in (1, 2):
        train.start(epoch)
        for index, part in enumerate(train.batches()):
            losses = _adversarial_losses(maker, judge, torch.tensor(train[index][0]), part.weight)
            moves = [torch.autograd.grad(loss, mine, retain_graph=True) for loss, mine in zip(losses, own, strict=True)]
            with torch.no_grad():
                of_maker.apply(list(moves[0]), maker.trainable_variables)
                of_judge.apply(list(moves[1]), judge.trainable_variables)
    return _weights(maker, judge)


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
        "adversarial_compiled": lambda union: tensorflow_adversarial(union, True),
        "adversarial_eager": lambda union: tensorflow_adversarial(union, False),
    },
    "torch": {"own_loop": torch_loop, "adversarial": torch_adversarial},
}
