"""Stop training when a metric of the whole world no longer improves."""

from __future__ import annotations

import math
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.record import Epoch

METRICS = ("val_loss", "val_acc", "train_loss", "train_acc")


class EarlyStopping:
    """For `fit(early_stopping=...)`. It looks at values that all ranks share, so all stop after the same epoch.

    Args:
        patience: epochs without improvement that are accepted.
        metric: one of `METRICS`.
        min_delta: an improvement smaller than this is none.

    Raises:
        UserError: another metric, or a negative number.
    """

    def __init__(self, patience: int = 5, metric: str = "val_loss", min_delta: float = 0.0) -> None:
        if metric not in METRICS:
            raise UserError(f'metric="{metric}" is not one of {", ".join(METRICS)}')
        if patience < 0 or min_delta < 0:
            raise UserError(f"patience={patience} and min_delta={min_delta} must be at least 0")
        self.patience = patience
        self.metric = metric
        self.min_delta = min_delta
        self.reset()

    def reset(self) -> None:
        """A training begins."""
        self._best = -math.inf
        self._waited = 0

    def update(self, epoch: Epoch) -> bool:
        """One epoch has ended. True when training should.

        Raises:
            UserError: the epoch has no such metric.
        """
        value = getattr(epoch, self.metric)
        if value is None:
            raise UserError(f"early stopping looks at {self.metric}, which this training does not have")
        score = value if self.metric.endswith("acc") else -value
        if score > self._best + self.min_delta:
            self._best, self._waited = score, 0
        else:
            self._waited += 1
        return self.stopped

    @property
    def stopped(self) -> bool:
        """Has the metric not improved for longer than is accepted now? An earlier run may have accepted less."""
        return self._waited > self.patience

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self._best, self._waited = state["best"], state["waited"]
