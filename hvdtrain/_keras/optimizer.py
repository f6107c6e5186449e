"""A Keras optimizer that steps on gradients averaged over all ranks, and stays what it was.

The object keeps its state and its name; only its class becomes a subclass that averages at the one place where Keras has the
gradient of an update in its hands: after accumulation, before clipping. The subclass bears the name of the class it came from,
so a saved model loads in plain Keras.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, TypeVar

import keras

from hvdtrain import lr as rates
from hvdtrain import record
from hvdtrain._keras.backends import Wire, backend
from hvdtrain._keras.start import in_process, replicas, strategy, world
from hvdtrain.errors import UserError, nearest

SomeOptimizer = TypeVar("SomeOptimizer", bound=keras.optimizers.Optimizer)
COMPRESSIONS = ("none", "fp16", "bf16")


@dataclass
class Synchronization:
    """What an optimizer knows about its world; found again as `optimizer.hvdtrain`.

    Attributes:
        wire: sends gradients.
        rule: of `hvdtrain.lr`.
        scaling: what the learning rate was multiplied with for this world.
        base_rate: the rate for one rank, or None for a schedule.
        steps_per_epoch: optimizer steps in an epoch, for the warm-up; `fit` knows it.
        counted: `fit` has counted `steps_per_epoch`, and a later one counts its own; else it stays what the script gave.
        steps_before: to be added to the optimizer's own count for the warm-up: a world of another size, or a `fit` with epochs of
            another length, made them.
        started: whether model and optimizer have rank 0's state. Before, no step is made.
        scaled: a loss-scaling optimizer is around this one, and is told first.
        applying: inside an update, where the rate is the warmed-up one.
        asked_to_weight: the model's `train_step` has called `scale_loss`.
        applied: it has called `apply`.
    """

    wire: Wire
    rule: str
    scaling: float
    base_rate: float | None
    warmup_epochs: float
    steps_per_epoch: float | None
    counted: bool = False
    steps_before: float = 0.0
    started: bool = False
    scaled: bool = False
    applying: bool = False
    asked_to_weight: bool = False
    applied: bool = False


class _Averaging:
    """Mixed in front of an optimizer's own class."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        state = synchronization(self)
        if not state.started:
            if world().size > 1:
                raise UserError(
                    "this optimizer is about to make its first step, but the ranks never agreed on where to start. With model.fit "
                    "pass callbacks=hvdtrain.keras.callbacks(); in a loop of your own call "
                    "hvdtrain.keras.broadcast(model, optimizer) before it"
                )
            state.started = True
        state.applied = True
        grads = list(grads)
        if not state.scaled:
            state.wire.gradients_computed(grads)
        state.applying = True
        try:
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        finally:
            state.applying = False

    def scale_loss(self: Any, loss: Any) -> Any:
        return super().scale_loss(_weighted(self, loss))  # type: ignore[misc]

    def _filter_empty_gradients(self: Any, grads: Any, variables: Any) -> Any:
        if world().size > 1:
            grads = synchronization(self).wire.missing(list(grads), list(variables))
        grads, variables = super()._filter_empty_gradients(grads, variables)  # type: ignore[misc]
        # Their names on the wire; `_clip_gradients` is not told of variables.
        self._hvdtrain_names = _WireNames(f"gradient.{self._get_variable_index(each)}" for each in variables)
        return grads, variables

    def _clip_gradients(self: Any, grads: Any) -> Any:
        grads = synchronization(self).wire.average(list(grads), list(self._hvdtrain_names.names))
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        # Keras' own sum under a strategy of TensorFlow: `average` has done it, before clipping.
        return grads_and_vars

    def _get_current_learning_rate(self: Any) -> Any:
        rate = super()._get_current_learning_rate()  # type: ignore[misc]
        state = synchronization(self)
        if state.base_rate is None:
            rate = rate * state.scaling
        if not state.applying or state.warmup_epochs <= 0 or state.scaling == 1.0:
            return rate
        return rate * self._hvdtrain_warmup(state)

    def _hvdtrain_warmup(self: Any, state: Synchronization) -> Any:
        """The factor of `hvdtrain.lr.warmup_factor` as an operation; lower only in the update, so that schedules never notice."""
        if state.steps_per_epoch is None:
            raise UserError(
                "warmup_epochs needs to know how many steps an epoch has: give DistributedOptimizer(..., steps_per_epoch=...)"
            )
        epoch = (keras.ops.cast(self.iterations, "float32") + state.steps_before) / float(state.steps_per_epoch)
        start = 1.0 / state.scaling
        return keras.ops.minimum(1.0, start + (1.0 - start) * epoch / state.warmup_epochs)


