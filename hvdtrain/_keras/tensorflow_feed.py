"""Our loaders as `tf.data`, one batch made ahead.

Keras would do that too, but with tf.data's self-tuning on, whose thread makes the end of an epoch wait for it: for up to seconds
where an epoch takes seconds.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdtrain._keras.loader import Loader, ValidationLoader


def dataset(data: Any) -> Any:
    """What `model.fit` takes: batches of one of our loaders; other data, and what Keras' own processes make, as it is."""
    if not isinstance(data, (Loader, ValidationLoader)) or data.use_multiprocessing:
        return data
    first = data[0]
    arrays = keras.tree.flatten(first)

    def make(index: Any) -> list[np.ndarray]:
        return [np.asarray(array) for array in keras.tree.flatten(data[int(index)])]

    def batch(index: Any) -> Any:
        tensors = tf.numpy_function(make, [index], [array.dtype for array in arrays])
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.set_shape((None, *array.shape[1:]))
        return keras.tree.pack_sequence_as(first, tensors)

    return untuned(tf.data.Dataset.range(len(data)).map(batch).prefetch(1))


def counter(data: Loader) -> Any:
    """As many elements as an epoch has batches, where `tensorflow_step` takes those from the loader itself."""
    return untuned(tf.data.Dataset.range(len(data)))


def untuned(made: tf.data.Dataset) -> tf.data.Dataset:
    """The same without self-tuning."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return made.with_options(options)
