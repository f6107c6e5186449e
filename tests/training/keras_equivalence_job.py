"""Trains the same Keras models on the same union of samples, whatever the number of ranks, and saves where they ended.

`--union` is the batch of the whole world. One process runs all cases: importing frameworks takes longer than training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hvdtrain.keras as hk
from hvdtrain._keras.start import gather_objects, replicas
from hvdtrain._keras.state import statistics
from tests.training.keras_loops import LOOPS

CLASSES = 5
SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
Optimizer = keras.optimizers.Optimizer

loss_of = keras.losses.SparseCategoricalCrossentropy


def perceptron() -> keras.Model:
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(CLASSES)])


def embedding() -> keras.Model:
    layers = [keras.Input((8,)), keras.layers.Embedding(20, 6), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
    return keras.Sequential(layers)


def sequences() -> keras.Model:
    """Whose kernel has a gradient of a shape that TensorFlow does not know before it runs."""
    layers = [keras.Input((8,)), keras.layers.Embedding(21, 4, mask_zero=True), keras.layers.Dense(5)]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES)])


def tokens() -> keras.Model:
    """One answer for each token, and one for each sequence whose loss divides by weights."""
    x = keras.Input((8,))
    hidden = keras.layers.Embedding(21, 4, mask_zero=True)(x)
    hidden = keras.layers.Dense(5, "tanh", kernel_regularizer="l2")(hidden)
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(x, [keras.layers.Dense(CLASSES)(hidden), keras.layers.Dense(CLASSES)(pooled)])


class Unused(keras.Model):
    """`never` exists and takes no part: its gradient is None, and weight decay must leave it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.never = keras.layers.Dense(CLASSES), keras.layers.Dense(CLASSES)
        self.never.build((None, 8))

    def call(self, x: Any) -> Any:
        return self.used(x)


class Branching(keras.Model):
    """`rare` takes part only where the batch holds a sample whose first feature exceeds 1.5."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.rare = keras.layers.Dense(CLASSES), keras.layers.Dense(CLASSES)
        self.rare.build((None, 8))

    def call(self, x: Any) -> Any:
        output = self.base(x)
        chosen = keras.ops.cast(x[:, :1] > 1.5, "float32")
        if float(keras.ops.convert_to_numpy(keras.ops.sum(chosen))) > 0:
            output = output + chosen * self.rare(x)
        return output


class Overflowing(keras.Model):
    """The scaled gradient overflows for the one sample whose first feature is 1,000, though its loss is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES, dtype="float32")

    def call(self, x: Any) -> Any:
        x = keras.ops.cast(x, "float32")
        return self.dense(x * (1.0 + keras.ops.cast(x[:, :1] > 999, "float32") * 1e34))


class Began(keras.callbacks.Callback):
    """Remembers the weights before the first step."""

    weights: list[Any]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            Began.weights = [np.asarray(value, "float64") for value in self.model.get_weights()]


Case = tuple[Callable[[], keras.Model], Callable[[], Optimizer], dict[str, Any]]


def decay(steps: int = 4) -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.ExponentialDecay(0.1, steps, 0.7)


