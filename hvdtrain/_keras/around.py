"""What `fit` puts in front of the other callbacks, whose turn is before ours."""

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
