"""How far a training is, in steps and epochs of all ranks, and the learning rate of its next step."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from hvdtrain import lr as rates
from hvdtrain._torch.start import world
from hvdtrain.errors import UserError

#: What torch's schedulers keep in parameter groups beside the rate.
_RATES = {"initial_lr", "max_lr", "min_lr", "swa_lr"}


@dataclass
class Pace:
    """Of one optimizer.

    Attributes:
        rule: of `hvdtrain.lr`, resolved.
        base_rates: of one rank, by parameter group.
        scaling: what the learning rates were multiplied with for this world.
        warmup_epochs, warmup_steps: length of the warm-up; one of them is 0.
        steps_per_epoch: optimizer steps in an epoch, for the warm-up; `fit` sets it.
        schedule: factor by epoch, while `fit` runs.
        epochs_done: epochs and fractions of one trained, told by `fit` while it runs; None before the first.
        steps: optimizer steps made so far.
        last_rate: learning rate of the first group in the last step, warm-up included.
        origin: steps and epochs when training was resumed or `fit` ended: worlds of other sizes make more or fewer steps of the
            same epochs.
    """

    optimizer: Optimizer
    rule: str
    base_rates: list[float]
    scaling: float
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    steps_per_epoch: int | None = None
    schedule: rates.Schedule | None = None
    epochs_done: float | None = None
    steps: int = 0
    last_rate: float = float("nan")
    origin: tuple[int, float] = (0, 0.0)
    _driven: bool = False
    _scheduled_rates: list[Any] = field(default_factory=list)

    @property
    def epoch(self) -> float:
        """Epochs and fractions of one trained so far; needs `steps_per_epoch` for a warm-up in a loop of one's own."""
        if not self._driven and self.steps_per_epoch is None and self.origin[1] < self.warmup_epochs:
            raise UserError(
                "warmup_epochs needs to know how many steps an epoch has: give distribute(..., steps_per_epoch=len(train)), about "
                'as many as there are where nobody knows, as with uneven="join"'
            )
        return self.trained

    @property
    def trained(self) -> float:
        """`epoch`, without those of a loop of one's own whose steps nobody counts."""
        if self._driven and self.epochs_done is not None:
            return self.epochs_done
        # At once, for a sum of fractions is not quite a whole epoch after its last step.
        return self.origin[1] + ((self.steps - self.origin[0]) / self.steps_per_epoch if self.steps_per_epoch else 0.0)

    @contextmanager
    def driven(self, schedule: rates.Schedule | None) -> Iterator[None]:
        """By `fit`, which knows where in which epoch a step is. However it ends, after it steps tell, and no schedule is left."""
        # The first one begins to count, whatever a loop before it has tried.
        self.epochs_done = 0.0 if self.epochs_done is None else self.trained
        self.schedule, self._driven = schedule, True
        try:
            yield
        finally:
            self.origin = self.steps, self.epochs_done
            self.schedule, self._driven = None, False

    def set_rates(self, gain: float = 1.0) -> None:
        """Set the rates for this step only, so that schedulers, which set them between steps, never notice."""
        factor = gain
        if self.scaling != 1.0:
            if self.warmup_steps:
                factor *= rates.warmup_factor(self.steps, self.warmup_steps, self.scaling)
            elif self.warmup_epochs:
                factor *= rates.warmup_factor(self.epoch, self.warmup_epochs, self.scaling)
        if self.schedule is not None:
            factor *= self.schedule(self.epoch)
        if self.steps == 0 and self.scaling != 1.0 and world().rank == 0:
            self._warn_of_own_rates()
        self._scheduled_rates = [group["lr"] for group in self.optimizer.param_groups]
        if factor != 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    def count_step(self) -> None:
        """A step was made with the rates of `set_rates`: schedulers find theirs again."""
        self.last_rate = float(self.optimizer.param_groups[0]["lr"])
        for group, rate in zip(self.optimizer.param_groups, self._scheduled_rates, strict=True):
            group["lr"] = rate
        self.steps += 1

    def _warn_of_own_rates(self) -> None:
        """Other schedulers begin with the rate that they find."""
        begun = [group.get("initial_lr") for group in self.optimizer.param_groups]
        pairs = zip(begun, self.base_rates, strict=False)
        if any(a is not None and not math.isclose(a, b * self.scaling) for a, b in pairs):
            print(
                "warning: a scheduler with rates of its own (OneCycleLR, CyclicLR) has replaced the learning rate that was scaled "
                f"for {world().size} ranks: give it max_lr (and base_lr) times {self.scaling:g}, or "
                'distribute(..., lr_rule="none") if it has',
                file=sys.stderr,
                flush=True,
            )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {
            "steps": self.steps,
            "last_rate": self.last_rate,
            "epochs": self.trained,
            "rule": self.rule,
            "scaling": self.scaling,
            "base_rates": self.base_rates,
        }

    def resume(self, state: dict[str, Any]) -> list[float]:
        """Go on from `state_dict()`, once the optimizer has its state: its rates become those of this world.

        Where nothing but the number of ranks has changed, a rate is base x rule(size), exactly; what a scheduler made of it stays.

        Returns:
            The factors by which rates have changed, by group.
        """
        self.steps = state["steps"]
        # Of an epoch that has no step left, it is the rate to record; earlier versions did not keep it.
        self.last_rate = state.get("last_rate", self.last_rate)
        self.origin = (self.steps, state["epochs"] or 0.0)
        factors = []
        for index, group in enumerate(self.optimizer.param_groups):
            then = (state["base_rates"][index] if index < len(state["base_rates"]) else 1.0) * state["scaling"]
            now = (self.base_rates[index] if index < len(self.base_rates) else 1.0) * self.scaling
            # A rate of 0 stays one.
            factors.append(now / then if then else self.scaling / state["scaling"])
            if now != then:
                group["lr"] = now if group["lr"] == then else group["lr"] * factors[-1]
                for key in _RATES & group.keys():
                    group[key] *= factors[-1]
        return factors
