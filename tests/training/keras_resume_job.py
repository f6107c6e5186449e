"""A Keras training with all that has a state (dropout, batch normalisation, Adam, callbacks), which a signal can interrupt."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hvdtrain.keras as hk
from hvdtrain._keras.start import replicas


class Signals(keras.callbacks.Callback):
    """Sends this process a signal at a place that the options name."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        super().__init__()
        self.options = options
        self.mine = options.signal and rank == options.rank and not Path(options.mark).exists()
        self.epoch = 0
        self.rank = rank

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch + 1
        if self.options.limit_bytes and epoch == 2:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.options.limit_bytes, resource.RLIM_INFINITY))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.options.deviate and (self.epoch, batch, self.rank) == (1, 0, self.options.rank):
            weight = self.model.trainable_variables[1]
            weight.assign(weight + 1e-6)
        if self.options.place == "last" and (self.epoch, batch) == (2, self.params["steps"] - 1):
            self.send()
        if self.options.place == "step" and (self.epoch, batch) == (2, 3):
            self.send()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.options.place == "validation" and self.epoch == 2:
            self.send()

    def send(self) -> None:
        if self.mine:
            self.mine = False
            Path(self.options.mark).touch()
            for _ in range(3):
                os.kill(os.getpid(), getattr(signal, self.options.signal))


class Watches(keras.callbacks.Callback):
    """Has learned how many steps there were and what they cost; its place and its clock are this start's."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.made, self.seen, self.epochs = time.time(), 0, 0
        self.losses: list[float] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.began = time.time()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        self.epoch_began = time.time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["watched"] = float(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        self.losses.append(float(logs["loss"]))
        assert self.rank == hk.world().rank and self.began >= self.made and self.epoch_began >= self.made


class Data(hk.Loader):
    """A signal may come while samples are read, in a thread."""

    signals: Signals

    def __getitem__(self, step: int) -> Any:
        if self.signals.options.place == "data" and self.epoch == 2 and step == 3:
            self.signals.send()
        return super().__getitem__(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--signal", default="")
    parser.add_argument("--place", default="step")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--mark", default="mark")
    parser.add_argument("--rule", default="linear")
    parser.add_argument("--global-batch", type=int, default=12)
    parser.add_argument("--uneven", default="pad")
    parser.add_argument("--no-plateau", action="store_true", help="only the schedule changes the rate")
    parser.add_argument("--limit-bytes", type=int, help="largest file that rank 0 may write from epoch 3 on")
    parser.add_argument("--deviate", action="store_true", help="change a weight on --rank alone before the first step")
    parser.add_argument("--strategy", default="horovod")
    options = parser.parse_args()
    world = hk.init(options.strategy)
    keras.utils.set_random_seed(1 + world.rank)
    layers = [keras.Input((8,)), keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(5)])
    optimizer = hk.DistributedOptimizer(keras.optimizers.Adam(0.01), lr_rule=options.rule)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(101, 8)).astype("float32"), rng.integers(0, 5, 101)
    signals = Signals(options, world.rank)
    train = hk.loader(x, y, batch_size=options.global_batch // replicas(), seed=3, uneven=options.uneven)
    train.__class__, train.signals = Data, signals
    validation = hk.validation_loader(x[:43], y[:43], batch_size=4)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.9, patience=1, min_delta=0.05)
    watches = Watches(world.rank)
    given = [signals, watches, keras.callbacks.CSVLogger(options.out.with_suffix(".csv"), append=True)]
    given += [keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate)]
    if not options.no_plateau:
        given += [plateau]
    history = model.fit(
        train,
        validation_data=validation,
        epochs=options.epochs,
        callbacks=[*given, *hk.callbacks(checkpoints=options.checkpoints)],
        verbose=0,
    )
    state = [*model.get_weights(), *(np.asarray(keras.ops.convert_to_numpy(v)) for v in model.optimizer.variables)]
    if world.rank == 0:
        losses = np.asarray(history.history["loss"] + history.history["val_loss"] + history.history["watched"])
        np.savez(options.out, *state, losses, np.asarray([watches.seen, watches.epochs]), np.asarray(watches.losses))
        print(f"rate {float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)):.9g}")


if __name__ == "__main__":
    main()
