"""One epoch of `model.fit` as the record that reports are made of."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import keras

from hvdtrain import record
from hvdtrain._keras.backends import Wire
from hvdtrain._keras.loader import Loader
from hvdtrain._keras.optimizer import synchronization
from hvdtrain._keras.start import sum_over_ranks, world
from hvdtrain.noise import NoiseScale
from hvdtrain.record import Epoch

_ACCURACIES = (
    "accuracy",
    "acc",
    "sparse_categorical_accuracy",
    "categorical_accuracy",
    "binary_accuracy",
)


#: By name: a number, or a list of them where a metric has one for each class.
Logs = dict[str, float | list[Any]]


def plain(logs: dict[str, Any]) -> Logs:
    """An epoch's logs from Keras, whose values may be tensors; a list of one value is a number."""
    arrays = {name: keras.ops.convert_to_numpy(value).astype("float64") for name, value in logs.items()}
    return {name: array.item() if array.size == 1 else array.tolist() for name, array in arrays.items()}


def numbers(logs: Logs) -> dict[str, float]:
    """Those of them that one can compare, and records know."""
    return {name: value for name, value in logs.items() if not isinstance(value, list)}


@dataclass(frozen=True)
class Quantities:
    """What the records know of an epoch's logs."""

    train_loss: float | None
    train_acc: float | None
    val_loss: float | None
    val_acc: float | None


def quantities(logs: dict[str, float]) -> Quantities:
    """Loss and accuracy among `logs`, under whichever of Keras' names."""
    accuracy = next((name for name in _ACCURACIES if name in logs), None)
    return Quantities(
        logs.get("loss"),
        logs.get(accuracy) if accuracy else None,
        logs.get("val_loss"),
        logs.get(f"val_{accuracy}") if accuracy else None,
    )


class EpochMeter:
    """Samples and seconds of one epoch on this rank.

    Attributes:
        rate: the learning rate of its last step.
        accumulated: batches whose gradients make one update.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.total_steps = 0
        self.rate: float | None = None
        self.accumulated = 1
        self._samples = 0
        self._seconds_before = 0.0
        self._samples_before = 0
        self.begin()

    def begin(self) -> None:
        """An epoch begins."""
        self.steps = self._samples = self._samples_before = 0
        self._seconds_before = 0.0
        self._began = time.perf_counter()
        self._trained: float | None = None

    def add(self, samples: int) -> None:
        """A step with `samples` of this rank."""
        self.steps += 1
        self.total_steps += 1
        self._samples += samples

    def training_ends(self) -> None:
        """Validation begins."""
        self._trained = time.perf_counter()

    def saved(self) -> dict[str, float]:
        """What an interrupted epoch must not lose; the same on every rank."""
        seconds = time.perf_counter() - self._began + self._seconds_before
        samples = sum_over_ranks([float(self._samples)])[0] + self._samples_before
        return {"seconds": seconds, "samples": samples}

    def restore(self, before: dict[str, float]) -> None:
        """Go on with an epoch that was interrupted."""
        self._seconds_before, self._samples_before = before["seconds"], int(before["samples"])

    def entry(self, epoch: int, logs: dict[str, float], wire: Wire, loader: Loader | None) -> Epoch:
        """The record. All ranks must call it."""
        ended = time.perf_counter()
        trained = self._trained or ended
        measured = wire.measured()
        samples, local, count, batch = sum_over_ranks(
            [
                float(self._samples),
                measured["local_square"],
                measured["norms"],
                float(loader.batch_size if loader else 0),
            ]
        )
        samples += self._samples_before
        training = trained - self._began + self._seconds_before
        found = quantities(logs)
        per_rank = batch / world().size * self.accumulated
        noise = None
        if world().size > 1 and count and loader is not None:
            estimate = NoiseScale()
            mean = measured["averaged_square"] / measured["norms"]
            estimate.add(local / count, mean, per_rank, per_rank * world().size)
            noise = estimate.value()
        return Epoch(
            epoch=epoch,
            train_loss=found.train_loss,
            train_acc=found.train_acc,
            val_loss=found.val_loss,
            val_acc=found.val_acc,
            lr=self.rate,
            samples=int(samples) if loader is not None else None,
            seconds=ended - self._began + self._seconds_before,
            seconds_data=measured.get("data"),
            seconds_forward=measured.get("forward"),
            seconds_backward=measured.get("backward"),
            seconds_allreduce=measured.get("allreduce"),
            seconds_optimizer=measured.get("optimizer"),
            seconds_val=ended - trained if self._trained else 0.0,
            samples_per_second=samples / training if loader is not None and training > 0 else None,
            grad_norm=measured["last_square"] ** 0.5 if measured["norms"] else None,
            noise_scale=noise,
            restart=record.restart_count(),
        )


def effective_rate(optimizer: Any) -> float:
    """Of the last step, warm-up included."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    state = synchronization(inner)
    state.applying = True
    # The counter is one further by now, and the rates of warm-up and schedules with it.
    inner._iterations.assign_sub(1)
    try:
        return float(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(inner.learning_rate)))
    finally:
        inner._iterations.assign_add(1)
        state.applying = False
