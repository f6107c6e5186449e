"""The backend that Keras runs on, as the few operations in which TensorFlow and PyTorch differ here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from hvdtrain.errors import UserError
from hvdtrain.launch.session import Session
from hvdtrain.world import World

#: Squared norms of gradients cost a pass over them; every so many steps is enough for a mean over an epoch.
NORM_EVERY = 50


@dataclass(frozen=True)
class Agreed:
    """What all ranks know after a step, each the same.

    Attributes:
        stop: some rank was asked to stop before the step.
        diverged: some rank's loss was no longer a number.
        end: some rank's training was to end before the step.
    """

    stop: bool
    diverged: bool
    end: bool


def agreed_by(wires: Sequence[Wire]) -> Agreed:
    """What any of them brought."""
    found = [wire.agreed() for wire in wires]
    if len(found) == 1:
        return found[0]
    return Agreed(
        any(each.stop for each in found), any(each.diverged for each in found), any(each.end for each in found)
    )


class Wire(Protocol):
    """What one optimizer sends in each step, gradients and beside them a few flags, and the clock of the step.

    Attributes:
        number: in the names of messages, where two optimizers may send at once; `broadcast` makes it the same on all ranks.
    """

    number: int

    # --- between steps ---

    def start_step(self, weight: float, stop: bool, end: bool) -> None:
        """Before a step of `fit`: weight of this rank's batch, whether this rank was asked to stop, and whether a callback of it
        wants the training to end.
        """

    def end_step(self) -> None:
        """The step's results are there."""

    def agreed(self) -> Agreed:
        """What the last step brought."""

    def reset_times(self) -> None:
        """Begin to add up seconds and norms anew, and forget what the last step brought."""

    def measured(self) -> dict[str, float]:
        """Since `reset_times`: seconds `data`, `forward`, `backward`, `allreduce` (waiting that nothing hid), `optimizer`, where
        they can be measured; `norms` (how many were taken), the sums `local_square` and `averaged_square`, and `last_square`.
        """

    # --- in a step: part of the graph where there is one ---

    def data_arrived(self, data: Any) -> None:
        """For the clock: a batch is there."""

    def weighted(self, loss: Any) -> Any:
        """The loss times the batch's weight."""

    def of_union(self, loss: Any, divisor: Any, name: str) -> Any:
        """A mean over this rank's batch, such that the average over ranks, each `weighted`, is the mean over the union.

        Args:
            loss: a sum divided by `divisor`; 0 where that is 0.
            divisor: shape (), float32.
            name: the same on all ranks, and no other's in this step.
        """

    def gradients_computed(self, grads: list[Any]) -> None:
        """For the clock: the backward pass of this rank is over."""

    def missing(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """`grads` with zeros where this rank has none (None) but another one has."""

    def average(self, grads: list[Any], names: list[str]) -> list[Any]:
        """Gradients averaged over all ranks: dense or sparse, in the same order on every rank."""

    def agreed_finite(self, finite: Any) -> Any:
        """Whether `finite` is true on all ranks."""


class Messages(Protocol):
    """Between steps, all ranks make the same of these calls in the same order."""

    def add(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over all ranks, in double precision."""

    def gather_objects(self, value: Any) -> list[Any]:
        """`value` of every rank, in order of ranks."""

    def broadcast_object(self, value: Any, name: str) -> Any:
        """`value` of rank 0."""

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Overwrite Keras variables with rank 0's, bit by bit."""


class Replicas(Protocol):
    """Of a strategy that drives several devices from one process.

    Attributes:
        number: devices, each of which trains on its part of every step.
    """

    number: int


class Backend(Protocol):
    """See `hvdtrain._keras.tensorflow_backend` and `torch_backend`.

    `feed` makes of a loader what `model.fit` takes; `training` does, and makes what takes the place of the model's train function,
    if anything.

    Attributes:
        strategies: those that it has.
    """

    framework: str
    package: str
    strategies: tuple[str, ...]

    def start(self, session: Session, strategy: str) -> str: ...
    def ranks(self) -> Messages: ...
    def replicas(self) -> Replicas | None: ...
    def feed(self, data: Any) -> Any: ...
    def training(self, model: Any, data: Any, class_weight: Any) -> tuple[Any, Any]: ...
    def visible_gpus(self) -> int: ...
    def use(self, place: World, strategy: str) -> None: ...
    def device_name(self, place: World) -> str: ...
    def threads(self) -> int: ...
    def wire(self, compression: str) -> Wire: ...
    def random_state(self) -> Any: ...
    def set_random_state(self, state: Any) -> None: ...
    def separate_random(self, offset: int) -> None: ...


@cache
def backend() -> Backend:
    """The one that Keras was configured for.

    Raises:
        UserError: it is JAX, for which Horovod has no operations.
    """
    _import_quietly()
    import keras

    name = keras.backend.backend()
    if name == "tensorflow":
        from hvdtrain._keras.tensorflow_backend import TensorFlow

        return TensorFlow()
    if name == "torch":
        from hvdtrain._keras.torch_backend import Torch

        return Torch()
    raise UserError(
        f"Keras runs on {name}, and Horovod knows only TensorFlow and PyTorch: each rank would train by itself. "
        "Set KERAS_BACKEND=tensorflow (or torch) before Keras is imported"
    )


def _import_quietly() -> None:
    """TensorFlow writes pages about the machine at import; what a user must know comes as an error anyway."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
