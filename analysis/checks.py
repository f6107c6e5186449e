"""Checks of the table itself: each yields findings, with the numbers that triggered it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis import words
from analysis.diagnosis import Finding
from analysis.epochs import METRICS_OF_EPOCHS, fit_epochs
from analysis.fitting import GroupFit, fit_scaling
from analysis.measured import COMMON_NODE, SPEEDS
from analysis.schema import GROUP

#: Speed per rank up to this much above the smallest size is noise.
SUPERLINEAR = 1.05
_FALLING = 0.98
_SAME = 0.05
_FLAT = 1.1
_BOUNDARY = 1.10


def scaling_checks(table: pd.DataFrame) -> Iterator[Finding]:
    """What the speeds of each group say."""
    for fit in fit_scaling(table).groups:
        yield from _of_group(fit, table)
    yield from _same_on_other_gpus(table)


def _of_group(fit: GroupFit, table: pd.DataFrame) -> Iterator[Finding]:
    data = fit.data
    fields = dict(zip(GROUP, data.key, strict=True))
    device, name = fields["device"], describe(fields)
    rows = _rows(table, fields, data.metric)
    cost = data.log_cost(data.values, data.n)
    speed = np.exp(-cost) * data.n
    if fit.status == "refused":
        yield Finding("implausible", f"{fit.reason}; nothing is predicted from this group", rows, name,
                      "mixed units, a per-rank value at one size, or another workload", "measure the larger size again, with its unit")  # fmt: skip
    flat = len(data.n) > 1 and data.n[-1] / data.n[0] >= 2 and speed.max() / speed[0] < _FLAT and speed.min() / speed[0] > 1 / _FLAT
    if flat and not data.is_time:
        low, high = data.values.min(), data.values.max()
        yield Finding("per_worker_suspected", f"{data.metric} stays at {low:.4g} to {high:.4g} {data.unit} from {data.n[0]:g} to "
                      f"{data.n[-1]:g} ranks", rows, name, "the values are of one rank, not of all",
                      "say the unit: samples/s/GPU is multiplied by the ranks", {"low": float(low), "high": float(high)})  # fmt: skip
    elif flat:
        yield Finding("weak_scaling", f"{data.metric} stays at {data.values.min():.4g} to {data.values.max():.4g} s from "
                      f"{data.n[0]:g} to {data.n[-1]:g} ranks", rows, name,
                      "every rank trains on all data (no shards), so an epoch is more work on more ranks",
                      "compare samples/s over all ranks; check the sharding")  # fmt: skip
    elif fit.status != "refused":
        for place, (before, after) in enumerate(pairwise(np.exp(-cost)), start=1):
            one, two = words.ranks(int(data.n[place - 1]), device), f"{data.n[place]:g}"
            gain = float(speed[place] / speed[place - 1])
            numbers = {"speedup": gain, "efficiency": float(after / before)}
            if after / before > SUPERLINEAR:
                yield Finding("superlinear", f"{two} run {gain:.2f} times as fast as {one}: {after / before:.0%} efficiency", rows, name,
                              "the smaller run was held up (input, another job, first-epoch costs), or data now fits a cache",
                              f"repeat the run on {one}, three times", numbers)  # fmt: skip
            if gain < _FALLING and not (fit.outlier in (int(data.n[place - 1]), int(data.n[place]))):
                yield Finding("retrograde", f"{two} run slower than {one}: {gain:.2f} times the speed", rows, name,
                              "communication or a shared resource costs more than the ranks bring",
                              f"stay at {one}, or use a larger batch per rank", numbers)  # fmt: skip
    if fit.outlier is not None:
        yield Finding("outlier", f"{words.ranks(fit.outlier, device)} fit no law that the other sizes follow; left out of the fit", rows, name,
                      "a disturbed run", f"repeat {words.ranks(fit.outlier, device)}")  # fmt: skip
    if len(data.n) < 3 and fit.status != "refused":
        sizes = words.listing([f"{n:g}" for n in data.n])
        yield Finding("insufficient_data", f"{len(data.n)} size{'s' if len(data.n) > 1 else ''} ({sizes}): any law passes through", rows,
                      name, "three sizes are the fewest that can contradict a law",
                      f"measure {words.ranks(_missing(data.n), device)}", {"sizes": float(len(data.n))})  # fmt: skip
    yield from _boundary(fit, rows, name)


def _missing(n: np.ndarray[Any, Any]) -> int:
    """The one more size that tells most: half of the smallest, or twice the largest."""
    smallest = int(n[0])
    return smallest // 2 if smallest >= 2 else int(2 * n[-1])


def _boundary(fit: GroupFit, rows: tuple[int, ...], name: str) -> Iterator[Finding]:
    data = fit.data
    if not data.known_nodes and data.n[-1] > COMMON_NODE and data.key[GROUP.index("device")] != "cpu":
        yield Finding("node_boundary", f"sizes up to {data.n[-1]:g} without their number of nodes", rows, name,
                      "more than one node's GPUs, where the network sets in", "record n_nodes")  # fmt: skip
    several = np.flatnonzero(data.nodes > 1)
    if len(several) and several[0] > 0 and data.known_nodes:
        place = int(several[0])
        cost = np.exp(data.log_cost(data.values, data.n))
        step = float(cost[place] / cost[place - 1])
        if step > _BOUNDARY:
            yield Finding("node_boundary", f"from {data.n[place - 1]:g} ranks on one node to {data.n[place]:g} on {data.nodes[place]:g} each "
                          f"sample costs {step:.2f} times the rank-seconds", rows, name, "the network between nodes is slower than the links in one",
                          "fewer ranks per exchange (larger batch), compression, or a faster interface", {"step": step})  # fmt: skip


def _same_on_other_gpus(table: pd.DataFrame) -> Iterator[Finding]:
    others = ["workload", "per_gpu_batch", "precision", "lr_rule", "n_gpus", "metric"]
    speeds = table[table["metric"].isin(SPEEDS) & table["gpu_type"].notna()]
    for key, rows in speeds.groupby(others, dropna=False, sort=False):
        medians = rows.groupby("gpu_type")["value"].median()
        fields = dict(zip(others, key, strict=True))
        if fields["metric"] == "total_time" or len(medians) < 2:
            continue
        low, high = float(medians.min()), float(medians.max())
        if high / low - 1 <= _SAME:
            seen = " and ".join(f"{value:.4g} on {kind}" for kind, value in medians.items())
            yield Finding("input_bound", f"{int(fields['n_gpus'])} GPUs: {fields['metric']} {seen} ({high / low - 1:.1%} apart)",
                          tuple(rows.index), describe(fields), "both wait for the same thing, reading and augmenting the input on the CPU",
                          "train on data that is cached, or synthetic: what is left is the GPU's time", {"ratio": high / low})  # fmt: skip


def records(table: pd.DataFrame) -> Iterator[Finding]:
    """What the entries say about each other."""
    yield from _totals(table)
    yield from _mixtures(table)
    yield from _batches(table)
    yield from _lengths(table)
    yield from _horizons(table)


def _totals(table: pd.DataFrame) -> Iterator[Finding]:
    keys = ["source", *GROUP, "n_gpus", "replicate"]
    timed = table[table["metric"].isin(["epoch_time", "total_time"]) & table["epochs"].notna() & table["n_gpus"].notna()]
    for key, rows in timed.groupby(keys, dropna=False, sort=False):
        fields = dict(zip(keys, key, strict=True))
        each, total = (rows.loc[rows["metric"] == metric, "value"] for metric in ("epoch_time", "total_time"))
        if each.empty or total.empty:
            continue
        epochs = float(rows["epochs"].median())
        product, whole = epochs * float(each.median()), float(total.median())
        numbers = {"epochs": epochs, "epoch_time": float(each.median()), "total_time": whole}
        seen = f"{words.ranks(int(fields['n_gpus']), _text(fields['device']))}: {epochs:g} epochs of {each.median():g} s are {product:,.0f} s"
        if product > 1.02 * whole:
            yield Finding("inconsistent_total", f"{seen}, more than the whole run's {whole:,.0f} s", tuple(rows.index), describe(fields),
                          "the epoch time is of a slow epoch (the first), or of another run", "take the median epoch, and the total of the same run",
                          numbers)  # fmt: skip
        elif product < 0.6 * whole and epochs >= 5:
            yield Finding("inconsistent_total", f"{seen}, and the whole run took {whole:,.0f} s", tuple(rows.index), describe(fields),
                          "start, validation or checkpoints outside of the epochs, or epochs of one rank's share", "record the phases", numbers)  # fmt: skip


def _mixtures(table: pd.DataFrame) -> Iterator[Finding]:
    mixed = table[table["gpu_type"].fillna("").str.contains(r" \+ ", regex=True)]
    for kind, rows in mixed.groupby("gpu_type", sort=False):
        yield Finding("mixed_gpu_types", f"runs on {kind} at once", tuple(rows.index), str(kind),
                      "the slowest GPU sets the pace of every step", "ask for one type")  # fmt: skip


def _batches(table: pd.DataFrame) -> Iterator[Finding]:
    others = ["workload", "gpu_type", "device", "precision", "lr_rule"]
    speeds = table[table["metric"].isin(SPEEDS) & table["per_gpu_batch"].notna() & table["n_gpus"].notna()]
    for key, rows in speeds.groupby(others, dropna=False, sort=False):
        sizes = rows.groupby("per_gpu_batch")["n_gpus"].nunique()
        whole = (rows["per_gpu_batch"] * rows["n_gpus"]).nunique()
        if len(sizes) > 1 and sizes.max() == 1 and rows["n_gpus"].nunique() > 1 and whole > 1:
            batches = rows.groupby("n_gpus")["per_gpu_batch"].median()
            seen = words.listing([f"{int(n)} ranks: {int(batch)}" for n, batch in batches.items()])
            yield Finding("batch_changed", f"neither the batch per rank nor the global batch is the same ({seen})", tuple(rows.index),
                          describe(dict(zip(others, key, strict=True))), "the batch was fitted to memory or data",
                          "hold the batch per rank: otherwise its effect counts as scaling")  # fmt: skip


def _lengths(table: pd.DataFrame) -> Iterator[Finding]:
    whole = table[table["metric"].isin(["total_time", "val_acc"]) & table["epochs"].notna() & table["n_gpus"].notna()]
    for key, rows in whole.groupby(list(GROUP), dropna=False, sort=False):
        if rows["epochs"].nunique() > 1 and rows["n_gpus"].nunique() > 1:
            by = rows.groupby("n_gpus")["epochs"].median()
            seen = words.listing([f"{int(n)} ranks: {epochs:g}" for n, epochs in by.items()])
            yield Finding("epochs_differ", f"runs differ in their epochs ({seen})", tuple(rows.index),
                          describe(dict(zip(GROUP, key, strict=True))), "some stopped early or were given more",
                          "compare time per epoch and accuracy at the same epoch")  # fmt: skip


def _horizons(table: pd.DataFrame) -> Iterator[Finding]:
    counted = table[table["metric"].isin(METRICS_OF_EPOCHS) & table["epochs"].notna() & table["global_batch"].notna()]
    for group in fit_epochs(table).groups:
        own = counted[counted["workload"].isna() if group.workload is None else counted["workload"] == group.workload]
        if own.empty or len(group.batches) < 2:
            continue
        trained = float(own["epochs"].max())
        twice = 2 * float(group.batches.max())
        low, _, high = group.quantiles(twice)
        if high > trained:
            yield Finding("horizon", f"at a global batch of {twice:g}, stability is expected at epoch {low:.0f} to {high:.0f}, "
                          f"and the runs have {trained:g}", tuple(own.index), group.workload or "",
                          "larger batches need more epochs", f"train {int(np.ceil(1.2 * high))} epochs there: {trained:g} cannot confirm it",
                          {"low": low, "high": high, "epochs": trained})  # fmt: skip


def describe(fields: dict[str, Any]) -> str:
    """A group in words, as far as it is known."""
    known = {name: _text(value) for name, value in fields.items()}
    parts = [known.get("workload") or "workload not named"]
    if known.get("gpu_type") or known.get("device"):
        parts.append(f"on {words.where(known.get('device'), known.get('gpu_type'))}")
    if known.get("per_gpu_batch"):
        parts.append(f"batch {float(str(known['per_gpu_batch'])):g} per rank")
    return ", ".join(parts).replace(", on ", " on ")


def _text(value: Any) -> str | None:
    return None if value is None or pd.isna(value) else str(value)


def _rows(table: pd.DataFrame, fields: dict[str, Any], metric: str) -> tuple[int, ...]:
    chosen = table["metric"] == metric
    for name, value in fields.items():
        if name != "per_gpu_batch" or value is not None:
            chosen &= table[name].isna() if value is None else table[name] == value
    return tuple(table.index[chosen.fillna(False)])
