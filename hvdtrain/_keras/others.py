"""What other callbacks of a `fit` have learned: early stopping, plateaus, the best of a metric."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

# Attributes that are not learned; Keras turns the sign of min_delta at the first epoch after each start.
_NOT_SAVED = ("_model", "model", "params", "validation_data", "min_delta")
#: Bytes of an array that is not copied.
_LARGE = 64 << 20
#: Seconds since a clock was read that was read just now.
_JUST_NOW = 2.0
#: By callback and attribute.
Learned = dict[str, dict[str, Any]]


class Others:
    """Those that a `fit` was given besides ours.

    What a script sets, before training begins, is not learned: another start may set something else, and so may another rank.
    """

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        self.callbacks = list(callbacks)
        self._at_start: Learned = {}
        self._restored: dict[str, set[str]] = {}

    def begin(self) -> None:
        """Training begins: their `on_train_begin` has been called, and nothing is restored yet."""
        self._restored = {}
        self._at_start = {
            name: {key: _copied(value) for key, value in _plain_attributes(each).items()}
            for name, each in _named(self.callbacks)
        }

    def learned(self, here: bool = False) -> Learned:
        """Counters, best values and best weights.

        Args:
            here: of those that know of ranks (`on_all_ranks`), which have a state of their own on each; else of all others.
        """
        return {
            name: self._learned_by(name, each) for name, each in _named(self.callbacks) if knows_ranks(each) is here
        }

    def _learned_by(self, name: str, callback: Any) -> dict[str, Any]:
        """What was restored is learned even if it is again as it was at the start: the start after this one may differ."""
        before, restored = self._at_start.get(name, {}), self._restored.get(name, set())
        return {
            key: value
            for key, value in _plain_attributes(callback).items()
            if key in restored or key not in before or not _alike(value, before[key])
        }

    def restore(self, values: Learned) -> None:
        """From `learned`."""
        for name, callback in _named(self.callbacks):
            mine = values.get(name, {})
            self._restored.setdefault(name, set()).update(mine)
            for key, value in mine.items():
                if not _is_clock(getattr(callback, key, None)):  # of this start, which began it anew
                    # It may be restored again, and a list is changed in place.
                    setattr(callback, key, _copied(value))


def listed(callbacks: Any) -> list[Any]:
    """Those that `fit` or `evaluate` was given, in whichever form Keras takes them."""
    return list(keras.tree.flatten(getattr(callbacks, "callbacks", callbacks) or []))


def knows_ranks(callback: Any) -> bool:
    """Whether a callback says so."""
    return bool(getattr(callback, "on_all_ranks", False))


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


def _alike(value: Any, other: Any) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, list):
        return len(value) == len(other) and all(map(_alike, value, other))
    if isinstance(value, np.ndarray):
        return value is other or (_small(value) and bool(np.array_equal(value, other)))
    return bool(value == other)


def _copied(value: Any) -> Any:
    """So that a change shows; of large arrays, such as data that a callback looks at, only an exchange does."""
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value.copy() if isinstance(value, np.ndarray) and _small(value) else value


def _small(array: np.ndarray) -> bool:
    return array.nbytes <= _LARGE and array.dtype != object


def _is_clock(value: Any) -> bool:
    """Whether it is the time now, by one of Python's clocks."""
    clocks = (time.time, time.monotonic, time.perf_counter)
    return isinstance(value, float) and any(abs(value - clock()) < _JUST_NOW for clock in clocks)
