"""What the clock, the noise scale and the replica check cost a Keras training, in one run of real ranks.

    python bench/overheads_keras.py --ranks 2 --turns 5

Two models with the same weights train in turns of 60 steps, now the one first, now the other: one as `hvdtrain.keras` trains by
default, one whose graph has no clock and takes no norms. The first five steps of a turn do not count. Printed is the median of the
ratios of neighbouring turns, and their quartiles; two models without either are compared in the same way, which shows how much of
that is noise. On TensorFlow the clock and the norms are also timed by themselves, compiled, on gradients of the model's size: what
they add to a step is less than the noise. The replica check is timed by itself and charged to every 200th step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import keras
import numpy as np

import hvdtrain.keras as hk
from hvdtrain._keras import replicas
from hvdtrain._keras.optimizer import synchronization
from hvdtrain._keras.start import gather_objects
from hvdtrain._keras.training import REPLICA_EVERY

TURN = 60
WARM_UP = 5


class Steps(keras.callbacks.Callback):
    """Seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self.began)


def model_of(width: int, measuring: bool) -> Any:
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(10)])
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.01), lr_rule="none")
    if not measuring:
        wire: Any = synchronization(optimizer).wire
        wire._mark = lambda name, after: None
        wire._add_norms = lambda grads, averaged: averaged
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def measure(turns: int, width: int) -> dict[str, Any]:
    """Medians in seconds."""
    hk.init()
    size = hk.world().size
    x = np.random.default_rng(0).normal(size=(TURN * 32 * size, width)).astype("float32")
    train = hk.loader(x, np.zeros(len(x), int), batch_size=32)
    models = {"with": model_of(width, True), "without": model_of(width, False), "again without": model_of(width, False)}
    clocks = {name: Steps() for name in models}
    checks: list[float] = []
    ratios: dict[str, list[float]] = {"clock and norms": [], "noise": []}
    for turn in range(turns):
        for name in sorted(models, reverse=turn % 2 == 0):
            model = models[name]
            own = [clocks[name], *hk.callbacks(checkpoints=False, replica_check=False)]
            model.fit(train, epochs=1, callbacks=own, verbose=0)
            # Each `fit` traces its graph anew.
            del clocks[name].seconds[-TURN : WARM_UP - TURN]
        with_all, without, again = (statistics.median(clocks[name].seconds[WARM_UP - TURN :]) for name in models)
        ratios["clock and norms"].append(with_all / without)
        ratios["noise"].append(again / without)
        time.sleep(0.5)  # threads of Keras still read ahead for a while
        for _ in range(3):
            gather_objects(None)  # ranks end a fit at different times; the check must not be charged with that
            began = time.perf_counter()
            replicas.check(models["with"].trainable_variables, 1)
            checks.append(time.perf_counter() - began)
    found: dict[str, Any] = {name: statistics.median(clock.seconds) for name, clock in clocks.items()}
    for name, values in ratios.items():
        found[name] = dict(
            zip(("lower quartile", "median", "upper quartile"), statistics.quantiles(values, n=4), strict=True)
        )
    if keras.backend.backend() == "tensorflow":
        found["clock and norms, seconds alone"] = alone(models["with"])
    return {**found, "check": statistics.median(checks)}


def alone(model: Any, repeats: int = 500) -> float:
    """Seconds that the clock and the norms take in a step, in a graph that does nothing else."""
    import tensorflow as tf

    wire: Any = synchronization(model.optimizer).wire
    grads = [tf.random.normal(variable.shape) for variable in model.trainable_variables]
    loss = tf.constant(1.0)

    @tf.function(jit_compile=False)
    def measuring() -> Any:
        for name in ("data", "loss"):
            wire._mark(name, [loss])
        for name in ("gradients", "reduce_began", "reduce_ended"):
            wire._mark(name, grads)
        wire._add_norms(grads, grads)
        return loss

    @tf.function(jit_compile=False)
    def nothing() -> Any:
        return tf.identity(loss)

    seconds: dict[Any, list[float]] = {nothing: [], measuring: []}
    for number in range(20):
        for function, means in seconds.items():
            began = time.perf_counter()
            for _ in range(repeats // 10):
                function()
            if number:  # the first turn compiles
                means.append((time.perf_counter() - began) / (repeats // 10))
    return statistics.median(seconds[measuring]) - statistics.median(seconds[nothing])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.rank:
        command = [sys.executable, "-m", "hvdtrain.launch", "-n", str(options.ranks), __file__, "--rank"]
        command += ["--turns", str(options.turns), "--width", str(options.width)]
        sys.exit(subprocess.run(command, check=False).returncode)
    found = measure(options.turns, options.width)
    if hk.world().rank == 0:
        found["replica check"] = 1 + found["check"] / (REPLICA_EVERY * found["without"])
        if "clock and norms, seconds alone" in found:
            found["together"] = found["replica check"] + found["clock and norms, seconds alone"] / found["without"]
        place = f"{hk.world().size} ranks on {os.cpu_count()} cores, {keras.backend.backend()}"
        print(json.dumps({"machine": place, "width": options.width, **found}, indent=1))


if __name__ == "__main__":
    main()
