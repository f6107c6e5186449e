"""Configurations that nobody measured: twice the largest size of each group, if the measurements carry that far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.epochs import Bounds, EpochsGroup, fit_batches, fit_epochs
from analysis.finding import known
from analysis.fitting import fit_scaling
from analysis.way import COUNTED, Way, Z, of_each_rule


def forecasts(table: pd.DataFrame, measured_ways: Sequence[Way], bounds: Bounds | None = None) -> list[Way]:
    """The way to the target, or to stable accuracy, at twice the largest size of each group with times and counts of epochs.

    The target may be one that was recorded, as epochs_to_target. Start and end are taken to stay those of the largest size.
    The interval combines that of the epoch time with that of the epochs, as independent. None where runs contradict it that have
    not settled (`bounds`, as for `fit_epochs`).
    """
    measured_ways = of_each_rule(measured_ways)
    own = table[table["metric"].isin(["epoch_time", "total_time"])]
    if own.empty or not measured_ways or measured_ways[0].basis not in COUNTED or measured_ways[0].epochs is None:
        return []
    by_curves = measured_ways[0].basis == "target"
    groups = _to_target(measured_ways) if by_curves else fit_epochs(table, bounds).groups
    counts = {(group.workload, group.lr_rule): group for group in groups}
    found = []
    for fit in fit_scaling(own).groups:
        batch = fit.fields["per_gpu_batch"]
        group = counts.get((known(fit.fields["workload"]), known(fit.fields["lr_rule"])))
        largest = [way for way in measured_ways if dict(way.fields) == fit.fields and way.n_gpus == fit.data.n[-1]]
        if fit.posterior is None or batch is None or group is None or len(group.batches) < 2 or not largest:
            continue
        asked = int(2 * fit.data.n[-1])
        row = fit.predict([asked])[0]
        if row["status"] == "refused" or not group.expects(float(asked * batch)):
            continue
        found.append(_way(largest[0], row, group, asked, int(batch), float(fit.data.values[-1]), fit.data.metric))
    return found


def _to_target(measured_ways: Sequence[Way]) -> list[EpochsGroup]:
    """Epochs to the target against global batch, of every workload and learning-rate rule: the counts that `ways` found."""
    counted: dict[tuple[str | None, str | None], list[tuple[float, float, int]]] = {}
    for way in measured_ways:
        if way.epochs is not None and way.per_gpu_batch is not None:
            batch = float(way.n_gpus * way.per_gpu_batch)
            counted.setdefault((way.workload, way.fields["lr_rule"]), []).append((batch, way.epochs, way.replicates))
    found = []
    for (workload, rule), points in counted.items():
        rows = pd.DataFrame(points, columns=["batch", "epochs", "runs"]).groupby("batch")
        epochs, runs = rows["epochs"].median(), rows["runs"].sum()
        batches = epochs.index.to_numpy(dtype=float)
        found.append(fit_batches(
            batches, epochs.to_numpy(dtype=float), runs.to_numpy(dtype=float), workload, rule, "epochs_to_target"
        ))  # fmt: skip
    return found


def _way(at: Way, row: dict[str, float], group: EpochsGroup, asked: int, batch: int, last: float, metric: str) -> Way:
    low, epochs, high = group.interval(float(asked * batch))
    # A fit of total times predicts a total of as many epochs: only its ratio to the last size is of use here.
    steady = (at.seconds / (at.epochs or 1.0)) if metric == "total_time" else at.mean_epoch or last
    around = max(at.seconds - (at.epochs or 0.0) * steady, 0.0)
    each = [float(row[name]) / last * steady for name in ("low", "value", "high")]
    seconds = around + epochs * each[1]
    # A count is whole: half an epoch either way is lost in it.
    whole = Z * 0.5 / epochs
    down = float(np.exp(-np.linalg.norm([np.log(epochs / low), np.log(each[1] / each[0]), whole])))
    up = float(np.exp(np.linalg.norm([np.log(high / epochs), np.log(each[2] / each[1]), whole])))
    return Way(
        fields=at.fields, n_gpus=asked, n_nodes=None, epochs=epochs, seconds=seconds,
        low=around + (seconds - around) * down, high=around + (seconds - around) * up,
        val_acc=None, reached=None, basis=at.basis, replicates=0, price=at.price, measured=False, apart=at.apart,
    )  # fmt: skip
