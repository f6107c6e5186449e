"""How runs ended: which were at a target and when, and which got nowhere, because their loss or accuracy was no number any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from analysis.runs import Run
from analysis.schema import GROUP
from analysis.smoothing import smooth
from analysis.stability import ends_in_nothing

#: Fewer epochs show no level.
SHORTEST_CURVE = 5


def curve_of(run: Run) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Numbers of the epochs with a finite validation accuracy, and these; both of shape (epochs,)."""
    points = [(float(epoch.epoch), epoch.val_acc) for epoch in run.epochs if epoch.val_acc is not None]
    found = np.array(points, dtype=float).reshape(-1, 2)
    found = found[np.isfinite(found[:, 1])]
    return found[:, 0], found[:, 1]


def recorded_in(run: Run) -> list[float]:
    """Validation accuracies of a run, those that are not finite too."""
    return [epoch.val_acc for epoch in run.epochs if epoch.val_acc is not None]


def without_answer(runs: Sequence[Run], ended: Callable[[list[float]], Any]) -> set[Any]:
    """Configurations of whose runs with accuracies more than half diverged, or `ended` so that they tell nothing.

    One of this suite that ended well has not diverged, whether it recorded accuracies or not.
    """
    found: dict[Any, list[bool]] = {}
    for run in runs:
        values = recorded_in(run)
        if run.diverged or (run.measured and (values or run.recorded)):
            found.setdefault(key_of_run(run), []).append(run.diverged or bool(values and ended(values)))
    return {key for key, own in found.items() if sum(own) > len(own) / 2}


def only_diverged(runs: Sequence[Run]) -> dict[Any, list[Run]]:
    """The runs of the configurations of which every run that ended has diverged."""
    measured = {key_of_run(run) for run in runs if run.measured}
    found: dict[Any, list[Run]] = {}
    for run in runs:
        if run.diverged and key_of_run(run) not in measured:
            found.setdefault(key_of_run(run), []).append(run)
    return found


def first_epochs(runs: Sequence[Run], target: float) -> tuple[dict[Any, np.ndarray[Any, Any]], Counter[Any]]:
    """Of every configuration with curves: the first epoch at which each run's smoothed accuracy is at the target, and
    the accuracy itself has been there.

    Empty where fewer than half of its runs get there: it does not reach the target. Nor does a run that diverged or ended in
    NaN, which needs no curve for that; but where the others are too short for a curve, those say nothing of the target.
    Besides: how many of its runs ended without getting there, those apart that diverged.
    """
    found: dict[Any, list[float | None]] = {}
    short: set[Any] = set()
    broken: Counter[Any] = Counter()
    missed: Counter[Any] = Counter()
    for run in runs:
        key, recorded = key_of_run(run), recorded_in(run)
        numbers, values = curve_of(run)
        if run.diverged or (run.measured and recorded and ends_in_nothing(recorded)):
            broken[key] += 1
            missed[key] += not run.diverged
        elif run.measured and len(values) < SHORTEST_CURVE:
            short.add(key)
        elif run.measured:
            least = target - 1e-9
            # Smoothed with what comes after them, epochs of the first climb seem to be higher than the curve has been by then.
            there = numbers[(smooth(values) >= least) & (np.maximum.accumulate(values) >= least)].tolist()
            found.setdefault(key, []).append(there[0] if there else None)
            missed[key] += not there
    for key, times in broken.items():
        if key in found or key not in short:
            found.setdefault(key, []).extend([None] * times)
    reached = {key: [epoch for epoch in epochs if epoch is not None] for key, epochs in found.items()}
    return {key: np.array(own if len(own) >= len(found[key]) / 2 else []) for key, own in reached.items()}, missed


def key_of_run(run: Run) -> tuple[Any, ...]:
    """What the configuration of a run is known by: the values of `analysis.schema.GROUP`, and its ranks."""
    return (*[getattr(run, name) for name in GROUP], run.n_gpus)
