"""The sizes of each comparable group, as arrays: what a scaling fit starts from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.finding import known
from analysis.schema import GROUP, METRICS

Floats = NDArray[np.float64]

#: What a fit may be made of, best first: throughput does not hold validation, total time holds everything.
SPEEDS = ("throughput", "steps_per_s", "epoch_time", "total_time")
#: The global batches that are held, by the values of `analysis.schema.GROUP` without a batch per rank.
Held = Mapping[tuple[Any, ...], Collection[int]]
#: Nodes of this many GPUs are the commonest; below it a size without a recorded node count is taken to be one node.
COMMON_NODE = 8


@dataclass(frozen=True)
class Measured:
    """One group and one metric: medians over replicates by number of ranks, ascending.

    Attributes:
        key: the values of `analysis.schema.GROUP`, and the global batch where that is what is held, else None.
        held: what stays the same over sizes: "batch per rank" (weak scaling of a step), "global batch" (strong), "unknown".
        n, nodes, values, replicates: shape (sizes,); `values` in the metric's unit.
        rows: index labels of the rows of the table behind all this.
        known_nodes: whether every size says how many nodes it ran on.
        gpus_per_node: as runs tell that are in no table; None where they do not.
        spread: standard deviation of log values over replicates, pooled; None without replicates.
    """

    key: tuple[Any, ...]
    metric: str
    held: str
    global_batch: int | None
    n: Floats
    nodes: Floats
    values: Floats
    replicates: Floats
    rows: tuple[int, ...]
    known_nodes: bool
    spread: float | None
    gpus_per_node: int | None = None

    def holds(self, fields: Mapping[str, Any], global_batch: int | None) -> bool:
        """Whether a configuration is of this group: in one of strong scaling each size has a batch per rank of its own."""
        held = {} if self.global_batch is None else {self.key[:-1]: (self.global_batch,)}
        return series_key(tuple(fields[name] for name in GROUP), global_batch, held) == self.key

    @property
    def fields(self) -> dict[str, Any]:
        """The values of `analysis.schema.GROUP` by name."""
        return fields_of(self.key)

    @property
    def unit(self) -> str:
        """Unit of `values`."""
        return METRICS[self.metric].unit

    @property
    def is_time(self) -> bool:
        """Whether less of `values` is faster."""
        return METRICS[self.metric].is_time

    @property
    def unknown_steps(self) -> bool:
        """Whether nobody knows how many samples a step is: steps/s without a batch."""
        return self.metric == "steps_per_s" and self.held == "unknown"

    def log_cost(self, values: Floats, n: Floats) -> Floats:
        """log of the rank-seconds for a fixed amount of work, up to a constant."""
        if self.metric == "throughput":
            return np.asarray(np.log(n / values))
        if self.metric == "steps_per_s":
            return np.asarray(-np.log(values) if self.held != "global batch" else np.log(n / values))
        return np.asarray(np.log(n * values))

    def value(self, log_cost: Floats, n: Floats) -> Floats:
        """The inverse of `log_cost`."""
        if self.metric == "throughput":
            return np.asarray(n * np.exp(-log_cost))
        if self.metric == "steps_per_s":
            return np.asarray(np.exp(-log_cost) * (n if self.held == "global batch" else 1.0))
        return np.asarray(np.exp(log_cost) / n)

    def nodes_of(self, n: Floats, gpus_per_node: int | None = None) -> Floats:
        """How many nodes `n` ranks need: by what is given, what was measured, or what is common."""
        if gpus_per_node is None:
            several = self.nodes > 1
            if several.any():
                gpus_per_node = int(np.ceil((self.n / self.nodes)[several].max()))
            elif self.key[GROUP.index("device")] == "cpu" or not self.known_nodes:
                # Unrecorded nodes cannot be told apart: one law is laid through all sizes, and the report says so.
                return np.ones_like(n)
            else:
                gpus_per_node = max(self.gpus_per_node or COMMON_NODE, int(self.n.max()))
        return np.asarray(np.ceil(n / gpus_per_node))


def fields_of(key: tuple[Any, ...]) -> dict[str, Any]:
    """The values of `analysis.schema.GROUP` by name, of a group's key."""
    return dict(zip(GROUP, key[: len(GROUP)], strict=True))