def _weighted(optimizer: Any, loss: Any) -> Any:
    """Called by `fit` between forward and backward pass: the place to weight the batch."""
    state = synchronization(optimizer)
    state.asked_to_weight = True
    return state.wire.weighted(loss)


class _AgreeingOnScale:
    """Mixed in front of `LossScaleOptimizer`: an overflow on one rank must make all ranks skip the same step."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        synchronization(self).wire.gradients_computed(grads)
        return super().apply(grads, trainable_variables)  # type: ignore[misc]

    def scale_loss(self: Any, loss: Any) -> Any:
        return super().scale_loss(_weighted(self, loss))  # type: ignore[misc]

    def check_finite(self: Any, grads: Any) -> Any:
        finite = super().check_finite(grads)  # type: ignore[misc]
        return synchronization(self).wire.agreed_finite(finite) if replicas() > 1 else finite


class _WireNames:
    """Keeps a list out of Keras' tracking, which would wrap it."""

    def __init__(self, names: Any) -> None:
        self.names = list(names)


def DistributedOptimizer(
    optimizer: SomeOptimizer,
    *,
    lr_rule: str = "auto",
    warmup_epochs: float = 0.0,
    steps_per_epoch: float | None = None,
    compression: str = "none",
) -> SomeOptimizer:
    """Make `optimizer` step on gradients averaged over all ranks; returns the same object.

    Give it to `model.compile`, or call its `apply` in a loop of your own. Clipping, weight decay, EMA, accumulation and loss
    scaling act on averages. With `gradient_accumulation_steps` only the update step communicates.

    Args:
        optimizer: of Keras 3, with the learning rate for one rank: a number or a schedule.
        lr_rule: how the rate grows with the number of ranks (`hvdtrain.lr.RULES`); "auto" takes the one for this optimizer.
        warmup_epochs: epochs in which it rises from the given rate to the scaled one.
        steps_per_epoch: for a warm-up in a loop of your own; `fit` knows it.
        compression: "none", or "fp16" or "bf16": how single precision travels.

    Raises:
        UserError: an optimizer that cannot be synchronised, or one that is wrapped already.
    """
    _refuse(optimizer)
    if compression not in COMPRESSIONS:
        raise UserError(
            f'compression="{compression}" is not one of {", ".join(COMPRESSIONS)}{nearest(compression, COMPRESSIONS)}'
        )
    if warmup_epochs < 0:
        raise UserError(f"warmup_epochs={warmup_epochs} is negative")
    if getattr(optimizer, "gradient_accumulation_steps", None):
        _refuse_condition("gradient_accumulation_steps")
    if in_process() > 1 and getattr(optimizer, "ema_overwrite_frequency", None):
        _refuse_condition("ema_overwrite_frequency")
    inner = optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer
    rule = _rule(lr_rule, type(inner).__name__)
    scaling = rates.scale(rule, replicas())
    base = _scale_rate(inner, scaling)
    state = Synchronization(backend().wire(compression), rule, scaling, base, warmup_epochs, steps_per_epoch)
    _become(inner, _Averaging, state)
    if inner is not optimizer:
        agree_on_scale(optimizer)
    elif keras.config.dtype_policy().name == "mixed_float16":
        # `compile` would put one around ours whose decision each rank makes alone.
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
        agree_on_scale(optimizer)
    if world().rank == 0:
        if base is not None and (warning := rates.check(type(inner).__name__, base, replicas())):
            warnings.warn(warning, stacklevel=2)
        record.note(lr_rule=rule, warmup_epochs=warmup_epochs, lr=None if base is None else base * scaling)
    return optimizer


