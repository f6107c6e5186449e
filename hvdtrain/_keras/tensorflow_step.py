"""A step of `model.fit` on TensorFlow: the model's train step as one compiled function that is handed its batch.

Keras' own function takes the batch inside the graph and hands the results back as an optional value, which are several small
operations more between any two steps; and it cannot be traced without making a step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from hvdtrain._keras.ahead import Ahead, Key
from hvdtrain._keras.loader import Loader
from hvdtrain._keras.optimizer import synchronization
from hvdtrain._keras.start import gather_objects, world
from hvdtrain._keras.tensorflow_wire import TensorFlowWire
from hvdtrain.errors import UserError, agreed

#: Seconds that a batch may take without a thread, which costs 0.3 to 0.5 ms of a step: only one runs Python at a time.
_WORTH_A_THREAD = 0.5e-3


class Step:
    """In place of a model's train function.

    Args:
        data: what the model trains on. A loader's batches come from here, and `fit` is given something that only counts them
            (`tensorflow_feed.counter`). Anything else gives batches itself.
    """

    def __init__(self, model: Any, data: Any) -> None:
        self._model = model
        self._loader = data if isinstance(data, Loader) else None
        self._wire = cast(TensorFlowWire, synchronization(model.optimizer).wire)
        self._ahead: Ahead | None = None
        self._slow = 0
        self._compiled: Any = None

    def __call__(self, iterator: Any, number: int) -> Any:
        """Logs after step `number` of the epoch, from 0.

        Raises:
            StopIteration: there is none.
            UserError: on all ranks, which have gradients for different variables.
        """
        batch = next(iterator) if self._loader is None else self._batch(self._loader, number)
        if self._compiled is None:
            self._compiled = self._compile(iterator.element_spec if self._loader is None else _spec(batch))
        logs, self._wire.flags = self._compiled(batch)
        return logs

    def _batch(self, loader: Loader, number: int) -> Any:
        """Made while the step before it runs, by a thread; batches that take less than that thread are made when they are due."""
        if self._ahead is not None:
            return self._ahead.get(loader.key(number), len(loader))
        began = time.perf_counter()
        batch = self._tensors(loader.key(number))
        self._slow = self._slow + 1 if time.perf_counter() - began > _WORTH_A_THREAD else 0
        if self._slow == 3:
            self._ahead = Ahead(self._tensors, 1, 1)
        return batch

    def _tensors(self, key: Key) -> Any:
        assert self._loader is not None
        with tf.device("CPU:0"):
            return keras.tree.map_structure(tf.constant, self._loader[key[2]])

    def _compile(self, spec: Any) -> Any:
        def step(batch: Any) -> Any:
            return self._model.train_step(batch), self._wire.flags_now()

        if self._model.run_eagerly:
            return step
        compiled = tf.function(step, input_signature=[spec], jit_compile=self._model.jit_compile, autograph=False)
        # Called as such, it costs half of what the function around it does, which looks for the trace that fits.
        concrete = compiled.get_concrete_function()
        _agree_on_gradients(self._wire.absent)
        return concrete


def _spec(batch: Any) -> Any:
    """Of batches of any length."""
    return keras.tree.map_structure(lambda each: tf.TensorSpec((None, *each.shape[1:]), each.dtype), batch)


def possible(model: Any, data: Any, class_weight: Any) -> bool:
    """Whether `Step` does for `model` what Keras' own function would."""
    if model.steps_per_execution != 1 or class_weight is not None:
        return False
    if tf.distribute.has_strategy() or type(model).make_train_function is not keras.Model.make_train_function:
        return False
    if isinstance(data, Loader):
        return not data.use_multiprocessing
    return isinstance(data, tf.data.Dataset)


def _agree_on_gradients(absent: Sequence[str]) -> None:
    """A compiled step sends what it had when it was traced: ranks that have different gradients would wait for ever."""
    if world().size == 1:
        return
    by_rank = gather_objects(list(absent))
    everywhere = set.intersection(*map(set, by_rank))
    for rank, missing in enumerate(by_rank):
        if only_here := [path for path in missing if path not in everywhere]:
            more = f" and {len(only_here) - 1} more" if len(only_here) > 1 else ""
            raise agreed(
                UserError(
                    f"rank {rank} has no gradient for {only_here[0]}{more}, which another rank has (a layer that some did not "
                    "use), and a compiled step cannot exchange which. Compile the model with run_eagerly=True, or let every "
                    "rank use every layer"
                )
            )
