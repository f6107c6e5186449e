"""A step of Keras 3 on TensorFlow beside a hand-written one, on a machine whose speed drifts from second to second.

    python bench/step_keras_blocks.py --rounds 60 --json bench/results/step_keras_blocks.json

`step_keras.py` compares whole processes, minutes apart. Here the contenders are threads of the same ranks and take turns every ten
steps, in an order that is drawn anew for each round; only one of them is at work at any time:

    hvdtrain            `DistributedOptimizer` and `model.fit` with all that is on by default
    not measuring       the same without the clock of the phases and the norms of the gradients
    hand-written        Horovod's DistributedGradientTape in a compiled loop
    hand-written again  the same once more: what of a difference is noise
    hand, fit           the same tape in the `train_step` of a model, and `model.fit`

Printed are medians, and the median and quartiles of the times of hand-written within a round: above 1 is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
from step_keras import BATCH, MODELS, TapeInFit, batches, hand_written, with_tape
from turns import chosen, finish, in_ranks, machine, parser, ratio, spread, table

import hvdtrain.keras as hk
from hvdtrain._keras.optimizer import synchronization

BLOCK = 10
REFERENCE = "hand-written"


class Turns:
    """Lets one contender work at a time.

    Args:
        order: whose turn comes after whose; the same on every rank.
    """

    def __init__(self, order: list[str]) -> None:
        self._order, self._now, self._ready = order, 0, set[str]()
        self._began = 0.0
        self._moved = threading.Condition()
        self.seconds: dict[str, list[float]] = {name: [] for name in order}

    def before_step(self, name: str, step: int) -> None:
        """The first block, in which steps are traced, is everybody's own; then its turn is waited for before each other one."""
        if step == 0 or step % BLOCK:
            return
        if step > BLOCK:
            self.seconds[name].append((time.perf_counter() - self._began) / BLOCK)
            self.end()
        with self._moved:
            self._ready.add(name)
            self._moved.notify_all()
            everybody = set(self._order)
            self._moved.wait_for(lambda: self._ready == everybody and self._order[self._now] == name)
        self._began = time.perf_counter()

    def end(self) -> None:
        """The next one."""
        with self._moved:
            self._now += 1
            self._moved.notify_all()

    def wait_until_ready(self, name: str) -> None:
        """Its first block is over."""
        with self._moved:
            self._moved.wait_for(lambda: name in self._ready)


class Hook(keras.callbacks.Callback):
    """Takes turns in `fit`."""

    def __init__(self, before_step: Callable[[int], None]) -> None:
        super().__init__()
        self._before_step = before_step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._before_step(batch)


def by_hvdtrain(make: Callable[[], Any], x: Any, y: Any, before_step: Callable[[int], None], measuring: bool) -> None:
    model = make()
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.001, momentum=0.9), lr_rule="none")
    if not measuring:
        wire: Any = synchronization(optimizer).wire
        wire._mark = lambda name, after: None
        wire._add_norms = lambda grads, averaged: None
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    ours = [Hook(before_step), *hk.callbacks(checkpoints=False)]
    model.fit(hk.loader(x, y, batch_size=BATCH, seed=0), epochs=1, callbacks=ours, verbose=0)


def by_hand(make: Callable[[], Any], x: Any, y: Any, before_step: Callable[[int], None]) -> None:
    step, total = hand_written(make(), "hand"), 0.0
    for number, batch in enumerate(batches(x, y)):
        before_step(number)
        total += float(step(*batch))


def by_hand_in_fit(make: Callable[[], Any], x: Any, y: Any, before_step: Callable[[int], None]) -> None:
    model: TapeInFit = with_tape(make().layers)
    # Past the check that hvdtrain makes: it refuses a model whose optimizer it does not know.
    keras.Model.fit.__wrapped__(model, batches(x, y), epochs=1, callbacks=[Hook(before_step)], verbose=0)


CONTENDERS: dict[str, Callable[..., None]] = {
    "hvdtrain": lambda *given: by_hvdtrain(*given, measuring=True),
    "not measuring": lambda *given: by_hvdtrain(*given, measuring=False),
    REFERENCE: by_hand,
    "hand-written again": by_hand,
    "hand, fit": by_hand_in_fit,
}


def compare(make: Callable[[], Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of a step by contender and round."""
    drawn, order = random.Random(0), []
    for _ in range(rounds + 2):  # the first and the last one do not count
        order += drawn.sample(list(CONTENDERS), len(CONTENDERS))
    turns = Turns(order)
    shape, n = make().input_shape[1:], BATCH * hk.world().size * BLOCK * (rounds + 3)
    few = np.random.default_rng(0).normal(size=(2048, *shape)).astype("float32")
    x, y = few[np.arange(n) % len(few)], np.random.default_rng(1).integers(0, 10, n)

    def work(name: str) -> None:
        CONTENDERS[name](make, x, y, lambda step: turns.before_step(name, step))
        turns.end()

    threading.excepthook = _give_up
    workers = [threading.Thread(target=work, args=(name,)) for name in CONTENDERS]
    for name, worker in zip(CONTENDERS, workers, strict=True):
        worker.start()
        turns.wait_until_ready(name)
    for worker in workers:
        worker.join()
    return {name: turns.seconds[name][1:] for name in CONTENDERS}


def _give_up(failed: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(failed)
    os._exit(1)  # the others would wait for its turn to end


def main() -> None:
    made = parser(__doc__)
    made.set_defaults(rounds=60)
    made.add_argument("--ranks", type=int, default=2, help="how many (default %(default)s)")
    made.add_argument("--models", help="only those whose name holds one of these words, with commas, as CNN,MLP")
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.rank:
        hk.init()
        found = {name: compare(make, options.rounds) for name, (make, _) in chosen(options, MODELS).items()}
        if hk.world().rank == 0:
            options.out.write_text(json.dumps(found))
        return
    if options.tiny:
        options.rounds, options.models = 2, "CNN"
    facts, rows, figures = machine(), [], {}
    threads = {"OMP_NUM_THREADS": str(max(1, facts["cores"] // options.ranks))}
    words = ["--rank", "--rounds", options.rounds, *(["--models", options.models] if options.models else [])]
    for model, seconds in in_ranks(__file__, options.ranks, "auto", *words, environ=threads).items():
        for name, each in seconds.items():
            times, against = spread([1e3 * value for value in each]), ratio(each, seconds[REFERENCE])
            figures[f"{model}: {name}"] = {"ms": times, f"times of {REFERENCE}": against}
            shown = f"{against['median']:.3f} ({against['low']:.3f}-{against['high']:.3f})"
            rows.append([model, options.ranks, name, f"{times['median']:.1f}", shown])
    header = ["model", "CPU ranks", "contender", "ms", f"times of {REFERENCE}"]
    finish(options, facts, table(header, rows), {"steps": figures})


if __name__ == "__main__":
    main()
