"""Which epoch has the best model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from hvdtrain._keras.epochs import Logs, numbers, quantities
from hvdtrain.errors import UserError, agreed

MODES = ("auto", "min", "max")
#: Last words of metrics' names, as a model with several outputs has them behind the output's name.
_HIGHER = ("acc", "accuracy", "auc", "precision", "recall", "f1_score", "fbeta_score", "iou", "r2_score")


@dataclass(frozen=True)
class Monitor:
    """What tells the best epoch.

    Attributes:
        name: in the logs; None for validation accuracy, else validation loss, else loss.
        mode: whether the least ("min") or the largest ("max") value is the best; "auto" asks the metric.
    """

    name: str | None = None
    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f'mode="{self.mode}" is not one of {", ".join(MODES)}')
        if self.mode != "auto" and self.name is None:
            raise UserError(f'mode="{self.mode}" is of the value that monitor= names: give that too')

    def score(self, model: Any, logs: Logs, validates: bool) -> float | None:
        """Of the model after an epoch with these logs, higher is better; None without logs.

        Args:
            validates: whether there is validation data. An epoch without it (`validation_freq`) has no score: its training loss
                does not compare with the validation losses of others.

        Raises:
            UserError: the name is not among them, or nobody knows what is better, or it has one value for each class.
        """
        if not logs:
            return None
        unvalidated = validates and not any(name.startswith("val_") for name in logs)
        if unvalidated and (self.name is None or self.name.startswith("val_")):
            return None
        if self.name is not None:
            if self.name not in logs:
                raise agreed(UserError(f'monitor="{self.name}" is not among {", ".join(sorted(logs))}'))
            value = logs[self.name]
            if isinstance(value, list):
                raise agreed(
                    UserError(
                        f'monitor="{self.name}" has {len(value)} values, one for each class, of which none tells the best epoch: '
                        'give the metric one value, as F1Score(average="macro") has, or monitor another'
                    )
                )
            return value if self._higher_is_better(model, self.name) else -value
        found = quantities(numbers(logs))
        if found.val_acc is not None:
            return found.val_acc
        loss = found.val_loss if found.val_loss is not None else found.train_loss
        return None if loss is None else -loss

    def _higher_is_better(self, model: Any, name: str) -> bool:
        if self.mode != "auto":
            return self.mode == "max"
        watcher = keras.callbacks.EarlyStopping(name)
        watcher.set_model(model)
        try:
            watcher._set_monitor_op()  # as Keras' own callbacks decide, by the metric's direction
        except ValueError:
            if "loss" in name or "error" in name:
                return False
            if name.endswith(_HIGHER):
                return True
            raise agreed(
                UserError(
                    f'monitor="{name}": Keras does not know whether more or less of it is better; add mode="min" or "max"'
                )
            ) from None
        return watcher.monitor_op is not keras.ops.less