def _rule(given: str, name: str) -> str:
    if given == "auto":
        return rates.default_rule(name)
    if given not in rates.RULES:
        legal = ["auto", *rates.RULES]
        raise UserError(f'lr_rule="{given}" is not one of {", ".join(legal)}{nearest(given, legal)}')
    if given == "adascale":
        raise UserError(
            'lr_rule="adascale" needs the norms of gradients in every step, which hvdtrain.torch has and hvdtrain.keras has not; '
            "legal here are auto, none, linear, sqrt"
        )
    return given


def _scale_rate(optimizer: Any, scaling: float) -> float | None:
    """Multiply a plain rate, so that callbacks that change it start from the scaled one; a schedule is scaled when it is read."""
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) or not hasattr(rate, "assign"):
        return None
    base = float(keras.ops.convert_to_numpy(rate))
    optimizer.learning_rate = base * scaling
    return base


def agree_on_scale(optimizer: Any) -> None:
    """Make a loss-scaling optimizer around a distributed one decide together with all ranks."""
    state = synchronization(optimizer.inner_optimizer)
    _refuse_condition("the loss scaling of mixed_float16 (mixed_bfloat16 needs none)")
    state.scaled = True
    _become(optimizer, _AgreeingOnScale, state)


def _become(optimizer: Any, mixin: type, state: Synchronization) -> None:
    own = type(optimizer)
    # Its class stays the one that a saved model names.
    namespace = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    optimizer.__class__ = type(own.__name__, (mixin, own), namespace)
    optimizer.hvdtrain = state


def is_distributed(optimizer: Any) -> bool:
    """Whether `DistributedOptimizer` made it."""
    return isinstance(optimizer, (_Averaging, _AgreeingOnScale))


def synchronization(optimizer: Any) -> Synchronization:
    """What `DistributedOptimizer` added.

    Raises:
        UserError: nothing was added, or the optimizer is a copy of one to which it was.
    """
    state: Synchronization | None = getattr(optimizer, "hvdtrain", None)
    if state is None:
        raise UserError(
            "this optimizer is not from hvdtrain.keras.DistributedOptimizer(), or is a copy of one (from_config, clone_model): "
            "it would train each rank by itself. Wrap it"
        )
    return state


def is_upstreams(optimizer: Any) -> bool:
    """Whether Horovod's own wrapper made it, which on Keras 3 averages nothing."""
    return hasattr(type(optimizer), "_HAS_AGGREGATE_GRAD") or hasattr(optimizer, "register_local_var")


def _refuse_condition(what: str) -> None:
    if replicas() > 1 and strategy() != "horovod":
        raise UserError(
            f'{what} makes the update depend on a condition, under which TensorFlow\'s strategy "{strategy()}" cannot add up '
            'gradients; take strategy "horovod"'
        )


def _refuse(optimizer: Any) -> None:
    if is_upstreams(optimizer):
        raise UserError(
            "this optimizer is wrapped by horovod's own DistributedOptimizer, which averages nothing on Keras 3; "
            "give hvdtrain.keras.DistributedOptimizer the plain one"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UserError(
            f"DistributedOptimizer takes an optimizer of Keras 3 such as keras.optimizers.SGD(0.01), not {optimizer!r}"
        )
    # Some versions of Keras do not have it.
    if isinstance(getattr(optimizer, "inner_optimizer", optimizer), getattr(keras.optimizers, "MultiOptimizer", ())):
        raise UserError(
            "MultiOptimizer leaves the steps to optimizers of its own, whose gradients nothing would average: take one optimizer "
            "for the whole model, or a train_step of your own with a DistributedOptimizer for each part (docs/train-with-keras.md)"
        )
    if is_distributed(optimizer):
        raise UserError(
            "this optimizer was given to DistributedOptimizer before; its gradients would be averaged twice"
        )
