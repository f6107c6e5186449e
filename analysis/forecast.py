"""Configurations that nobody measured: twice the largest size of each group, if the measurements carry that far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.epochs import EpochsGroup, fit_epochs
from analysis.finding import known
from analysis.fitting import fit_scaling
from analysis.target import Way


def forecasts(table: pd.DataFrame, measured_ways: Sequence[Way]) -> list[Way]:
    """The way to stable accuracy at twice the largest size of each group that has epoch times and counts of epochs.

    Start and end are taken to stay those of the largest size. The interval combines that of the epoch time with that of
    the epochs, as independent.
    """
    own = table[table["metric"].isin(["epoch_time", "total_time"])]
    if own.empty or not measured_ways or measured_ways[0].basis != "stable":
        return []
    counts = {(group.workload, group.lr_rule): group for group in fit_epochs(table).groups}
    found = []
    for fit in fit_scaling(own).groups:
        batch = fit.fields["per_gpu_batch"]
        group = counts.get((known(fit.fields["workload"]), known(fit.fields["lr_rule"])))
        largest = [way for way in measured_ways if dict(way.fields) == fit.fields and way.n_gpus == fit.data.n[-1]]
        if fit.posterior is None or batch is None or group is None or len(group.batches) < 2 or not largest:
            continue
        asked = int(2 * fit.data.n[-1])
        row = fit.predict([asked])[0]
        if row["status"] == "refused":
            continue
        found.append(_way(largest[0], row, group, asked, int(batch), float(fit.data.values[-1]), fit.data.metric))
    return found


def _way(at: Way, row: dict[str, float], group: EpochsGroup, asked: int, batch: int, last: float, metric: str) -> Way:
    low, epochs, high = group.interval(float(asked * batch))
    # A fit of total times predicts a total of as many epochs: only its ratio to the last size is of use here.
    steady = (at.seconds / (at.epochs or 1.0)) if metric == "total_time" else last
    around = max(at.seconds - (at.epochs or 0.0) * steady, 0.0)
    each = [float(row[name]) / last * steady for name in ("low", "value", "high")]
    seconds = around + epochs * each[1]
    down = float(np.exp(-np.hypot(np.log(epochs / low), np.log(each[1] / each[0]))))
    up = float(np.exp(np.hypot(np.log(high / epochs), np.log(each[2] / each[1]))))
    return Way(
        fields=at.fields, n_gpus=asked, n_nodes=None, epochs=epochs, seconds=seconds,
        low=around + (seconds - around) * down, high=around + (seconds - around) * up,
        val_acc=None, reached=None, basis=at.basis, replicates=0, price=at.price, measured=False,
    )  # fmt: skip
