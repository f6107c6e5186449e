"""All optimizers of a model: the one it was compiled with, and those of a `train_step` of one's own for several networks."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np

from hvdtrain._keras import state
from hvdtrain._keras.backends import Wire
from hvdtrain._keras.optimizer import Synchronization, is_distributed, synchronization
from hvdtrain._keras.start import world
from hvdtrain.errors import UserError, agreed


class Optimizers:
    """What `fit` does to all of them alike.

    Attributes:
        further: those besides the model's own that `DistributedOptimizer` made and that are attributes of the model, or in lists
            or dictionaries that are; in the order in which it got them, which is the same on all ranks.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.further = _further(model)
        self._rate: Any = None
        self._at_begin: Any = None  # of an epoch, before callbacks set it, and after
        self._scheduled: Any = None
        self._unbuilt = [each for each in self.further if not each.built]

    @property
    def _all(self) -> list[Any]:
        return [self._model.optimizer, *self.further]

    @property
    def wires(self) -> list[Wire]:
        """What each sends, the model's own first."""
        return [synchronization(each).wire for each in self._all]

    def check_weighting(self) -> None:
        """In a step whose weight is not 1.

        Raises:
            UserError: on all ranks, where `scale_loss` has not been called of each optimizer that is used.
        """
        states = [synchronization(each) for each in self._all]
        used = [each for each in states if each is states[0] or each.applied]
        if not all(each.asked_to_weight for each in used):
            each = "" if len(used) == 1 else f" of each of its {len(used)} optimizers"
            raise agreed(
                UserError(
                    f"the train_step of {type(self._model).__name__} does not call self.optimizer.scale_loss(loss){each}, by which "
                    "the last step, which the samples do not fill, is weighted: call it before the gradients are computed, as "
                    'Keras\' own train_step does, or give the loader uneven="drop"'
                )
            )

    def begin(self, steps: int | None) -> None:
        """Give all ranks rank 0's state, and warm-ups the length of an epoch in `steps` of `fit`, where that is known."""
        state.broadcast(self._model)
        for each in self.further:
            # One that has no variables yet says at its first step what to do.
            if each.built:
                state.broadcast(self._model, each)
        for each in self._all:
            if steps:
                _set_length(each, steps / accumulated_in(each))

    def epochs_reached(self) -> float | None:
        """By the warm-up of the model's own; None where nobody knows how long an epoch is."""
        known = inner_state(self._model.optimizer)
        if not known.steps_per_epoch:
            return None
        made = float(keras.ops.convert_to_numpy(_inner(self._model.optimizer).iterations))
        return (made + known.steps_before) / known.steps_per_epoch

    def _learning_rate(self) -> Any:
        """The model's own, as an array; a schedule, which no callback can change, has none."""
        inner = _inner(self._model.optimizer)
        plain = hasattr(inner._learning_rate, "assign")
        return keras.ops.convert_to_numpy(inner.learning_rate) if plain else None

    def note_rate(self) -> None:
        """The model's own learning rate before a callback changes it."""
        self._rate = self._learning_rate()

    def restore_rate(self) -> None:
        """That of `note_rate`."""
        if self._rate is not None:
            _inner(self._model.optimizer).learning_rate = self._rate

    def before_schedules(self, content: dict[str, Any] | None) -> None:
        """An epoch begins, and callbacks that set its learning rate will be asked after this.

        Args:
            content: the checkpoint from which it goes on in its middle, if it does: they are asked what they were asked before.
        """
        if content is not None and content.get("rates"):
            now = synchronization(self._model.optimizer).scaling
            _inner(self._model.optimizer).learning_rate = content["rates"][0] * now / content["scaling"]
        self._at_begin = self._learning_rate()

    def after_schedules(self, content: dict[str, Any] | None) -> None:
        """They have been asked; what others did to the rate in the steps before the checkpoint is done again."""
        first, self._scheduled = self._scheduled is None, self._learning_rate()
        if content is not None and content.get("rates") and content["rates"][1]:
            _, scheduled, stopped = content["rates"]
            _inner(self._model.optimizer).learning_rate = self._scheduled * (stopped / scheduled)
        elif first:
            self._warn_of_rates()

    def _warn_of_rates(self) -> None:
        """Where a callback sets the rate of one rank."""
        known = inner_state(self._model.optimizer)
        before, after, base = self._at_begin, self._scheduled, known.base_rate
        if base is None or after is None or world().rank != 0:
            return
        by_rule, of_one_rank = np.float32(base * known.scaling), np.float32(base)
        if by_rule != of_one_rank and before == by_rule and after == of_one_rank:
            print(
                f"hvdtrain: note: a callback has set the learning rate to {base:g}, that for one rank, where the rule "
                f"{known.rule} made it {float(before):g}. LearningRateScheduler(lambda epoch, rate: ...) can scale the rate that "
                'it is given; lr_rule="none" leaves rates to it',
                flush=True,
            )

    def saved(self) -> dict[str, Any]:
        """With the weights, for a checkpoint: what is the same on every rank."""
        if late := [each for each in self._unbuilt if each.built]:
            self._unbuilt = []
            warnings.warn(f"the checkpoints of this training need a mended script: {_unbuilt(late[0])}", stacklevel=2)
        shared = state.shared_state(self._model, self._model.optimizer)
        rates = [self._at_begin, self._scheduled, self._learning_rate()]
        shared["rates"] = None if any(rate is None for rate in rates) else [float(rate) for rate in rates]
        return {**shared, "further": [state.shared_by(each) for each in self.further]}

    def accumulated(self) -> dict[str, Any]:
        """Gradients that this rank has added up towards the next update of each."""
        return {
            "accumulated": state.accumulated(self._model.optimizer),
            "accumulated_further": [state.accumulated(each) for each in self.further],
        }

    def restore(self, content: dict[str, Any]) -> None:
        """From `saved`, and each rank's `accumulated`.

        Raises:
            UserError: it is of another model or other optimizers, or one of these has no variables yet.
        """
        ranks = content["ranks"]
        state.restore_shared(self._model, self._model.optimizer, content)
        state.restore_accumulated(self._model.optimizer, [each.get("accumulated") for each in ranks])
        saved = content.get("further")
        if saved is None:  # of an earlier version
            return
        if len(saved) != len(self.further):
            raise UserError(
                f"the checkpoint is of a model with {len(saved)} optimizers besides the one it was compiled with, this one has "
                f"{len(self.further)}. Train in another folder, or move its checkpoints away"
            )
        for index, (each, values) in enumerate(zip(self.further, saved, strict=True)):
            # One that is never used has none before and after.
            if not each.built and not state.alike(values["optimizer"], each.variables):
                raise UserError(_unbuilt(each))
            state.restore_optimizer(each, values)
            state.restore_accumulated(each, [rank["accumulated_further"][index] for rank in ranks])


