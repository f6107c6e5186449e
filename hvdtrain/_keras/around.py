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

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The rate that the epoch before left."""
        self._training.before_others_begin(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The rate of the last step."""
        self._training.before_others()


class OnlyNewSteps(keras.callbacks.Callback):  # type: ignore[misc]
    """In place of the other callbacks, where an epoch goes on in its middle: they know the steps before, which have no logs now.

    What they put into logs the callbacks behind them see: all are given the same ones.
    """

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def set_params(self, params: Any) -> None:
        """Of each."""
        for each in self._training.others.callbacks:
            each.set_params(params)

    def set_model(self, model: Any) -> None:
        """Of each."""
        for each in self._training.others.callbacks:
            each.set_model(model)


def _of_each(name: str) -> Any:
    def hook(self: OnlyNewSteps, *args: Any, **kwargs: Any) -> None:
        if self._training.skips and name in ("on_train_batch_begin", "on_train_batch_end"):
            return
        for each in self._training.others.callbacks:
            getattr(each, name)(*args, **kwargs)

    return hook


for _name in dir(keras.callbacks.Callback):
    if _name.startswith("on_"):
        setattr(OnlyNewSteps, _name, _of_each(_name))
