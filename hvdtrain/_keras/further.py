"""Optimizers that a model has besides the one it was compiled with: a `train_step` of one's own for two networks, say."""

from __future__ import annotations

from typing import Any

from hvdtrain._keras.optimizer import is_distributed


def further(model: Any) -> list[Any]:
    """Those that `DistributedOptimizer` made and that are attributes of the model, or in lists or dictionaries that are; in the
    order in which it got them, which is the same on all ranks.
    """
    found: dict[int, Any] = {}
    for name, value in vars(model).items():
        if name == "optimizer":
            continue
        several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        found |= {id(each): each for each in several if is_distributed(each)}
    for each in (model.optimizer, *list(found.values())):
        # Around another one it stands for both.
        found.pop(id(getattr(each, "inner_optimizer", None)), None)
    found.pop(id(model.optimizer), None)
    return list(found.values())
