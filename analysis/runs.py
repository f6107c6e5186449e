"""One run, whoever recorded it, and the measurements that it makes."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.csv_files import Row
from analysis.finding import known
from analysis.measured import SPEEDS, Held, on_fewest_nodes, series_key
from analysis.schema import COLUMNS, GROUP, METRICS
from analysis.stability import SHORTEST, settling_epoch
from hvdtrain.record import Epoch


@dataclass(frozen=True)
class Run:
    """One cell as the analysis sees it. What the job reported goes before what was asked for.

    Attributes:
        study: the study folder as it was given.
        status: of `hvdtrain.record.STATUSES`, or `running` or `not started` for a cell without a result.
        asked: ranks that were asked for; `n_gpus` are those that ran, 0 where a log does not say.
        cores: of the machine that rank 0 ran on; None where the job did not say.
        epochs: finished epochs that were recorded, in order; logs of others may leave some out.
        mixed: its epochs ran on different numbers of ranks or kinds of GPU, so they measure neither.
        around: s of its last attempt that are no epoch's: start, end, checkpoints; None where not recorded.
        energy: J that its GPUs took, sampled while it ran; None where not all of them tell.
        given: what the job was given that no other field tells, a word for each option after `--` and each variable.
        rules: further learning-rate rules that it counts for, of a run of one rank: all of them are the same there.
        again: this is such a run under one of these.
        recorded: by this suite, so that what is counted is known; logs of other tools may be of data that are not sharded.
    """

    study: str
    name: str
    status: str
    reason: str
    workload: str | None
    gpu_type: str | None
    device: str | None
    asked: int
    n_gpus: int
    n_nodes: int | None
    per_gpu_batch: int | None
    lr_rule: str | None
    precision: str | None
    seed: int | None
    launcher: str | None
    controller: str | None
    hosts: tuple[str, ...]
    gpu_models: tuple[str, ...]
    cores: int | None
    epochs: tuple[Epoch, ...]
    mixed: bool = False
    around: float | None = None
    energy: float | None = None
    given: tuple[str, ...] = ()
    recorded: bool = False
    rules: tuple[str | None, ...] = ()
    again: bool = False

    @property
    def source(self) -> str:
        """What the table's `source` column holds for this cell: `<study>/<cell>`."""
        return f"{self.study}/{self.name}"

    @property
    def global_batch(self) -> int | None:
        """Samples per step of all ranks."""
        return None if self.per_gpu_batch is None or not self.n_gpus else self.per_gpu_batch * self.n_gpus

    @property
    def measured(self) -> bool:
        """Whether the cell ran to its end, so that its numbers count."""
        return self.status == "completed" and bool(self.epochs) and not self.mixed

    @property
    def diverged(self) -> bool:
        """Whether the loss was no number any more: the cell has no numbers that count, but it says where its way leads."""
        return self.status == "diverged" and not self.mixed

    @property
    def whole(self) -> bool:
        """Whether every epoch from the first to the last was recorded."""
        return all(epoch.epoch == number for number, epoch in enumerate(self.epochs, start=1))

    @property
    def timed(self) -> bool:
        """Whether every epoch was timed, so that their sum is the time of all."""
        return self.whole and all(epoch.seconds is not None for epoch in self.epochs)


def group_key(run: Run, held: Held) -> tuple[Any, ...]:
    """The key of the group that a run is counted to, as `analysis.measured.series_key`."""
    return series_key(tuple(getattr(run, name) for name in GROUP), run.global_batch, held)


def under_each_rule(runs: Iterable[Run]) -> list[Run]:
    """`runs`, those that count for several learning-rate rules once under each: for what compares by the rule.

    They are the same runs all the same, with the same `source`: a list of runs names each once.
    """
    return [
        one
        for run in runs
        for one in (
            dataclasses.replace(run, rules=()),
            *(dataclasses.replace(run, lr_rule=rule, rules=(), again=True) for rule in run.rules),
        )
    ]


