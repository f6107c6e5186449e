"""What `fit` refuses because several ranks would make something else of it than one rank does of the union."""

from __future__ import annotations

from typing import Any

import keras

from hvdtrain._keras.start import gather_objects, world
from hvdtrain.errors import UserError


def refuse_what_differs(model: Any, x: Any) -> None:
    """Of several ranks.

    Args:
        x: what each of them trains on; None where that is known to be its share.

    Raises:
        UserError: says what to take instead.
    """
    _refuse_sums(model)
    _refuse_synchronized(model)
    _refuse_the_same_data(x)


def _refuse_sums(model: Any) -> None:
    """Of Keras' own steps; one of the user's may do with a loss what it likes."""
    if not all(step.__module__.startswith("keras.") for step in (type(model).train_step, type(model).compute_loss)):
        return
    for loss in keras.tree.flatten(model.loss):
        if getattr(loss, "reduction", None) == "sum":
            raise UserError(
                f'{type(loss).__name__}(reduction="sum") adds up a batch: averaged over {world().size} ranks it is {world().size} '
                "times smaller than in one process with all samples. Take Keras' default, the mean, with a learning rate as many "
                "times larger as the batch has samples"
            )


def _refuse_synchronized(model: Any) -> None:
    """Batch normalisation that Keras synchronises over the devices of a process, of which a rank has one."""
    for layer in model._flatten_layers():
        # A frozen one takes no statistics of a batch.
        if getattr(layer, "synchronized", False) and layer.trainable:
            raise UserError(
                f"layer {layer.name} has synchronized=True, which Keras knows of devices in one process only: each of the "
                f"{world().size} ranks would normalise its own batch. For one machine take "
                'hvdtrain.keras.init(strategy="mirrored"); else leave it out, or take keras.layers.GroupNormalization'
            )


def _refuse_the_same_data(x: Any) -> None:
    """Plain arrays on every rank are most likely all of the data on every rank."""
    leaves = [
        each
        for each in keras.tree.flatten(x)
        if len(getattr(each, "shape", None) or ()) and hasattr(each, "__getitem__")
    ]
    if not leaves:
        return
    mine = [(tuple(each.shape), keras.ops.convert_to_numpy(each[:8]).tobytes()) for each in leaves]
    if all(other == mine for other in gather_objects(mine)):
        raise UserError(
            f"model.fit got the same {leaves[0].shape[0]} samples on every rank, so each epoch would train on all of them "
            f"{world().size} times. Share them out: hvdtrain.keras.loader(x, y, batch_size=...), or "
            "hvdtrain.keras.fit(model, x, y, ...)"
        )
