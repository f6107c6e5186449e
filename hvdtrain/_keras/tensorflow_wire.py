"""What a Keras optimizer sends on TensorFlow, and the clock beside it."""

from __future__ import annotations

import itertools
import time
from typing import Any

import tensorflow as tf

from hvdtrain._keras.backends import NORM_EVERY, Agreed
from hvdtrain._keras.start import session, world
from hvdtrain._keras.tensorflow_ranks import Ranks

#: Of the wires of this process: what two of them send in one graph needs names of its own.
_numbers = itertools.count()
_MARKS = ("data", "loss", "gradients", "reduce_began", "reduce_ended")


class TensorFlowWire:
    """Implements `backends.Wire`. State that graphs read or write is in variables; those are no part of any model.

    Attributes:
        absent: paths of the variables without a gradient on this rank, in the graph that was traced last.
        flags: what `flags_now` was at the end of this step, where the step hands it back: that costs less than reading a variable.
    """

    def __init__(self, ranks: Ranks | None, compression: str) -> None:
        self._ranks = ranks
        self.number = next(_numbers)
        self._compression = compression
        self._on_cpu = not tf.config.get_visible_devices("GPU")
        self._base = time.time()
        self._step_began = self._began = self._ended = 0.0
        self._steps = 0
        with tf.init_scope(), tf.device("CPU:0"):
            self._weight = tf.Variable(1.0, trainable=False)
            # Of this rank: a request to stop, and a callback that wants the training to end.
            self._asked = tf.Variable([0.0, 0.0], trainable=False)
            self._no_number = tf.Variable([0.0], trainable=False)
            # Sums over ranks of both, and of losses that are no number.
            self._control = tf.Variable([0.0, 0.0, 0.0], trainable=False)
            self._times = tf.Variable(tf.zeros(len(_MARKS), tf.float64), trainable=False)
            self._reductions = tf.Variable(0, dtype=tf.int64, trainable=False)
            # Squared norms of this rank's and of the averaged gradient, and how many were added up; the last averaged one.
            self._norms = tf.Variable(tf.zeros(4, tf.float64), trainable=False)
        self._weight_now, self._asked_now = 1.0, (False, False)
        # In a loop of one's own nothing else tells that it goes on: its step may be compiled, and its data not from our loaders.
        session().count(lambda: int(self._reductions.numpy()))
        self._marks: dict[str, Any] = {}  # of the step that is traced, or made, now
        self.absent: list[str] = []
        self.flags: Any = None

    # --- between steps, in Python ---

    def start_step(self, weight: float, stop: bool, end: bool) -> None:
        """Writes to variables only what changed: in most steps nothing."""
        if weight != self._weight_now:
            self._weight.assign(weight)
            self._weight_now = weight
        if (stop, end) != self._asked_now:
            self._asked.assign([float(stop), float(end)])
            self._asked_now = stop, end
        self.flags = None
        self._step_began = time.time() - self._base

    def end_step(self) -> None:
        """The step's results are there. Keras also begins steps that it does not make, and whose data nothing marks."""
        self._began += self._step_began
        self._ended += time.time() - self._base
        self._steps += 1

    def agreed(self) -> Agreed:
        flags = self.flags if self.flags is not None else self._control
        stop, end, no_number = (bool(flag) for flag in flags.numpy() > 0)
        return Agreed(stop, no_number, end)

    # --- in a step ---

    def flags_now(self) -> Any:
        """What all ranks have agreed on, for `flags`."""
        return self._control.read_value()

    def weighted(self, loss: Any) -> Any:
        self._mark("loss", [loss])
        self._no_number.assign(tf.reshape(tf.cast(tf.logical_not(tf.math.is_finite(loss)), tf.float32), [1]))
        return loss * tf.cast(self._weight, loss.dtype)

    def of_union(self, loss: Any, divisor: Any, name: str) -> Any:
        if self._ranks is None:
            return loss
        own = tf.stop_gradient(divisor) * tf.cast(self._weight > 0.0, tf.float32)
        mean = self._ranks.sum(own, name) / world().size
        return loss * tf.cast(tf.math.divide_no_nan(own, mean * self._weight), loss.dtype)

    def data_arrived(self, data: Any) -> None:
        """For the clock: a batch is there."""
        self._mark("data", tf.nest.flatten(data))

    def gradients_computed(self, grads: list[Any]) -> None:
        """For the clock: the backward pass of this rank is over."""
        self._mark("gradients", [grad for grad in grads if grad is not None])
        self._add_marks("data", "loss", "gradients")

    def missing(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """In a graph they are fixed when it is traced: `absent` then tells which."""
        absent = [grad is None for grad in grads]
        if not tf.executing_eagerly():
            self.absent = [variable.path for variable, flag in zip(variables, absent, strict=True) if flag]
            return grads
        assert self._ranks is not None
        counts = self._ranks.sum(tf.constant([float(not flag) for flag in absent]), "present").numpy()
        filled = []
        for grad, variable, count in zip(grads, variables, counts, strict=True):
            if grad is None and count:
                filled.append(tf.zeros(variable.shape, variable.dtype))
            elif isinstance(grad, tf.IndexedSlices) and count < world().size:
                # Rows are sent otherwise than a whole gradient, such as the zeros of the other ranks are: they would never meet.
                filled.append(tf.convert_to_tensor(grad))
            else:
                filled.append(grad)
        return filled

    def average(self, grads: list[Any], names: list[str]) -> list[Any]:
        self._mark("reduce_began", grads)
        control = tf.concat([self._asked, self._no_number], 0)
        if self._ranks is None:
            averaged = grads
        else:
            names = [f"{name}.{self.number}" for name in names]
            averaged, control = self._ranks.average(grads, names, control, self._compression)
        self._control.assign(control)
        self._mark("reduce_ended", averaged)
        # By themselves: an update may be under a condition, in a graph of its own.
        self._add_marks("reduce_began", "reduce_ended")
        return self._add_norms(grads, averaged)

    def agreed_finite(self, finite: Any) -> Any:
        assert self._ranks is not None
        return tf.greater(self._ranks.sum(tf.cast(finite, tf.float32), f"finite.{self.number}"), world().size - 0.5)

    # --- measuring ---

    def _mark(self, name: str, after: list[Any]) -> None:
        """The time at which all of `after` are computed. On a GPU that time is not known to the host."""
        if not self._on_cpu:
            return
        tensors = [each.values if isinstance(each, tf.IndexedSlices) else each for each in after]
        with tf.device("CPU:0"), tf.control_dependencies(tensors if not tf.executing_eagerly() else None):
            self._marks[name] = tf.timestamp()

    def _add_marks(self, *names: str) -> None:
        """To the sums, several at once: each operation costs a small step some microseconds."""
        marks = {name: self._marks.pop(name) for name in names if name in self._marks}
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        # One that another trace has left behind is not of this step.
        marks = {name: mark for name, mark in marks.items() if getattr(mark, "graph", None) is graph}
        if not marks:
            return
        nothing = tf.constant(0.0, tf.float64)
        with tf.device("CPU:0"):
            times = tf.stack([marks.get(name, nothing) for name in _MARKS])
            self._times.assign_add(times - [self._base if name in marks else 0.0 for name in _MARKS])

    def _add_norms(self, grads: list[Any], averaged: list[Any]) -> list[Any]:
        """Returns `averaged`, which passes through the condition.

        What a condition holds beside an update, the update cannot write to: it would take other memory for every gradient.
        """
        number = self._reductions.assign_add(1)
        if any(isinstance(grad, tf.IndexedSlices) for grad in grads):
            return averaged  # repeated rows would have to be added up first

        def add() -> list[Any]:
            square = _square(averaged)
            added = [_square(grads), square, tf.constant(1.0, tf.float64), square - self._norms[3]]
            self._norms.assign_add(tf.stack(added))
            return averaged

        due = tf.equal(number % NORM_EVERY, 0)
        passed: list[Any] = tf.cond(due, add, lambda: averaged)
        if self._on_cpu:
            _in_one_operation(passed[0])
        return passed

    def reset_times(self) -> None:
        self._times.assign(tf.zeros_like(self._times))
        self._norms.assign(tf.zeros_like(self._norms))
        self._control.assign(tf.zeros_like(self._control))
        self._began = self._ended = 0.0
        self._steps = 0

    def measured(self) -> dict[str, float]:
        local, averaged, count, last = (float(value) for value in self._norms.numpy())
        found = {"norms": count, "local_square": local, "averaged_square": averaged, "last_square": last}
        times = dict(zip(_MARKS, (float(value) for value in self._times.numpy()), strict=True))
        if self._on_cpu and self._steps and times["data"] and times["loss"]:
            allreduce = times["reduce_ended"] - times["reduce_began"]
            found |= {
                "data": times["data"] - self._began,
                "forward": times["loss"] - times["data"],
                "backward": times["gradients"] - times["loss"],
                "allreduce": allreduce,
                "optimizer": self._ended - times["gradients"] - allreduce,
            }
        return found


def _in_one_operation(result: Any) -> None:
    """The condition that gives `result` calls its branch.

    By default TensorFlow puts both branches into the graph, with a switch in front of each tensor and a merge behind it: 7 % of a
    small step. On a GPU the branch would have to run there as a whole, and what it adds to is in the host's memory.
    """
    if tf.executing_eagerly():
        return
    found = result.op
    while found.type not in ("If", "StatelessIf"):
        found = found.inputs[0].op
    found._set_attr("_lower_using_switch_merge", tf.compat.v1.AttrValue(b=False))


def _square(tensors: list[Any]) -> Any:
    # One pass without a copy; l2_loss is half the sum of squares.
    return 2.0 * tf.add_n([tf.cast(tf.nn.l2_loss(tf.cast(each, tf.float32)), tf.float64) for each in tensors])
