"""`model.fit` of one rank that was not given `callbacks()`."""

from __future__ import annotations

from typing import Any

import keras

from hvdtrain._keras.loader import Loader, for_evaluation
from hvdtrain._keras.others import listed


def fit_alone(model: Any, arguments: dict[str, Any], original: Any) -> Any:
    """Keras' own `fit`, which does not tell a loader which epoch it is."""
    train = arguments["x"]
    if not isinstance(train, Loader):
        return original(model, **arguments)
    epochs = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: train.start(epoch + 1))
    arguments["validation_data"] = for_evaluation(arguments["validation_data"])
    arguments["callbacks"] = [epochs, *listed(arguments["callbacks"])]
    # As with `callbacks()`: Keras would shuffle the batches once more, and begin an epoch where the one before ended.
    train.train_as(arguments["steps_per_epoch"])
    arguments["steps_per_epoch"], arguments["shuffle"] = None, False
    try:
        return original(model, **arguments)
    finally:
        train.train_as()
