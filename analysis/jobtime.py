"""What a job takes as a whole: start + first epochs + epochs x (training + validation) + end.

Epochs divided by throughput is not that: start, compilation in the first epoch after each start, validation, checkpoints and
the end do not shrink with more ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.finding import known
from analysis.posterior import PRIOR
from analysis.runs import Run, counted, steady, steady_median
from analysis.schema import GROUP


@dataclass(frozen=True)
class JobTime:
    """One configuration's time, all in s.

    Attributes:
        fields: the values of `analysis.schema.GROUP` by name.
        epoch: one steady epoch with its validation; `validation`: its validation alone, None where not recorded.
        mean_epoch: the same in the mean, which holds a share of what not every epoch has: a checkpoint, a second validation.
        first: what the first epoch after each start takes longer, summed over the starts.
        around: one start, one end and checkpoints outside of epochs; 0 where nobody recorded it.
        deviation: standard deviation of log `epoch`: of its mean over replicates, or the usual noise of one measurement.
        measured_from: "runs" or "table".
    """

    fields: dict[str, Any]
    n_gpus: int
    n_nodes: int | None
    epoch: float
    mean_epoch: float
    validation: float | None
    first: float
    around: float
    deviation: float
    replicates: int
    trained: float | None
    measured_from: str

    def total(self, epochs: float) -> float:
        """Seconds of a job of that many epochs."""
        return self.around + self.first + epochs * self.mean_epoch


def job_times(table: pd.DataFrame, runs: Sequence[Run] = ()) -> list[JobTime]:
    """The time model of every configuration that has an epoch time or a total of known length.

    A total that is less than epochs x epoch time contradicts it (the finding `inconsistent_total`): then total / epochs is
    taken for the epoch, because the total was read off one clock. Ranks that were timed on several numbers of nodes count on
    the fewest.

    Args:
        table: as `analysis.read` gives it.
        runs: the runs behind it: they record validation, the first epochs and the job's own start and end.
    """
    keys = [*GROUP, "n_gpus"]
    table, runs = counted(table, runs)
    timed = table[table["metric"].isin(["epoch_time", "total_time"]) & table["n_gpus"].notna() & (table["value"] > 0)]
    by_key: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if run.measured:
            by_key.setdefault(_key([getattr(run, name) for name in keys]), []).append(run)
    found = []
    for raw, rows in timed.groupby(keys, dropna=False, sort=False):
        one = _of_rows(_key(raw), rows, by_key.get(_key(raw), []))
        if one is not None:
            found.append(one)
    return found


def _of_rows(key: tuple[Any, ...], rows: pd.DataFrame, runs: Sequence[Run]) -> JobTime | None:
    each = rows.loc[rows["metric"] == "epoch_time", "value"].to_numpy(dtype=float)
    totals = rows[(rows["metric"] == "total_time") & rows["epochs"].notna()]
    whole, length = totals["value"].to_numpy(dtype=float), totals["epochs"].to_numpy(dtype=float)
    if not len(each) and not len(whole):
        return None
    epoch = float(np.median(each)) if len(each) else float(np.median(whole / length))
    means = [statistics.fmean(one.seconds or 0.0 for one in steady(run.epochs)) for run in runs if run.timed]
    mean = statistics.median(means) if means else epoch
    rest = float(np.median(whole - length * mean)) if len(whole) else 0.0
    if rest < 0:
        mean, rest = float(np.median(whole / length)), 0.0
        epoch = epoch if means else mean
    values = each if len(each) else whole / length
    nodes = rows["n_nodes"].dropna()
    jobs = [run.around for run in runs if run.around is not None and run.timed]
    validation = [median for run in runs if (median := steady_median(run.epochs, "seconds_val")) is not None]
    return JobTime(
        fields={name: None if value is None else value for name, value in zip(GROUP, key[:-1], strict=True)},
        n_gpus=int(key[-1]),
        n_nodes=int(nodes.min()) if len(nodes) else None,
        epoch=epoch,
        mean_epoch=mean,
        validation=statistics.median(validation) if validation else None,
        # What a table's total holds besides its epochs cannot be told apart into first epochs and the rest.
        first=rest if runs else 0.0,
        around=max(statistics.median(jobs), 0.0) if jobs else (0.0 if runs else rest),
        deviation=deviation_of_mean(values, PRIOR.expected),
        replicates=len(values),
        trained=float(np.median(length)) if len(length) else None,
        measured_from="runs" if runs else "table",
    )


def deviation_of_mean(values: np.ndarray[Any, Any], usual: float) -> float:
    """Standard deviation of the mean log value: from the replicates with `usual` counted as two more of them."""
    logs = np.log(values)
    squares = float(((logs - logs.mean()) ** 2).sum()) + 2 * usual**2
    return float(np.sqrt(squares / (len(logs) + 1) / len(logs)))


def _key(raw: Any) -> tuple[Any, ...]:
    """A group's key with missing values as None and numbers as int, so that runs and rows meet."""
    found: list[Any] = []
    for name, value in zip([*GROUP, "n_gpus"], raw, strict=True):
        text = known(value)
        found.append(int(float(text)) if text is not None and name in ("per_gpu_batch", "n_gpus") else text)
    return tuple(found)