def held_batches(table: pd.DataFrame) -> Held:
    """The global batches of the groups of strong scaling."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for data in measured(table):
        if data.global_batch is not None:
            found.setdefault(data.key[:-1], []).append(data.global_batch)
    return found


def series_key(values: tuple[Any, ...], global_batch: int | None, held: Held) -> tuple[Any, ...]:
    """The key of the group that a measurement with such values of `analysis.schema.GROUP` is counted to.

    Without the batch per rank where its global batch is one of `held_batches`. A global batch that is not known is that which is
    held, where only one is.
    """
    place = GROUP.index("per_gpu_batch")
    whole = (*values[:place], None, *values[place + 1 :])
    batches = held.get(whole, ())
    if global_batch is None and len(batches) == 1:
        return (*whole, *batches)
    return (*whole, global_batch) if global_batch in batches else (*values, None)


def on_fewest_nodes(table: pd.DataFrame) -> pd.Series[bool]:
    """Which rows count where the same ranks were timed on several numbers of nodes: the fewest, and what does not say.

    More nodes are another machine, not a replicate. Of shape (rows,), with the index of `table`.
    """
    keys = [*GROUP, "n_gpus"]
    timed = table["n_nodes"].where(table["metric"].isin(SPEEDS)).astype("Float64")
    fewest = timed.groupby([table[name] for name in keys], dropna=False).transform("min")
    return (table["n_nodes"].isna() | fewest.isna() | (table["n_nodes"] <= fewest)).fillna(True).astype(bool)


def measured(table: pd.DataFrame) -> list[Measured]:
    """Every group that has a speed, in the order of the table.

    A group is one workload, GPU type, device, precision, learning-rate rule and batch: never pooled over these. Where
    no batch per rank has as many sizes as a global batch has, the sizes of each global batch are a group, one of strong scaling.
    Ranks that were measured on several numbers of nodes count on the fewest.
    """
    speeds = table[
        table["metric"].isin(SPEEDS) & np.isfinite(table["value"]) & (table["value"] > 0) & table["n_gpus"].notna()
    ]
    speeds = speeds[on_fewest_nodes(speeds)]
    per_node = table.attrs.get("gpus_per_node", {})
    found = []
    for key, held, rows in _groups(speeds):
        sizes = {metric: own["n_gpus"].nunique() for metric, own in rows.groupby("metric", sort=False)}
        if sizes:
            metric = max((name for name in SPEEDS if name in sizes), key=lambda name: sizes[name])
            own = _measured(key, metric, held, rows[rows["metric"] == metric])
            found.append(replace(own, gpus_per_node=per_node.get(own.fields["gpu_type"])))
    return found


def _groups(speeds: pd.DataFrame) -> Iterator[tuple[tuple[Any, ...], str, pd.DataFrame]]:
    batch = GROUP.index("per_gpu_batch")
    others = [name for name in GROUP if name != "per_gpu_batch"]
    for raw, every in speeds.groupby(others, dropna=False, sort=False):
        values: list[Any] = [known(value) for value in raw]
        values.insert(batch, None)
        series, rows = _strong(every)
        for held, own in series:
            yield (*values, held), "global batch", own
        for value, own in rows.groupby("per_gpu_batch", dropna=False, sort=False):
            text = known(value)
            values[batch] = None if text is None else int(float(text))
            yield (*values, None), "unknown" if text is None else "batch per rank", own


def _strong(rows: pd.DataFrame) -> tuple[list[tuple[int, pd.DataFrame]], pd.DataFrame]:
    """The series of strong scaling among what differs in ranks and batch only, by global batch, and what is in none of them.

    There are none where some batch per rank has as many sizes: sizes and batches in all combinations hold that one.
    """
    per_rank = rows.groupby("per_gpu_batch")["n_gpus"].nunique()
    whole = rows.groupby("global_batch", sort=False)["n_gpus"].nunique()
    if whole.empty or whole.max() < 2 or whole.max() <= per_rank.max():
        return [], rows
    batches = [int(batch) for batch, sizes in whole.items() if sizes > 1]  # type: ignore[call-overload]
    of_batch = rows["global_batch"].fillna(batches[0]) if len(batches) == 1 else rows["global_batch"]
    series = [(batch, rows[(of_batch == batch).fillna(False).astype(bool)]) for batch in batches]
    return series, rows[~of_batch.isin(batches).fillna(False).astype(bool)]


def to_one_length(epochs: Floats) -> Floats:
    """What total times of runs of so many epochs are multiplied by before they are compared: to those of the median length.

    Ones where all are of one length, or where one is not known. The finding `epochs_differ` says so.
    """
    if not len(epochs) or not np.isfinite(epochs).all():
        return np.ones_like(epochs)
    return np.asarray(np.median(epochs) / epochs)


def _measured(key: tuple[Any, ...], metric: str, held: str, rows: pd.DataFrame) -> Measured:
    n = rows["n_gpus"].to_numpy(dtype=float)
    nodes = rows["n_nodes"].to_numpy(dtype=float, na_value=np.nan)
    values = rows["value"].to_numpy(dtype=float)
    if metric == "total_time":
        values = values * to_one_length(rows["epochs"].to_numpy(dtype=float, na_value=np.nan))
    sizes = np.unique(n)
    kept = [n == size for size in sizes]
    within = [np.log(values[rows_of]) for rows_of in kept]
    freedom = sum(len(logs) - 1 for logs in within)
    squares = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in within)
    own_nodes = np.array(
        [np.nanmin(nodes[rows_of]) if np.isfinite(nodes[rows_of]).any() else np.nan for rows_of in kept]
    )
    whole = rows["global_batch"].dropna().unique()
    return Measured(
        key=key,
        metric=metric,
        held=held,
        global_batch=int(whole[0]) if held == "global batch" else None,
        n=sizes,
        nodes=np.where(np.isfinite(own_nodes), own_nodes, 1.0),
        values=np.array([np.exp(np.median(logs)) for logs in within]),
        replicates=np.array([float(len(logs)) for logs in within]),
        rows=tuple(int(label) for label in rows.index),
        known_nodes=bool(np.isfinite(own_nodes).all()),
        spread=None if freedom == 0 else float(np.sqrt(squares / freedom)),
    )
