"""`strategy="mirrored"` and `"tpu"`: one process drives all devices, through `model.fit` of Keras under a strategy of TensorFlow.

Keras splits each batch by fixed sizes and gives every device's gradient the same weight, so a last batch that does not fill them
counts wrongly, and may leave devices without a sample. Here a batch is split evenly, and a gradient weighs what its samples are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdtrain._keras.backends import Agreed
from hvdtrain._keras.tensorflow_feed import untuned
from hvdtrain.errors import UserError

ONE_PROCESS = ("mirrored", "tpu")
#: On a machine without GPUs: how many devices its CPUs are divided into.
REPLICAS_VARIABLE = "HVDTRAIN_REPLICAS"
OWN_LOOP = 'a loop of your own needs strategy "horovod" or "multiworker"; "mirrored" and "tpu" work through fit'
TOO_LATE = 'strategy "{}" must be set up before TensorFlow is used: call hvdtrain.keras.init() before any tensor or model is made'


class Replicas:
    """Implements `backends.Replicas`. From its making on, models of Keras have a copy on every device.

    Args:
        strategy: of `ONE_PROCESS`.

    Raises:
        UserError: there is no such device.
    """

    def __init__(self, strategy: str) -> None:
        self._strategy = _tpu() if strategy == "tpu" else _mirrored()
        self.number = int(self._strategy.num_replicas_in_sync)
        tf.distribute.experimental_set_strategy(self._strategy)

    def wire(self, compression: str) -> _Wire:
        """What an optimizer does with its gradients.

        Raises:
            UserError: there is no wire to compress on.
        """
        if compression != "none":
            raise UserError(
                f'compression="{compression}" needs strategy "horovod"; one process sends nothing over a network'
            )
        return _Wire()

    def spread(self, data: Any) -> Any:
        """Each batch of `data`, a `keras.utils.PyDataset`, in as many even parts as there are devices."""
        if not isinstance(data, keras.utils.PyDataset):
            return data

        def parts() -> Iterator[Any]:
            for index in range(len(data)):
                yield from _even_parts(data[index], self.number)

        first = data[0]
        signature = keras.tree.map_structure(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), first)

        def dataset(_: Any) -> Any:
            made = tf.data.Dataset.from_generator(parts, output_signature=signature).prefetch(2 * self.number)
            return untuned(made)

        spread = self._strategy.distribute_datasets_from_function(dataset)
        # The strategy takes each device's part for a batch. Keras would ask for steps until there are no more, and of a step
        # without data TensorFlow still makes what needs none: weight decay, the count of steps.
        spread._cardinality = np.int64(len(data))
        return spread


def _even_parts(batch: tuple[Any, ...], number: int) -> Iterator[tuple[Any, ...]]:
    n = len(keras.tree.flatten(batch)[0])
    cuts = np.linspace(0, n, number + 1).astype(int)
    for begin, end in pairwise(cuts):
        yield keras.tree.map_structure(lambda array, begin=begin, end=end: array[begin:end], batch)


def _mirrored() -> Any:
    gpus = tf.config.list_physical_devices("GPU")
    given = os.environ.get(REPLICAS_VARIABLE, "")
    if given and not (given.isdigit() and int(given)):
        raise UserError(f"{REPLICAS_VARIABLE}={given} is not a number of devices")
    number = int(given or len(gpus) or 1)
    if gpus:
        if number > len(gpus):
            raise UserError(f"{REPLICAS_VARIABLE}={number}, but this process sees {len(gpus)} GPUs")
        return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(number)])
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
    except RuntimeError:
        raise UserError(TOO_LATE.format("mirrored")) from None
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(number)])


def _tpu() -> Any:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f'strategy "tpu" found no TPU ({reason}). On a machine with GPUs take "horovod" or "mirrored"; TPU_NAME names a TPU '
            "elsewhere"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


class _Wire:
    """Implements `backends.Wire` for devices of one process: nothing leaves it, so there is nothing to agree on."""

    def __init__(self) -> None:
        self.number = 0  # nothing is sent
        self._stop = self._end = False
        # Samples of the step, one value for each device: each traces the step in a thread of its own.
        self._samples: dict[int, Any] = {}

    # --- between steps ---

    def start_step(self, weight: float, stop: bool, end: bool) -> None:
        self._stop, self._end = stop, end

    def end_step(self) -> None:
        """Nothing to do."""

    def agreed(self) -> Agreed:
        """A loss that is no number shows in the epoch's mean."""
        return Agreed(self._stop, diverged=False, end=self._end)

    def reset_times(self) -> None:
        """Nothing is measured: the phases of several devices overlap."""

    def measured(self) -> dict[str, float]:
        return {"norms": 0.0, "local_square": 0.0, "averaged_square": 0.0, "last_square": 0.0}

    # --- in a step ---

    def data_arrived(self, data: Any) -> None:
        """How much this device's gradient weighs."""
        self._samples[_device()] = tf.cast(tf.shape(keras.tree.flatten(data)[0])[0], tf.float32)

    def weighted(self, loss: Any) -> Any:
        return loss

    def of_union(self, loss: Any, divisor: Any, name: str) -> Any:
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1:
            return loss
        # The loss will weigh as many as its samples are (`average`), and shall weigh as much as its divisor.
        own = tf.stack([tf.stop_gradient(divisor), self._samples[_device()]])
        share, weight = tf.unstack(tf.math.divide_no_nan(own, context.all_reduce(tf.distribute.ReduceOp.SUM, own)))
        return loss * tf.cast(tf.math.divide_no_nan(share, weight), loss.dtype)

    def gradients_computed(self, grads: list[Any]) -> None:
        """Nothing to do."""

    def missing(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """All devices run the same step."""
        return grads

    def average(self, grads: list[Any], names: list[str]) -> list[Any]:
        """Mean over all samples of the step. Keras has divided each device's loss by the number of devices.

        Raises:
            UserError: not inside a step of `fit`, which runs on every device.
        """
        context = tf.distribute.get_replica_context()
        if context is None:
            raise UserError(OWN_LOOP)
        number = context.num_replicas_in_sync
        if number == 1:
            return grads
        own = self._samples[_device()]
        weighed = [tf.convert_to_tensor(grad) * tf.cast(own * number, grad.dtype) for grad in grads]
        *summed, total = context.all_reduce(tf.distribute.ReduceOp.SUM, [*weighed, own])
        return [grad / tf.cast(total, grad.dtype) for grad in summed]

    def agreed_finite(self, finite: Any) -> Any:
        context = tf.distribute.get_replica_context()
        everywhere = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(finite, tf.float32))
        return tf.greater(everywhere, context.num_replicas_in_sync - 0.5)


def _device() -> int:
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
