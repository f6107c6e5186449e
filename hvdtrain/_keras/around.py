"""What `fit` puts before and around the other callbacks."""

from __future__ import annotations

from typing import Any

import keras

from hvdtrain._keras.training import Training


class BeforeOthers(keras.callbacks.Callback):  # type: ignore[misc]
    """`fit` puts it first: it sees the epoch before any other callback acts on it."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The rate of the last step."""
        self._training.before_others()


class OnlyNewSteps(keras.callbacks.CallbackList):  # type: ignore[misc]
    """Around the other callbacks, where an epoch goes on in its middle: they know the steps before, which have no logs now."""

    def __init__(self, training: Training) -> None:
        super().__init__(training.others.callbacks)
        self._training = training

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Of a step that this start makes."""
        if not self._training.skips:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Of a step that this start makes."""
        if not self._training.skips:
            super().on_train_batch_end(batch, logs)
