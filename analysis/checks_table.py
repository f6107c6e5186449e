"""Checks of what the entries of a table say about each other."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np
import pandas as pd

from analysis import words
from analysis.epochs import METRICS_OF_EPOCHS, Bounds, fit_epochs
from analysis.finding import Finding, describe, known
from analysis.measured import SPEEDS, fields_of, held_batches, on_fewest_nodes, series_key
from analysis.schema import GROUP

#: Epochs times their time may exceed the total by rounding only.
_ROUNDING = 1.02
#: Below this share of the total the epochs are not what took the time.
_SHARE = 0.6


def table_checks(
    table: pd.DataFrame, recorded: Set[str] = frozenset(), bounds: Bounds | None = None
) -> Iterator[Finding]:
    """Totals, GPU types, batches, epochs and horizons.

    `recorded` are the sources that are runs: their totals are sums of their own epochs and contradict nothing. `bounds` are as
    for `fit_epochs`.
    """
    if not table.attrs.get("all_from_runs"):
        yield from _totals(table[~table["source"].isin(list(recorded))])
    yield from _mixtures(table)
    yield from _types_apart(table)
    yield from _batches(table)
    yield from _lengths(table)
    yield from _horizons(table, bounds)


def _totals(table: pd.DataFrame) -> Iterator[Finding]:
    keys = ["source", *GROUP, "n_gpus", "replicate"]
    table = table[on_fewest_nodes(table)]
    timed = table[
        table["metric"].isin(["epoch_time", "total_time"]) & table["epochs"].notna() & table["n_gpus"].notna()
    ]
    for key, rows in timed.groupby(keys, dropna=False, sort=False):
        fields: dict[str, Any] = dict(zip(keys, key, strict=True))
        each, total = (rows.loc[rows["metric"] == metric, "value"] for metric in ("epoch_time", "total_time"))
        if each.empty or total.empty:
            continue
        epochs, one, whole = float(rows["epochs"].median()), float(each.median()), float(total.median())
        product = epochs * one
        who = words.ranks(int(fields["n_gpus"]), known(fields["device"]))
        seen = f"{who}: {epochs:g} epochs of {one:g} s are {product:,.0f} s"
        numbers = {"epochs": epochs, "epoch_time": one, "product": product, "total_time": whole}
        labels = _labels(rows)
        if product > _ROUNDING * whole:
            yield Finding(
                "inconsistent_total",
                f"{seen}, more than the whole run's {whole:,.0f} s",
                labels,
                describe(fields),
                likely="the epoch time is that of a slow epoch (the first one), or of another run",
                next="take the median epoch and the total from one run",
                numbers=numbers,
            )
        elif product < _SHARE * whole and epochs >= 5:
            yield Finding(
                "inconsistent_total",
                f"{seen}, only {product / whole:.0%} of the whole run's {whole:,.0f} s",
                labels,
                describe(fields),
                likely="start, validation or checkpoints outside of the epochs, or a slow first epoch, take the rest",
                next="record the phases of an epoch, and the start apart",
                numbers=numbers,
            )


def _mixtures(table: pd.DataFrame) -> Iterator[Finding]:
    mixed = table[table["gpu_type"].fillna("").str.contains(r" \+ ", regex=True)]
    for kind, rows in mixed.groupby("gpu_type", sort=False):
        yield Finding(
            "mixed_gpu_types",
            f"runs used {kind} at once",
            _labels(rows),
            str(kind),
            likely="the slowest GPU sets the pace of every step",
            next="ask for one type, and measure each by itself",
            numbers={"types": float(str(kind).count(" + ") + 1)},
        )


def _types_apart(table: pd.DataFrame) -> Iterator[Finding]:
    """Sizes that only exist on different GPU types: laid on one line they would measure the type too."""
    others = ["workload", "per_gpu_batch", "precision", "lr_rule"]
    speeds = table[table["metric"].isin(SPEEDS) & table["gpu_type"].notna() & table["n_gpus"].notna()]
    for key, rows in speeds.groupby(others, dropna=False, sort=False):
        sizes = {str(kind): set(own["n_gpus"].astype(int)) for kind, own in rows.groupby("gpu_type", sort=False)}
        union = set().union(*sizes.values())
        if len(sizes) < 2 or any(own == union for own in sizes.values()):
            continue
        seen = "; ".join(f"{kind}: {', '.join(map(str, sorted(own)))}" for kind, own in list(sizes.items())[:6])
        yield Finding(
            "mixed_gpu_types",
            f"no GPU type has all sizes ({seen}), so each is fitted by itself",
            _labels(rows),
            describe(dict(zip(others, key, strict=True))),
            likely="the series changes GPU type on the way: what differs between types would count as scaling",
            next="measure one type at every size",
            numbers={"types": float(len(sizes)), "sizes": float(len(union))},
        )


def _batches(table: pd.DataFrame) -> Iterator[Finding]:
    others = ["workload", "gpu_type", "device", "precision", "lr_rule"]
    speeds = table[table["metric"].isin(SPEEDS) & table["per_gpu_batch"].notna() & table["n_gpus"].notna()]
    for key, rows in speeds.groupby(others, dropna=False, sort=False):
        sizes = rows["n_gpus"].nunique()
        each = rows.groupby("per_gpu_batch")["n_gpus"].nunique()
        whole = rows.assign(whole=rows["per_gpu_batch"] * rows["n_gpus"]).groupby("whole")["n_gpus"].nunique()
        # One batch that all sizes have can be compared over them, whatever else was measured.
        if sizes < 2 or each.max() == sizes or whole.max() == sizes:
            continue
        by_size = rows.groupby("n_gpus")["per_gpu_batch"].unique()
        seen = words.listing([f"{n} ranks: {_several(batches)}" for n, batches in by_size.items()])
        yield Finding(
            "batch_changed",
            f"neither the batch per rank nor the global batch is the same at all sizes ({seen})",
            _labels(rows),
            describe(dict(zip(others, key, strict=True))),
            likely="the batch was fitted to memory, or to the data",
            next="hold the batch per rank: otherwise its own effect on speed counts as scaling",
            numbers={"sizes": float(sizes), "batches": float(len(each))},
        )


def _several(batches: Any) -> str:
    return " and ".join(str(int(batch)) for batch in sorted(batches))


def _lengths(table: pd.DataFrame) -> Iterator[Finding]:
    whole = table[table["metric"].isin(["total_time", "val_acc"]) & table["epochs"].notna() & table["n_gpus"].notna()]
    held = held_batches(table)
    keys = [
        series_key(
            tuple(None if pd.isna(value) else value for value in key), None if pd.isna(batch) else int(batch), held
        )
        for *key, batch in whole[[*GROUP, "global_batch"]].itertuples(index=False)
    ]
    for place in dict.fromkeys(keys):
        rows, key = whole[[own == place for own in keys]], place
        by = rows.groupby("n_gpus")["epochs"].median()
        if len(by) < 2 or by.nunique() < 2:
            continue
        seen = words.listing([f"{n} ranks: {epochs:g}" for n, epochs in by.items()])
        yield Finding(
            "epochs_differ",
            f"sizes were trained for different numbers of epochs ({seen})",
            _labels(rows),
            describe({**fields_of(key), "global_batch": key[-1]}),
            likely="some stopped early, or were given more",
            next="compare the time of an epoch, and accuracies after the same epoch",
            numbers={"fewest": float(by.min()), "most": float(by.max())},
        )


def _horizons(table: pd.DataFrame, bounds: Bounds | None) -> Iterator[Finding]:
    """The next doubling of the batch would not be seen to settle in as many epochs as were trained."""
    counted = table[table["metric"].isin(METRICS_OF_EPOCHS) & table["epochs"].notna() & table["global_batch"].notna()]
    for group in fit_epochs(table, bounds).groups:
        own = counted[_is(counted["workload"], group.workload) & _is(counted["lr_rule"], group.lr_rule)]
        if own.empty or len(group.batches) < 2:
            continue
        trained, twice = float(own["epochs"].max()), 2 * float(group.batches.max())
        low, middle, high = group.interval(twice)
        # Where a batch up to there has not settled, that is said of its runs.
        if high <= trained or not group.expects(twice):
            continue
        yield Finding(
            "horizon",
            f"at a global batch of {twice:,.0f}, {words.counted_to(group.metric)} is expected at epoch {low:.0f} to {high:.0f} "
            f"(best guess {middle:.0f}), and the runs have {trained:g} epochs",
            _labels(own),
            ", ".join(
                [*filter(None, [group.workload]), *([f"learning-rate rule {group.lr_rule}"] if group.lr_rule else [])]
            ),
            likely="a larger batch needs more epochs",
            next=f"train {int(np.ceil(1.2 * high))} epochs there: {trained:g} cannot confirm it",
            numbers={"low": low, "value": middle, "high": high, "epochs": trained},
        )


def _is(column: pd.Series[Any], value: str | None) -> pd.Series[bool]:
    return column.isna() if value is None else column.eq(value).fillna(False).astype(bool)


def _labels(rows: pd.DataFrame) -> tuple[int, ...]:
    return tuple(int(label) for label in rows.index)
