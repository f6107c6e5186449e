"""Gradients in 16 bits on the wire, for TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

FORMATS = ("none", "fp16", "bf16")


def compressed(grad: Any, form: str) -> Any:
    """`grad` as it travels: single precision as half when asked for; what Horovod cannot add up (bfloat16) as single."""
    if form == "fp16" and grad.dtype == tf.float32:
        return tf.cast(grad, tf.float16)
    return tf.cast(grad, tf.float32) if grad.dtype == tf.bfloat16 else grad


def average(hvd: Any, grads: list[Any], names: list[str], form: str) -> list[Any]:
    """Averages over all ranks, each gradient sent by itself; sparse ones as their rows."""
    if form == "bf16":
        dense = [(index, grad) for index, grad in enumerate(grads) if not isinstance(grad, tf.IndexedSlices)]
        together = iter(_average_bf16(hvd, [grad for _, grad in dense]) if dense else [])
        chosen = {index for index, _ in dense}
        return [
            next(together) if index in chosen else _average_sparse(hvd, grad, names[index])
            for index, grad in enumerate(grads)
        ]
    return [
        _average_sparse(hvd, grad, name)
        if isinstance(grad, tf.IndexedSlices)
        else tf.cast(hvd.allreduce(compressed(grad, form), op=hvd.Average, name=f"hvdtrain.{name}"), grad.dtype)
        for grad, name in zip(grads, names, strict=True)
    ]


def _average_sparse(hvd: Any, grad: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
    """Rows of all ranks, each divided by their number: what one rank has whose batch is the union."""
    values = hvd.allgather(grad.values, name=f"hvdtrain.{name}.values") / hvd.size()
    indices = hvd.allgather(grad.indices, name=f"hvdtrain.{name}.indices")
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def _average_bf16(hvd: Any, grads: list[Any]) -> list[Any]:
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
        tf.bitcast(padded, tf.uint16), splits=tf.repeat(part, size), name="hvdtrain.bf16.scatter"
    )
    total = tf.reduce_sum(tf.cast(tf.bitcast(tf.reshape(received, [size, part]), tf.bfloat16), tf.float32), 0)
    mine = tf.bitcast(tf.cast(total / size, tf.bfloat16), tf.uint16)
    gathered = tf.bitcast(hvd.allgather(mine, name="hvdtrain.bf16.gather"), tf.bfloat16)[:length]
    parts = tf.split(gathered, [tf.size(grad) for grad in grads])
    return [tf.cast(tf.reshape(each, grad.shape), grad.dtype) for each, grad in zip(parts, grads, strict=True)]
