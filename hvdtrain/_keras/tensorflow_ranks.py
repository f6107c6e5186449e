"""How ranks of TensorFlow talk to each other: what any transport can do, and Horovod's.

In a graph each gradient is sent by itself, as soon as it is computed, so that sending hides behind the rest of the backward pass;
Horovod fuses what is ready at the same time. In eager mode operations wait for their results, so all that are of single precision
go as one group.

In a graph the scope would be part of a message's name, and that of an optimizer may be another on each rank ("sgd", "sgd_1"), so it
is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hvdtrain import objects
from hvdtrain._keras.backends import Messages
from hvdtrain.launch.session import Session


class Ranks(Messages, Protocol):
    """Adds what is sent in a step: part of the graph where there is one.

    Attributes:
        controller: what brought the ranks together, for the record.
    """

    controller: str

    def sum(self, tensor: Any, name: str) -> Any:
        """Element-wise over all ranks."""

    def average(self, grads: list[Any], names: list[str], control: Any, compression: str) -> tuple[list[Any], Any]:
        """Gradients, dense or sparse, averaged over all ranks; and the sum of a small vector that travels beside them."""


class HorovodRanks:
    """Implements `Ranks`."""

    def __init__(self, session: Session) -> None:
        import horovod.tensorflow as hvd

        session.start(hvd)
        self._hvd = hvd
        self.controller = "mpi" if hvd.mpi_enabled() else "gloo"

    def sum(self, tensor: Any, name: str) -> Any:
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=f"hvdtrain.{name}", ignore_name_scope=True)

    def average(self, grads: list[Any], names: list[str], control: Any, compression: str) -> tuple[list[Any], Any]:
        hvd = self._hvd
        sparse = any(isinstance(grad, tf.IndexedSlices) for grad in grads)
        if not tf.executing_eagerly() or compression == "bf16" or sparse:
            return _average_and_sum(hvd, grads, names, control, compression)
        sent = [_compressed(grad, compression) for grad in grads]
        if any(each.dtype != control.dtype for each in sent):
            return _average_and_sum(hvd, grads, names, control, compression)  # one group has numbers of one kind
        # One group has one operation: the control's average times the size is its sum.
        *received, control = hvd.grouped_allreduce([*sent, control], op=hvd.Average, name="hvdtrain.gradients")
        averaged = [tf.cast(each, grad.dtype) for each, grad in zip(received, grads, strict=True)]
        return averaged, control * hvd.size()

    def add(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in self.sum(tf.constant(list(values), tf.float64), "sum").numpy()]

    def gather_objects(self, value: Any) -> list[Any]:
        def send(array: np.ndarray, label: str) -> np.ndarray:
            return self._hvd.allgather(tf.constant(array), name=label).numpy()  # type: ignore[no-any-return]

        return objects.gather(value, self._hvd.size(), send, "hvdtrain.objects")

    def broadcast_object(self, value: Any, name: str) -> Any:
        def send(array: np.ndarray, label: str) -> np.ndarray:
            return self._hvd.broadcast(tf.constant(array), 0, name=label).numpy()  # type: ignore[no-any-return]

        return objects.broadcast(value, self._hvd.rank(), send, f"hvdtrain.{name}")

    def broadcast(self, variables: Sequence[Any]) -> None:
        """As bytes, since Horovod does not know every type."""
        for index, variable in enumerate(variables):
            raw = variable.numpy()
            data = np.frombuffer(np.ascontiguousarray(raw).tobytes(), np.uint8)
            received = self._hvd.broadcast(tf.constant(data), 0, name=f"hvdtrain.state.{index}").numpy()
            variable.assign(np.frombuffer(received.tobytes(), raw.dtype).reshape(raw.shape))


def _average_and_sum(hvd: Any, grads: list[Any], names: list[str], control: Any, form: str) -> tuple[list[Any], Any]:
    """Averages, each gradient sent by itself, and the sum of `control`, which travels behind the smallest of them.

    By itself it would be one more message, for which the step waits when Horovod does not fuse it with the last gradients.
    """
    # Some gradients (of a dense layer over masked sequences) have a shape that is known only when the graph runs.
    sizes = {
        index: grad.shape.num_elements()
        for index, grad in enumerate(grads)
        if form == "none"
        and not isinstance(grad, tf.IndexedSlices)
        and grad.dtype == tf.float32
        and grad.shape.is_fully_defined()
    }
    if not sizes:
        control = hvd.allreduce(control, op=hvd.Average, name=f"hvdtrain.control.{names[0]}", ignore_name_scope=True)
        return _average_each(hvd, grads, names, form), control * hvd.size()
    carrier = min(sizes, key=lambda index: (sizes[index], index))
    own = grads[carrier]
    averaged = _average_each(
        hvd,
        [*grads[:carrier], tf.concat([tf.reshape(own, [-1]), control], 0), *grads[carrier + 1 :]],
        names,
        form,
    )
    together = averaged[carrier]
    averaged[carrier] = tf.reshape(together[: sizes[carrier]], own.shape)
    return averaged, together[sizes[carrier] :] * hvd.size()


def _compressed(grad: Any, form: str) -> Any:
    """`grad` as it travels: single precision as half when asked for; what Horovod cannot add up (bfloat16) as single."""
    if form == "fp16" and grad.dtype == tf.float32:
        return tf.cast(grad, tf.float16)
    return tf.cast(grad, tf.float32) if grad.dtype == tf.bfloat16 else grad


def _average_each(hvd: Any, grads: list[Any], names: list[str], form: str) -> list[Any]:
    """Averages over all ranks, each gradient sent by itself; sparse ones as their rows."""
    if form == "bf16":
        dense = [(index, grad) for index, grad in enumerate(grads) if not isinstance(grad, tf.IndexedSlices)]
        together = iter(_average_bf16(hvd, [grad for _, grad in dense], names[0]) if dense else [])
        chosen = {index for index, _ in dense}
        return [
            next(together) if index in chosen else _average_sparse(hvd, grad, names[index])
            for index, grad in enumerate(grads)
        ]
    return [
        _average_sparse(hvd, grad, name)
        if isinstance(grad, tf.IndexedSlices)
        else tf.cast(
            hvd.allreduce(_compressed(grad, form), op=hvd.Average, name=f"hvdtrain.{name}", ignore_name_scope=True),
            grad.dtype,
        )
        for grad, name in zip(grads, names, strict=True)
    ]


def _average_sparse(hvd: Any, grad: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
    """Rows of all ranks, each divided by their number: what one rank has whose batch is the union."""
    values = hvd.allgather(grad.values, name=f"hvdtrain.{name}.values", ignore_name_scope=True) / hvd.size()
    indices = hvd.allgather(grad.indices, name=f"hvdtrain.{name}.indices", ignore_name_scope=True)
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def _average_bf16(hvd: Any, grads: list[Any], name: str) -> list[Any]:
    """All gradients as one vector of bfloat16, added up in single precision.

    Horovod adds up no bfloat16. But it moves bits: every rank gets its part of everybody's vector (alltoall), adds it up and
    gives the average to all (allgather). That is as much traffic as an allreduce of 16-bit numbers.
    """
    size = hvd.size()
    flat = tf.concat([tf.reshape(tf.cast(grad, tf.bfloat16), [-1]) for grad in grads], 0)
    length = tf.size(flat)
    part = -(-length // size)
    padded = tf.pad(flat, [[0, part * size - length]])
    received, _ = hvd.alltoall(
        tf.bitcast(padded, tf.uint16),
        splits=tf.repeat(part, size),
        name=f"hvdtrain.bf16.scatter.{name}",
        ignore_name_scope=True,
    )
    total = tf.reduce_sum(tf.cast(tf.bitcast(tf.reshape(received, [size, part]), tf.bfloat16), tf.float32), 0)
    mine = tf.bitcast(tf.cast(total / size, tf.bfloat16), tf.uint16)
    gathered = tf.bitcast(
        hvd.allgather(mine, name=f"hvdtrain.bf16.gather.{name}", ignore_name_scope=True), tf.bfloat16
    )[:length]
    parts = tf.split(gathered, [tf.size(grad) for grad in grads])
    return [tf.cast(tf.reshape(each, tf.shape(grad)), grad.dtype) for each, grad in zip(parts, grads, strict=True)]