CASES: dict[str, Case] = {
    "sgd_momentum": (perceptron, lambda: SGD(0.1, momentum=0.9), {}),
    "adam": (perceptron, lambda: Adam(0.01), {}),
    "adamw": (perceptron, lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1), {}),
    "rmsprop": (perceptron, lambda: keras.optimizers.RMSprop(0.01), {}),
    "adagrad": (perceptron, lambda: keras.optimizers.Adagrad(0.01), {}),
    "adadelta": (perceptron, lambda: keras.optimizers.Adadelta(1.0), {}),
    "nadam": (perceptron, lambda: keras.optimizers.Nadam(0.01), {}),
    "clipnorm": (perceptron, lambda: SGD(0.1, clipnorm=0.05), {}),
    "global_clipnorm": (perceptron, lambda: SGD(0.1, momentum=0.9, global_clipnorm=0.1), {}),
    "clipvalue": (perceptron, lambda: SGD(0.1, clipvalue=0.01), {}),
    "weight_decay": (perceptron, lambda: SGD(0.1, weight_decay=0.1), {}),
    "ema": (perceptron, lambda: SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3), {}),
    "schedule": (perceptron, lambda: SGD(decay(), momentum=0.9), {}),
    "accumulation": (perceptron, lambda: SGD(0.1, momentum=0.9, gradient_accumulation_steps=2), {}),
    "eager": (perceptron, lambda: SGD(0.1, momentum=0.9), {"eager": True}),
    "eager_accumulation": (perceptron, lambda: Adam(0.01, gradient_accumulation_steps=4), {"eager": True}),
    "last_step_shared_out": (perceptron, lambda: SGD(0.1, momentum=0.9), {"n": 101}),
    "weights_of_samples": (perceptron, lambda: SGD(0.1, momentum=0.9), {"n": 101, "oversampled": 2}),
    "weights_of_classes": (perceptron, lambda: SGD(0.1, momentum=0.9), {"n": 101, "class_weight": {0: 3.0, 2: 0.5}}),
    "part_of_an_epoch": (perceptron, lambda: SGD(0.1, momentum=0.9), {"n": 101, "steps_per_epoch": 5}),
    "fewer_samples_than_ranks": (perceptron, lambda: SGD(0.1, momentum=0.9), {"n": 97}),
    "gradients_none": (Unused, lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1), {}),
    "gradients_none_eager": (Unused, lambda: SGD(0.1, weight_decay=0.1), {"eager": True}),
    "rank_dependent_branches": (Branching, lambda: SGD(0.1, momentum=0.9), {"eager": True}),
    "sparse": (embedding, lambda: SGD(0.1, momentum=0.9), {"whole": True}),
    "sparse_adam_clipped": (embedding, lambda: Adam(0.01, global_clipnorm=0.5), {"whole": True}),
    "sparse_eager": (embedding, lambda: keras.optimizers.Adagrad(0.01), {"whole": True, "eager": True}),
    "masked_sequences": (sequences, lambda: SGD(0.1, momentum=0.9), {"whole": True}),
    "tokens": (tokens, lambda: SGD(0.1, momentum=0.9), {"tokens": True}),
    "tokens_eager": (tokens, lambda: SGD(0.1, momentum=0.9), {"tokens": True, "eager": True}),
    "tokens_last_step": (tokens, lambda: SGD(0.1, momentum=0.9), {"tokens": True, "n": 101}),
    "tokens_fewer_than_ranks": (tokens, lambda: SGD(0.1, momentum=0.9), {"tokens": True, "n": 97}),
    "tokens_accumulated": (tokens, lambda: SGD(0.1, gradient_accumulation_steps=2), {"tokens": True}),
    "fp16_on_the_wire": (perceptron, lambda: SGD(0.1, momentum=0.9), {"compression": "fp16"}),
    "fp16_on_the_wire_eager": (perceptron, lambda: SGD(0.1), {"compression": "fp16", "eager": True}),
    "bf16_on_the_wire": (perceptron, lambda: SGD(0.1, momentum=0.9), {"compression": "bf16"}),
    "bf16_on_the_wire_eager": (perceptron, lambda: SGD(0.1), {"compression": "bf16", "eager": True}),
    "float64": (perceptron, lambda: SGD(0.1, momentum=0.9), {"policy": "float64"}),
    "float64_eager": (perceptron, lambda: SGD(0.1, momentum=0.9), {"policy": "float64", "eager": True}),
    "mixed_bfloat16": (perceptron, lambda: SGD(0.1, momentum=0.9), {"policy": "mixed_bfloat16"}),
    "mixed_float16": (perceptron, lambda: SGD(0.1, momentum=0.9), {"policy": "mixed_float16"}),
    # Half precision decides the sign of a gradient that is nearly zero; with its usual epsilon Adam makes a whole step of that.
    "mixed_float16_accumulation": (
        perceptron,
        lambda: Adam(0.01, epsilon=1e-3, gradient_accumulation_steps=2),
        {"policy": "mixed_float16"},
    ),
    "scaled_by_compile": (perceptron, lambda: SGD(0.1), {"policy": "mixed_float16", "wrap_first": True}),
    "overflow_on_one_rank": (Overflowing, lambda: SGD(0.1, momentum=0.9), {"policy": "mixed_float16", "huge": True}),
}
#: Not on PyTorch: it has no sum of bfloat16 numbers as TensorFlow has, and Keras no dense batch of one eager graph.
TENSORFLOW_ONLY = ("bf16_on_the_wire", "bf16_on_the_wire_eager")


def samples(n: int, seed: int, whole: bool = False, huge: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 20, (n, 8)).astype("float32") if whole else rng.normal(size=(n, 8)).astype("float32")
    if huge:
        x[17, 0] = 1000.0
    return x, rng.integers(0, CLASSES, n)


def sentences(n: int) -> tuple[Any, Any, Any]:
    """Of one to eight tokens; some of them, and all of every third sentence, have a class that does not count."""
    rng = np.random.default_rng(9)
    lengths = rng.integers(1, 9, n)
    x = rng.integers(1, 21, (n, 8)) * (np.arange(8) < lengths[:, None])
    each, whole = rng.integers(0, CLASSES, (n, 8)), rng.integers(0, CLASSES, n)
    each[::3] = 4
    return (
        x.astype("float32"),
        (each, whole),
        (np.ones((n, 8), "float32"), np.exp(rng.normal(size=n)).astype("float32")),
    )


