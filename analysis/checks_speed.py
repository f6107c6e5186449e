"""Checks of each group's speeds: findings with the numbers that triggered them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis import words
from analysis.finding import Finding, describe
from analysis.fitting import GroupFit, fit_scaling
from analysis.measured import COMMON_NODE, SPEEDS, on_fewest_nodes
from analysis.schema import GROUP

#: Speed per rank may exceed that of fewer ranks by this much before it is more than noise.
SUPERLINEAR = 1.05
#: More ranks that bring less than this times the speed of fewer are slower, not level.
_FALLING = 0.98
#: A speed that stays within this factor while the ranks at least double does not depend on them.
_FLAT = 1.1
#: Two GPU types as near as this take the same time: none of them is the bottleneck.
_SAME = 0.05
#: Rank-seconds per sample that grow by more than this at the first step to several nodes.
_BOUNDARY = 1.10
#: A replicate this far from the median of the others, while they agree within `_SAME`, was disturbed.
_DISTURBED = 0.20


def speed_checks(table: pd.DataFrame, from_runs: Collection[object] = ()) -> Iterator[Finding]:
    """What the speeds of each group say, and those of the same work on other GPUs.

    Args:
        from_runs: values of `source` that this suite recorded: what they count is known.
    """
    for fit in fit_scaling(table).groups:
        recorded = "source" in table and bool(table.loc[list(fit.data.rows), "source"].isin(list(from_runs)).all())
        yield from _of_group(fit, recorded)
    yield from _same_on_other_gpus(table)
    yield from _disturbed_replicates(table)


def _of_group(fit: GroupFit, recorded: bool) -> Iterator[Finding]:
    data = fit.data
    fields = data.fields
    about = describe({**fields, "global_batch": data.global_batch})
    rows = data.rows
    if fit.status == "refused" and data.metric == "steps_per_s" and data.held == "unknown":
        yield Finding(
            "insufficient_data",
            f"{fit.reason}; nothing is predicted from this group",
            rows,
            about,
            likely="the batch was divided over the ranks",
            next="give the batch, in a column per_gpu_batch or global_batch",
        )
        return
    if fit.status == "refused":
        yield Finding(
            "implausible",
            f"{fit.reason}; nothing is predicted from this group",
            rows,
            about,
            likely="mixed units, a value of one rank at one size, or another workload",
            next="measure the larger size again, and write its unit down",
        )
        return
    flat = _flat(fit, rows, about, recorded)
    if flat is not None:
        yield flat
    else:
        yield from _steps(fit, rows, about)
    if fit.outlier is not None:
        size = words.ranks(fit.outlier, fields["device"])
        yield Finding(
            "outlier",
            f"{size} fit no law that the other {len(data.n) - 1} sizes follow: left out of the fit",
            rows,
            about,
            likely="a disturbed run",
            next=f"repeat {size}",
            numbers={"n_gpus": float(fit.outlier)},
        )
    if len(data.n) < 3:
        sizes = words.listing([f"{n:g}" for n in data.n])
        count = "one size" if len(data.n) == 1 else "two sizes"
        law = "nothing can be fitted" if len(data.n) == 1 else "every law of two parameters passes through both"
        yield Finding(
            "insufficient_data",
            f"{count} ({sizes}): {law}",
            rows,
            about,
            likely="three sizes are the fewest that can contradict a law",
            next=f"measure {words.ranks(missing_size(data.n), fields['device'])}",
            numbers={"sizes": float(len(data.n))},
        )
    yield from _boundary(fit, rows, about)


def _flat(fit: GroupFit, rows: tuple[int, ...], about: str, recorded: bool) -> Finding | None:
    """A throughput, or an epoch time, that does not change with the ranks."""
    data, device = fit.data, fit.fields["device"]
    if len(data.n) < 2 or data.n[-1] < 2 * data.n[0] or data.values.max() >= _FLAT * data.values.min():
        return None
    low, high = float(data.values.min()), float(data.values.max())
    seen = f"{data.metric} stays at {low:.4g} to {high:.4g} {data.unit} from {data.n[0]:g} to {data.n[-1]:g} ranks"
    numbers = {"low": low, "high": high}
    if recorded and (data.metric == "throughput" or data.is_time):
        return Finding(
            "retrograde",
            f"{seen}: more ranks bring nothing",
            rows,
            about,
            likely="the ranks share the same cores"
            if device == "cpu"
            else "sending gradients takes what computing gains",
            next=f"take {words.ranks(int(data.n[0]), device)}, or a larger batch per rank",
            numbers=numbers,
        )
    if data.metric == "throughput":
        return Finding(
            "per_worker_suspected",
            seen,
            rows,
            about,
            likely="the values are of one rank, not of all",
            next=f"write the unit: samples/s/{'rank' if device == 'cpu' else 'GPU'} is multiplied by the ranks",
            numbers=numbers,
        )
    if data.is_time:
        return Finding(
            "weak_scaling",
            seen,
            rows,
            about,
            likely="every rank trains on all data (no shards), so more ranks do more work in an epoch",
            next="compare samples/s of the whole world, and check that the data are sharded",
            numbers=numbers,
        )
    return None


def _steps(fit: GroupFit, rows: tuple[int, ...], about: str) -> Iterator[Finding]:
    """Each size against the one below it."""
    data = fit.data
    device = fit.fields["device"]
    per_rank = np.exp(-data.log_cost(data.values, data.n))
    for (n, before), (m, after) in pairwise(zip(data.n, per_rank, strict=True)):
        if fit.outlier in (int(n), int(m)):
            continue
        fewer, more = words.ranks(int(n), device), words.ranks(int(m), device)
        efficiency, gain = float(after / before), float(after / before * m / n)
        numbers = {"from": float(n), "to": float(m), "speedup": gain, "efficiency": efficiency}
        if efficiency > SUPERLINEAR:
            yield Finding(
                "superlinear",
                f"{more} run {gain:.2f} times as fast as {fewer}: {efficiency:.0%} efficiency",
                rows,
                about,
                likely="the smaller run was held up (input, another job, first-epoch costs), or the data now fit a cache",
                next=f"repeat {fewer} three times",
                numbers=numbers,
            )
        elif gain < _FALLING:
            yield Finding(
                "retrograde",
                f"{more} run slower than {fewer}: {gain:.2f} times the speed",
                rows,
                about,
                likely="exchanging gradients, or something shared, costs more than the ranks bring",
                next=f"stay at {fewer}, or measure {more} with a larger batch per rank",
                numbers=numbers,
            )


def missing_size(n: np.ndarray[Any, Any]) -> int:
    """The one more size that tells most: half of the smallest, or twice the largest."""
    smallest = int(n[0])
    return smallest // 2 if smallest >= 2 else int(2 * n[-1])


def _boundary(fit: GroupFit, rows: tuple[int, ...], about: str) -> Iterator[Finding]:
    data = fit.data
    if not data.known_nodes and data.n[-1] > COMMON_NODE and fit.fields["device"] != "cpu":
        yield Finding(
            "node_boundary",
            f"sizes up to {data.n[-1]:g} do not say on how many nodes they ran",
            rows,
            about,
            likely="more ranks than one node has GPUs, so the network between nodes is in some sizes and not in others",
            next="record n_nodes",
            numbers={"n_gpus": float(data.n[-1])},
        )
    several = np.flatnonzero(data.nodes > 1)
    if len(several) and several[0] > 0 and data.known_nodes:
        at = int(several[0])
        cost = np.exp(data.log_cost(data.values, data.n))
        step = float(cost[at] / cost[at - 1])
        if step > _BOUNDARY:
            one, more = f"{data.n[at - 1]:g} ranks on one node", f"{data.n[at]:g} on {data.nodes[at]:g}"
            yield Finding(
                "node_boundary",
                f"from {one} to {more} each sample costs {step:.2f} times the rank-seconds",
                rows,
                about,
                likely="the network between nodes is slower than the links inside one",
                next="measure with fewer exchanges (a larger batch per rank), compression, or another interface",
                numbers={"step": step},
            )


def _same_on_other_gpus(table: pd.DataFrame) -> Iterator[Finding]:
    others = ["workload", "per_gpu_batch", "precision", "lr_rule", "n_gpus", "metric"]
    table = table[on_fewest_nodes(table)]
    # Of a mixture the slowest type sets the pace: it is as fast as that one.
    pure = table["gpu_type"].notna() & ~table["gpu_type"].fillna("").str.contains(" + ", regex=False)
    speeds = table[table["metric"].isin(SPEEDS) & (table["metric"] != "total_time") & pure]
    for key, rows in speeds.groupby(others, dropna=False, sort=False):
        medians = rows.groupby("gpu_type")["value"].median().sort_values()
        if len(medians) < 2:
            continue
        fields: dict[str, Any] = dict(zip(others, key, strict=True))
        # All types must agree: of many types some pair always does, by chance.
        low, high = float(medians.iloc[0]), float(medians.iloc[-1])
        if high / low - 1 <= _SAME:
            seen = " and ".join(f"{value:.4g} on {kind}" for kind, value in medians.items())
            yield Finding(
                "input_bound",
                f"{fields['n_gpus']} GPUs: {fields['metric']} {seen}, {high / low - 1:.1%} apart",
                tuple(int(label) for label in rows.index),
                describe(fields),
                likely="all wait for the same thing, most often reading and augmenting the input on the CPU",
                next="train on cached or synthetic data: what is left is the GPU's own time",
                numbers={"n_gpus": float(fields["n_gpus"]), "ratio": high / low},
            )


def _disturbed_replicates(table: pd.DataFrame) -> Iterator[Finding]:
    keys = [*GROUP, "n_gpus", "n_nodes", "global_batch", "metric"]
    # A longer run is no disturbed one.
    table = table.assign(length=table["epochs"].where(table["metric"] == "total_time"))
    keys.append("length")
    speeds = table[table["metric"].isin(SPEEDS) & (table["value"] > 0)]
    for key, rows in speeds.groupby(keys, dropna=False, sort=False):
        if len(rows) < 3:
            continue
        logs = np.log(rows["value"].to_numpy(dtype=float))
        worst = int(np.abs(logs - np.median(logs)).argmax())
        others = np.delete(logs, worst)
        off = float(logs[worst] - np.median(others))
        if abs(off) > _DISTURBED and float(np.ptp(others)) < _SAME:
            fields = dict(zip(keys, key, strict=True))
            value, usual = float(np.exp(logs[worst])), float(np.exp(np.median(others)))
            yield Finding(
                "outlier",
                f"{fields['n_gpus']} ranks: one {fields['metric']} is {value:.4g}, the other {len(others)} are near {usual:.4g}",
                (int(rows.index[worst]),),
                describe(fields),
                likely="a disturbed run",
                next="repeat it; the median that is fitted does not follow it",
                numbers={"value": value, "others": usual},
            )
