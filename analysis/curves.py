"""Validation accuracy over epochs, replicates summed up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from analysis.runs import Run
from analysis.scaling import Spread

#: Epoch number -> the replicates' accuracies (fractions of one) after it, in order of epochs.
Curve = dict[int, Spread]


def accuracy_curves(runs: Sequence[Run]) -> dict[int, Curve]:
    """The accuracy curve of each rank count: median, least and greatest over the runs that reached an epoch.

    Args:
        runs: the measured runs of one group.

    Returns:
        Rank count -> curve; rank counts whose runs recorded no validation accuracy are absent.
    """
    values: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        for epoch in run.epochs:
            if epoch.val_acc is not None:
                values.setdefault(run.n_gpus, {}).setdefault(epoch.epoch, []).append(epoch.val_acc)
    return {
        ranks: {
            epoch: Spread(statistics.median(seen), min(seen), max(seen), len(seen))
            for epoch, seen in sorted(values[ranks].items())
        }
        for ranks in sorted(values)
    }
