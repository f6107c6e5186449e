"""Learning-rate schedules: functions of the epoch that give a factor for the rate.

Epochs count from 0 and fractions count: 2.5 is half-way through the third epoch. So a schedule does not depend on the number
of ranks, which changes the steps of an epoch. `hvdtrain.lr` multiplies the factor with scaling and warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

Schedule = Callable[[float], float]


def constant() -> Schedule:
    """Always 1."""
    return lambda epoch: 1.0


def step(every: float, factor: float) -> Schedule:
    """Multiply by `factor` after each `every` epochs.

    Raises:
        ValueError: `every` or `factor` is not positive.
    """
    _positive(every=every, factor=factor)
    return lambda epoch: factor ** math.floor(epoch / every)


def milestones(at: Iterable[float], factor: float) -> Schedule:
    """Multiply by `factor` after each of the epochs `at`.

    Raises:
        ValueError: `factor` is not positive.
    """
    _positive(factor=factor)
    marks = sorted(at)
    return lambda epoch: factor ** sum(epoch >= mark for mark in marks)


def cosine(epochs: float, floor: float = 0.0) -> Schedule:
    """From 1 to `floor` along half a cosine over `epochs`, then `floor` (Loshchilov and Hutter, 2017, arXiv:1608.03983, eq. 5).

    Raises:
        ValueError: `epochs` is not positive, or `floor` is outside [0, 1].
    """
    _positive(epochs=epochs)
    if not 0 <= floor <= 1:
        raise ValueError(f"floor={floor} is a share of the full rate, from 0 to 1")
    return lambda epoch: floor + (1 - floor) * (1 + math.cos(math.pi * min(epoch / epochs, 1.0))) / 2


def exponential(gamma: float) -> Schedule:
    """Multiply by `gamma` per epoch, evenly over its steps.

    Raises:
        ValueError: `gamma` is not positive.
    """
    _positive(gamma=gamma)
    return lambda epoch: gamma**epoch


class Plateau:
    """Multiply by `factor` when a metric has not improved for more than `patience` epochs.

    Feed it with a value that all ranks share (`fit` gives it the validation loss of the whole world), or they train apart.

    Args:
        patience: epochs without improvement that are accepted, at least 0.
        factor: between 0 and 1.
        min_delta: an improvement smaller than this is none.
        higher_is_better: True for an accuracy.
        floor: smallest factor.

    Raises:
        ValueError: `factor` or `patience` is out of range.
    """

    def __init__(
        self,
        patience: int = 10,
        factor: float = 0.1,
        *,
        min_delta: float = 0.0,
        higher_is_better: bool = False,
        floor: float = 0.0,
    ) -> None:
        if not 0 < factor < 1 or patience < 0:
            raise ValueError(f"factor={factor} must lie between 0 and 1, and patience={patience} be at least 0")
        self.patience = patience
        self.factor = factor
        self.min_delta = min_delta
        self.higher_is_better = higher_is_better
        self.floor = floor
        self._best = -math.inf
        self._waited = 0
        self._now = 1.0

    def __call__(self, epoch: float) -> float:
        """The factor at present; the future of a plateau is unknown, so it does not depend on `epoch`."""
        return self._now

    def update(self, metric: float) -> None:
        """One epoch has ended with this value. One that is not finite is no improvement."""
        value = metric if self.higher_is_better else -metric
        if value > self._best + self.min_delta:
            self._best, self._waited = value, 0
            return
        self._waited += 1
        if self._waited > self.patience:
            self._now, self._waited = max(self._now * self.factor, self.floor), 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {"best": self._best, "waited": self._waited, "now": self._now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self._best, self._waited, self._now = state["best"], state["waited"], state["now"]


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}={value} must be a positive number")
