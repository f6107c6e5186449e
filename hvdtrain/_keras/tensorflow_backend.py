"""Keras on TensorFlow: what is sent, in graphs and in eager mode."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain._keras.backends import Wire
from hvdtrain._keras.tensorflow_wire import TensorFlowWire
from hvdtrain.world import World


class TensorFlow:
    """Implements `backends.Backend`."""

    framework = "tensorflow"
    package = "tensorflow"

    def horovod(self) -> Any:
        """Horovod for TensorFlow, which needs no GPU to be imported."""
        import horovod.tensorflow as hvd

        return hvd

    def visible_gpus(self) -> int:
        """GPUs that TensorFlow sees."""
        return len(tf.config.list_physical_devices("GPU"))

    def use(self, place: World) -> None:
        """Take this rank's device and no more cores than it was given."""
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

    def device_name(self, place: World) -> str:
        """Model of the GPU, or "cpu"."""
        if place.device == "cpu":
            return "cpu"
        details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
        return str(details.get("device_name", "GPU"))

    def threads(self) -> int:
        """Threads that an operation may use."""
        return int(tf.config.threading.get_intra_op_parallelism_threads()) or os.cpu_count() or 1

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise over all ranks, in double precision."""
        hvd = self.horovod()
        total = hvd.allreduce(tf.constant(list(values), tf.float64), op=hvd.Sum, name="hvdtrain.sum")
        return [float(value) for value in total.numpy()]

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Overwrite Keras variables with rank 0's, bit by bit: as bytes, since Horovod does not know every type."""
        hvd = self.horovod()
        for index, variable in enumerate(variables):
            raw = variable.numpy()
            data = np.frombuffer(np.ascontiguousarray(raw).tobytes(), np.uint8)
            received = hvd.broadcast(tf.constant(data), 0, name=f"hvdtrain.state.{index}").numpy()
            variable.assign(np.frombuffer(received.tobytes(), raw.dtype).reshape(raw.shape))

    def random_state(self) -> Any:
        """Keras layers draw from variables of the model here; there is nothing else."""
        return None

    def set_random_state(self, state: Any) -> None:
        """See `random_state`."""

    def separate_random(self, offset: int) -> None:
        """See `random_state`."""

    def wire(self, compression: str) -> Wire:
        """What an optimizer sends."""
        return TensorFlowWire(compression)
