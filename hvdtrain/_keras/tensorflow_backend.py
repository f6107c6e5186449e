"""Keras on TensorFlow: what is sent, in graphs and in eager mode."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from hvdtrain._keras.backends import Wire
from hvdtrain._keras.loader import Loader
from hvdtrain._keras.mirrored import ONE_PROCESS, TOO_LATE, Replicas
from hvdtrain._keras.tensorflow_feed import counter, dataset
from hvdtrain._keras.tensorflow_ranks import HorovodRanks, Ranks
from hvdtrain._keras.tensorflow_step import Step, possible
from hvdtrain._keras.tensorflow_wire import TensorFlowWire
from hvdtrain.errors import UserError, agreed
from hvdtrain.launch.session import Session
from hvdtrain.world import World


class TensorFlow:
    """Implements `backends.Backend`."""

    framework = "tensorflow"
    package = "tensorflow"

    strategies: tuple[str, ...] = ("horovod", "mirrored", "multiworker", "tpu", "single")

    def __init__(self) -> None:
        self._ranks: Ranks | None = None
        self._replicas: Replicas | None = None

    def visible_gpus(self) -> int:
        """GPUs that TensorFlow sees."""
        return len(tf.config.list_physical_devices("GPU"))

    def use(self, place: World, strategy: str) -> None:
        """Take this rank's device, or the devices of a strategy that has several, and no more cores than it was given.

        Raises:
            UserError: TensorFlow has taken devices and cores by itself before.
        """
        if strategy in ONE_PROCESS:
            self._replicas = Replicas(strategy)
            return
        try:
            _take(place)
        except RuntimeError:
            raise agreed(UserError(TOO_LATE.format(strategy))) from None

    def start(self, session: Session, strategy: str) -> str:
        """Start what carries gradients between ranks; returns its controller."""
        if strategy == "multiworker":
            from hvdtrain._keras.multiworker import MultiWorker

            self._ranks = MultiWorker(session)
        else:
            self._ranks = HorovodRanks(session)
        return self._ranks.controller

    def ranks(self) -> Ranks:
        """How this rank talks to the others; only in a world of several."""
        assert self._ranks is not None
        return self._ranks

    def replicas(self) -> Replicas | None:
        """Of a strategy that drives several devices from one process."""
        return self._replicas

    def feed(self, data: Any) -> Any:
        """What `model.fit` takes, from a loader."""
        return self._replicas.spread(data) if self._replicas is not None else dataset(data)

    def training(self, model: Any, data: Any, class_weight: Any) -> tuple[Any, Any]:
        """What `model.fit` takes, and what makes a step of it."""
        if self._replicas is not None or not possible(model, data, class_weight):
            return self.feed(data), None
        return counter(data) if isinstance(data, Loader) else data, Step(model, data)

    def device_name(self, place: World) -> str:
        """Model of the GPU, or "cpu"."""
        if place.device == "cpu":
            return "cpu"
        details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
        return str(details.get("device_name", "GPU"))

    def threads(self) -> int:
        """Threads that an operation may use."""
        return int(tf.config.threading.get_intra_op_parallelism_threads()) or os.cpu_count() or 1

    def random_state(self) -> Any:
        """Keras layers draw from variables of the model here; there is nothing else."""
        return None

    def set_random_state(self, state: Any) -> None:
        """See `random_state`."""

    def separate_random(self, offset: int) -> None:
        """See `random_state`."""

    def wire(self, compression: str) -> Wire:
        """What an optimizer sends."""
        if self._replicas is not None:
            return self._replicas.wire(compression)
        return TensorFlowWire(self._ranks, compression)


def _take(place: World) -> None:
    if place.device != "cpu":
        gpu = tf.config.list_physical_devices("GPU")[int(place.device.partition(":")[2] or 0)]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    given = os.environ.get("OMP_NUM_THREADS", "")
    if place.size > 1 and given.isdigit() and int(given):
        # TensorFlow takes every core by default: ranks on one node would fight over them. A collective waits in a thread
        # of its own, so one thread for operations is enough.
        tf.config.threading.set_intra_op_parallelism_threads(int(given))
        tf.config.threading.set_inter_op_parallelism_threads(max(2, int(given)))
