"""What other callbacks of a `fit` have learned: early stopping, plateaus, the best of a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

# Attributes that are not learned; Keras turns the sign of min_delta at the first epoch after each start.
_NOT_SAVED = ("_model", "model", "params", "validation_data", "min_delta")
#: By callback and attribute.
Learned = dict[str, dict[str, Any]]


def learned(callbacks: Sequence[Any], here: bool = False) -> Learned:
    """Counters, best values and best weights.

    Args:
        here: of those that know of ranks (`on_all_ranks`), which have a state of their own on each; else of all others.
    """
    return {name: _plain_attributes(each) for name, each in _named(callbacks) if knows_ranks(each) is here}


def knows_ranks(callback: Any) -> bool:
    """Whether a callback says so."""
    return bool(getattr(callback, "on_all_ranks", False))


def restore(callbacks: Sequence[Any], values: Learned) -> None:
    """From `learned`."""
    for name, callback in _named(callbacks):
        for key, value in values.get(name, {}).items():
            setattr(callback, key, value)


def _named(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """By type, the first, second, ... of it: there may be two that stop early."""
    counts: Counter[str] = Counter()
    named = []
    for callback in callbacks:
        kind = type(callback).__name__
        counts[kind] += 1
        named.append((f"{kind} {counts[kind]}", callback))
    return named


def _plain_attributes(callback: Any) -> dict[str, Any]:
    plain = (int, float, bool, str, type(None), np.ndarray, np.generic)

    def is_plain(value: Any) -> bool:
        return isinstance(value, plain) or (isinstance(value, list) and all(map(is_plain, value)))

    return {key: value for key, value in vars(callback).items() if key not in _NOT_SAVED and is_plain(value)}