def _unbuilt(optimizer: Any) -> str:
    return (
        f"{type(optimizer).__name__}, an optimizer besides the one that the model was compiled with, has no variables before its "
        "first step to which its state could be restored: call hvdtrain.keras.broadcast(part, optimizer) with the part of the "
        "model that it trains before fit"
    )


def _set_length(optimizer: Any, updates: float) -> None:
    """That of an epoch of this `fit`, for the warm-up, unless the script gave one."""
    known = inner_state(optimizer)
    then = known.steps_per_epoch
    if then is None or known.counted:
        known.steps_per_epoch, known.counted = updates, True
        if then:
            state.keep_epoch(_inner(optimizer), then)


def accumulated_in(optimizer: Any) -> int:
    """Batches whose gradients make one update."""
    return int(_inner(optimizer).gradient_accumulation_steps or 1)


def inner_state(optimizer: Any) -> Synchronization:
    """Of the optimizer itself, where one that scales losses is around it."""
    return synchronization(_inner(optimizer))


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _further(model: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for name, value in vars(model).items():
        if name == "optimizer":
            continue
        several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        found |= {id(each): each for each in several if is_distributed(each)}
    for each in (model.optimizer, *list(found.values())):
        # Around another one it stands for both.
        found.pop(id(getattr(each, "inner_optimizer", None)), None)
    found.pop(id(model.optimizer), None)
    return list(found.values())
