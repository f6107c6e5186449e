"""How speed grows with the number of ranks: pure functions from the tidy table to numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import words
from analysis.complete import completed
from analysis.measured import fields_of, held_batches, on_fewest_nodes, series_key, to_one_length
from analysis.schema import GROUP

#: What speedup is computed from: the first of these that all rank counts of a group have.
_BASES = ("throughput", "epoch_time", "total_time")


@dataclass(frozen=True)
class Spread:
    """Replicates of one number: `low` and `high` are the least and the greatest of `count` values."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Point:
    """One rank count of a group. Times in s, throughput in samples/s, efficiency and val_acc as fractions of one.

    `other_nodes`: on how many nodes these ranks were measured besides; only the fewest count.
    """

    n_gpus: int
    n_nodes: tuple[int, ...]
    replicates: int
    epochs: tuple[int, ...]
    includes_first_epoch: bool
    epoch_time: Spread | None
    throughput: Spread | None
    total_time: Spread | None
    val_acc: Spread | None
    speedup: Spread | None
    efficiency: Spread | None
    other_nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """What speedup and efficiency are relative to: `value` of `metric` at `n_gpus` ranks.

    `absolute` is False where that is more than one rank: losses up to there are then invisible. `one_length` is True where total
    times of runs of different numbers of epochs were made those of the median length first, `value` too.
    """

    n_gpus: int
    metric: str
    value: float
    absolute: bool
    text: str
    one_length: bool = False


@dataclass(frozen=True)
class Group:
    """Measurements that differ in the number of ranks only.

    `global_batch` is what is held in a series of strong scaling, whose sizes differ in their batch per rank; else None.
    """

    workload: str | None
    gpu_type: str | None
    device: str | None
    per_gpu_batch: int | None
    lr_rule: str | None
    precision: str | None
    sources: tuple[str, ...]
    points: tuple[Point, ...]
    baseline: Baseline | None
    global_batch: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `analysis.schema.GROUP`, in that order, and the global batch that is held, or None."""
        return (*(getattr(self, name) for name in GROUP), self.global_batch)


def scaling(table: pd.DataFrame) -> list[Group]:
    """The scaling table of each group of `analysis.read`'s table.

    Replicates are summed up by median, least and greatest. With T(n) the median time and X(n) the median throughput
    at n ranks, and b the smallest rank count of the group:

        speedup(n)    = X(n) / X(b), or T(b) / T(n) where throughput was not measured
        efficiency(n) = speedup(n) * b / n

    the strong-scaling definitions (for instance Grama et al., Introduction to Parallel Computing, section 5.2). Total times of
    runs of different lengths are compared by the epoch.
    Their `low` and `high` are those of the replicates at n against the median at b. Ranks that were timed on several numbers
    of nodes count on the fewest.

    Returns:
        Groups in the order of their keys, each with its points by number of ranks.
    """
    records: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    table = completed(table)
    held, counts = held_batches(table), on_fewest_nodes(table)
    others: dict[tuple[Any, ...], dict[int, set[int]]] = {}
    for raw, counted in zip(table.to_dict("records"), counts, strict=True):
        record = {str(name): None if pd.isna(value) else value for name, value in raw.items()}
        # A log that does not say on how many ranks it was made has a curve, and no place in a scaling table.
        if record["n_gpus"] is None:
            continue
        key = series_key(tuple(record[name] for name in GROUP), record["global_batch"], held)
        if counted:
            records.setdefault(key, []).append(record)
        else:
            others.setdefault(key, {}).setdefault(int(record["n_gpus"]), set()).add(int(record["n_nodes"] or 0))
    # None sorts before every word: as "", with a flag, so that it never meets a string.
    keys = sorted(records, key=lambda key: [(value is not None, str(value or "").zfill(8)) for value in key])
    return [_group(key, records[key], others.get(key, {})) for key in keys]


def _group(key: tuple[Any, ...], records: Sequence[Mapping[str, Any]], others: Mapping[int, set[int]]) -> Group:
    fields = fields_of(key)
    by_ranks: dict[int, dict[str, list[Mapping[str, Any]]]] = {}
    for record in records:
        by_ranks.setdefault(int(record["n_gpus"]), {}).setdefault(str(record["metric"]), []).append(record)
    totals = [record for record in records if record["metric"] == "total_time"]
    factors = to_one_length(np.array([record["epochs"] or np.nan for record in totals], dtype=float))
    compared = {id(record): float(factor) for record, factor in zip(totals, factors, strict=True)}
    baseline = _baseline(by_ranks, fields["device"], compared)
    return Group(
        **fields,
        sources=tuple(dict.fromkeys(str(record["source"]) for record in records)),
        points=tuple(
            _point(ranks, by_ranks[ranks], baseline, compared, others.get(ranks, set())) for ranks in sorted(by_ranks)
        ),
        baseline=baseline,
        global_batch=key[-1],
    )


def _baseline(
    by_ranks: Mapping[int, Mapping[str, Any]], device: str | None, compared: Mapping[int, float]
) -> Baseline | None:
    def having(metric: str) -> list[int]:
        return sorted(ranks for ranks, metrics in by_ranks.items() if metric in metrics)

    # max() keeps the first of equals, so throughput wins unless another covers more rank counts.
    metric = max(_BASES, key=lambda name: len(having(name)))
    if not having(metric):
        return None
    ranks = having(metric)[0]
    absolute = ranks == 1
    text = f"against {words.ranks(ranks, device)}" + ("" if absolute else "; relative, not absolute")
    value = _spread(_values(by_ranks[ranks][metric], compared)).median
    lengths = {
        factor for records in by_ranks.values() for own in records.get(metric, ()) if (factor := compared.get(id(own)))
    }
    return Baseline(ranks, metric, value, absolute, text, len(lengths) > 1)


def _point(
    ranks: int,
    metrics: Mapping[str, Sequence[Mapping[str, Any]]],
    baseline: Baseline | None,
    compared: Mapping[int, float],
    others: set[int],
) -> Point:
    spreads = {name: _spread(_values(records)) for name, records in metrics.items()}
    timed = [record for name in ("throughput", "epoch_time") for record in metrics.get(name, ())]
    every = [record for records in metrics.values() for record in records]
    speedup = None
    if baseline is not None and baseline.metric in metrics:
        values = _values(metrics[baseline.metric], compared)
        rising = baseline.metric == "throughput"
        speedup = _spread([value / baseline.value if rising else baseline.value / value for value in values])
    return Point(
        n_gpus=ranks,
        n_nodes=_different(every, "n_nodes"),
        replicates=max(spread.count for spread in spreads.values()),
        epochs=_different(every, "epochs"),
        includes_first_epoch=any(record["epochs"] == 1 for record in timed),
        epoch_time=spreads.get("epoch_time"),
        throughput=spreads.get("throughput"),
        total_time=spreads.get("total_time"),
        val_acc=spreads.get("val_acc"),
        speedup=speedup,
        efficiency=None if speedup is None or baseline is None else _scaled(speedup, baseline.n_gpus / ranks),
        other_nodes=tuple(sorted(others)),
    )


def _values(records: Iterable[Mapping[str, Any]], compared: Mapping[int, float] | None = None) -> list[float]:
    """Values of records, times the factor that `compared` has for their identity."""
    return [float(record["value"]) * (compared or {}).get(id(record), 1.0) for record in records]


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.low * factor, spread.high * factor, spread.count)


def _different(records: Iterable[Mapping[str, Any]], name: str) -> tuple[int, ...]:
    return tuple(sorted({int(record[name]) for record in records if record[name] is not None}))