def counted(table: pd.DataFrame, runs: Iterable[Run]) -> tuple[pd.DataFrame, list[Run]]:
    """The rows of a table, and the runs behind it, that count where the same ranks were timed on several numbers of nodes.

    Those on the fewest, and what does not say; a file of others may have the fewest. Runs stand under each of their
    learning-rate rules.
    """
    names = [*GROUP, "n_gpus"]
    table = table[on_fewest_nodes(table)]
    timed = table[table["metric"].isin(SPEEDS) & table["n_nodes"].notna()]
    fewest: dict[tuple[str | None, ...], int] = {}
    for *values, nodes in timed[[*names, "n_nodes"]].drop_duplicates().itertuples(index=False, name=None):
        fewest[tuple(known(value) for value in values)] = int(nodes)
    found = []
    for run in under_each_rule(runs):
        most = fewest.get(tuple(known(getattr(run, name)) for name in names))
        if most is None or run.n_nodes is None or run.n_nodes <= most:
            found.append(run)
    return table, found


def rows(run: Run) -> list[Row]:
    """The measurements of a finished run: those that it recorded of throughput, epoch_time, total_time, val_acc,
    epochs_to_stability (where its curve is stable), noise_scale (the median over the second half of the run), energy."""
    scales = [epoch.noise_scale for epoch in run.epochs[len(run.epochs) // 2 :] if epoch.noise_scale]
    # Not the last epoch's: not every epoch is validated.
    final = next(reversed(accuracies(run.epochs).values()), None)
    values = {
        # A zero here is a clock too coarse for the epoch, not a measurement; ratios of it would be infinite.
        "throughput": steady_median(run.epochs, "samples_per_second") or None,
        "epoch_time": steady_median(run.epochs, "seconds") or None,
        "total_time": sum(epoch.seconds or 0.0 for epoch in run.epochs) or None if run.timed else None,
        "val_acc": final if final is not None and math.isfinite(final) else None,
        "epochs_to_stability": stable_from(run.epochs),
        "noise_scale": float(statistics.median(scales)) if scales else None,
        "energy": run.energy,
    }
    common: Row = {
        "source": run.source,
        "workload": run.workload,
        "gpu_type": run.gpu_type,
        "n_gpus": run.n_gpus or None,
        "n_nodes": run.n_nodes,
        "per_gpu_batch": run.per_gpu_batch,
        "global_batch": run.global_batch,
        "lr_rule": run.lr_rule,
        "precision": run.precision,
        "device": run.device,
        "replicate": run.seed,
        "epochs": run.epochs[-1].epoch if run.epochs else 0,
    }
    table: list[Row] = []
    for metric, value in values.items():
        if value is not None:
            entry: Row = {**common, "metric": metric, "value": value, "unit": METRICS[metric].unit}
            table.append({column: entry[column] for column in COLUMNS})
    return table


def accuracies(epochs: Iterable[Epoch]) -> dict[int, float]:
    """The validation accuracy of each epoch that recorded one, NaN where it was not finite."""
    return {epoch.epoch: epoch.val_acc for epoch in epochs if epoch.val_acc is not None}


def stable_from(epochs: Sequence[Epoch]) -> float | None:
    """The epoch from which the validation accuracy is stable; None where it is not, or too few epochs recorded it."""
    curve = accuracies(epochs)
    # Between few validations smoothing reaches back over many epochs.
    if len(curve) < SHORTEST or len(curve) < len(epochs) // 2:
        return None
    return settling_epoch(list(curve.values()), list(curve))


def steady_median(epochs: Iterable[Epoch], field: str) -> float | None:
    """The median of one field over the epochs, each start's first one left out: it holds compilation and warm-up.

    A run that has nothing else is measured by what it has: its callers see that from the number of epochs, one.
    """
    values = [value for epoch in steady(epochs) if (value := getattr(epoch, field)) is not None]
    return float(statistics.median(values)) if values else None


def steady(epochs: Iterable[Epoch]) -> list[Epoch]:
    """The epochs without each start's first one; where that leaves none, all but the first one; else that."""
    everything = list(epochs)
    started: set[int] = set()
    found: list[Epoch] = []
    for epoch in everything:
        if epoch.restart in started:
            found.append(epoch)
        started.add(epoch.restart)
    return found or everything[1:] or everything
