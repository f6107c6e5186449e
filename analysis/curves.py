"""Validation accuracy over epochs, replicates summed up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from analysis.runs import Run, accuracies
from analysis.scaling import Spread
from analysis.stability import SHORTEST

#: Epoch number -> the replicates' accuracies (fractions of one) after it, in order of epochs.
Curve = dict[int, Spread]


def accuracy_curves(runs: Sequence[Run]) -> dict[int, Curve]:
    """The accuracy curve of each rank count: median, least and greatest over the runs that reached an epoch.

    Of several runs those count whose accuracy was finite there; where none was, the epoch is NaN.

    Args:
        runs: the measured runs of one group.

    Returns:
        Rank count -> curve; rank counts whose runs recorded no finite validation accuracy are absent.
    """
    values: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        for epoch in run.epochs:
            if epoch.val_acc is not None:
                values.setdefault(run.n_gpus, {}).setdefault(epoch.epoch, []).append(epoch.val_acc)
    curves = {
        ranks: {epoch: _spread(seen) for epoch, seen in sorted(values[ranks].items())} for ranks in sorted(values)
    }
    return {
        ranks: curve
        for ranks, curve in curves.items()
        if any(math.isfinite(spread.median) for spread in curve.values())
    }


def common_part(runs: Sequence[Run]) -> tuple[list[Run], int]:
    """Runs that have all their epochs in common, and the last of these, so that a curve of theirs is of the same runs everywhere.

    Runs end early where they may (early stopping), and a median over those that went on jumps there. It goes as far as half of the
    runs do; trials that are too short to be judged count where there is nothing else.

    Args:
        runs: of one number of ranks, at least one with a finite accuracy.
    """
    finite = [sum(map(math.isfinite, accuracies(run.epochs).values())) for run in runs]
    least = SHORTEST if max(finite) >= SHORTEST else 1
    long = [run for run, own in zip(runs, finite, strict=True) if own >= least]
    ends = sorted(max(accuracies(run.epochs)) for run in long)
    end = ends[(len(ends) - 1) // 2]
    return [run for run in long if max(accuracies(run.epochs)) >= end], end


def _spread(seen: Sequence[float]) -> Spread:
    finite = [value for value in seen if math.isfinite(value)] or [math.nan]
    return Spread(statistics.median(finite), min(finite), max(finite), len(finite))