def train(name: str, union: int) -> dict[str, list[Any]]:
    build, optimizer_for, options = CASES[name]
    world = hk.world()
    keras.config.set_dtype_policy("float32" if options.get("wrap_first") else options.get("policy", "float32"))
    # Every rank begins somewhere else; only rank 0's weights may count.
    keras.utils.set_random_seed(1 if world.rank == 0 else 100 + world.rank)
    optimizer = optimizer_for()
    optimizer = hk.DistributedOptimizer(optimizer, lr_rule="none", compression=options.get("compression", "none"))
    keras.config.set_dtype_policy(options.get("policy", "float32"))
    model = build()
    loss: Any = loss_of(from_logits=True)
    x, y = samples(options.get("n", 96), 7, options.get("whole", False), options.get("huge", False))
    weights = 1.0 + 9 * (y == options["oversampled"]) if "oversampled" in options else None
    data: tuple[Any, ...] = (x, y)
    if options.get("tokens"):
        data = sentences(len(x))
        loss = [
            loss_of(from_logits=True, ignore_class=4),
            loss_of(from_logits=True, reduction="mean_with_sample_weight"),
        ]
    model.compile(optimizer, loss, run_eagerly=options.get("eager", False), jit_compile=False)
    train = hk.loader(*data, batch_size=union // replicas(), seed=3, weights=weights)
    # Ranks have different numbers of its batches, so nothing may wait for others there.
    validation = hk.validation_loader(*sentences(43), batch_size=10) if options.get("tokens") else None
    callbacks = [Began(), *hk.callbacks(checkpoints=False)]
    further = {name: options[name] for name in ("class_weight", "steps_per_epoch") if name in options}
    history = model.fit(train, validation_data=validation, epochs=2, callbacks=callbacks, verbose=0, **further).history
    ended = {"weights": [np.asarray(value, "float64") for value in model.get_weights()]}
    if options.get("tokens"):
        # Not those of single outputs and of validation: Keras makes a mean over batches of them, which ranks divide differently.
        ended["losses"] = [np.asarray(history["loss"], "float64")]
    if name.startswith("gradients_none"):
        ended["began"] = gather_objects(Began.weights)[0]
    if options.get("policy") == "mixed_float16":
        ended["scale"] = [np.asarray(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale), "float64")]
    keras.config.set_dtype_policy("float32")
    return ended


def metrics(union: int) -> dict[str, list[float]]:
    """What `fit` reports over samples that do not divide by anything, and what early stopping makes of it."""
    keras.utils.set_random_seed(5)
    model = perceptron()
    optimizer = hk.DistributedOptimizer(SGD(0.1), lr_rule="none")
    named = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")]
    model.compile(optimizer, loss_of(from_logits=True), metrics=named, jit_compile=False)
    x, y = samples(101, 7)
    x_val, y_val = samples(43, 8)
    train = hk.loader(x, y, batch_size=union // replicas(), seed=3)
    validation = hk.validation_loader(x_val, y_val, batch_size=10)
    own = [
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.1),
        keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.02, restore_best_weights=True),
    ]
    history = model.fit(
        train, validation_data=validation, epochs=12, callbacks=[*own, *hk.callbacks(checkpoints=False)], verbose=0
    )
    result = dict(history.history)
    result["evaluated"] = sorted(hk.evaluate(model, validation, verbose=0).values())
    result["last_rate"] = [float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))]
    return {key: [float(value) for value in values] for key, values in result.items()}


def normalised(union: int) -> dict[str, Any]:
    """Batch normalisation: each rank sees its own statistics; afterwards all must hold the mean of them."""
    keras.utils.set_random_seed(6)
    layers = [keras.Input((8,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
    model.compile(hk.DistributedOptimizer(SGD(0.01), lr_rule="none"), loss_of(from_logits=True), jit_compile=False)
    x, y = samples(96, 9)
    model.fit(
        hk.loader(x, y, batch_size=union // replicas()),
        epochs=2,
        callbacks=hk.callbacks(checkpoints=False),
        verbose=0,
    )
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    return {
        "statistics": [keras.ops.convert_to_numpy(v).tolist() for v in statistics(model)],
        "seed": [int(keras.ops.convert_to_numpy(v)[0]) for v in seeds],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--union", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--strategy", default="horovod")
    options = parser.parse_args()
    world = hk.init(options.strategy)
    on_tensorflow = keras.backend.backend() == "tensorflow"
    names = [name for name in options.cases or CASES if on_tensorflow or name not in TENSORFLOW_ONLY]
    ended = {name: train(name, options.union) for name in names}
    if not options.cases and options.strategy == "horovod":
        ended |= {name: loop(options.union) for name, loop in LOOPS[keras.backend.backend()].items()}
    sums = {name: [[float(v.sum()) for v in part] for part in state.values()] for name, state in ended.items()}
    alike = [name for name in ended if any(each[name] != sums[name] for each in gather_objects(sums))]
    report = {"unlike": alike, "metrics": metrics(options.union)}
    report["normalised"] = gather_objects(normalised(options.union))
    if world.rank == 0:
        flat = {
            f"{n}/{k}/{i}": v for n, state in ended.items() for k, part in state.items() for i, v in enumerate(part)
        }
        np.savez(options.out, **flat)
        options.out.with_suffix(".json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
