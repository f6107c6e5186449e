"""How long each configuration takes to a common accuracy, and what that costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.endings import (
    SHORTEST_CURVE,
    curve_of,
    first_epochs,
    key_of_run,
    only_diverged,
    recorded_in,
    without_answer,
)
from analysis.epochs import METRICS_OF_EPOCHS, NOISE
from analysis.finding import known
from analysis.jobtime import JobTime, deviation_of_mean, job_times
from analysis.posterior import PRIOR
from analysis.runs import Run, counted
from analysis.schema import GROUP
from analysis.settled import CONFIGURATION, settled
from analysis.smoothing import smooth
from analysis.stability import ends_in_nothing
from analysis.way import COUNTED, Way, Z, differing, once, priced_as
from hvdtrain.errors import UserError

#: A curve is at its level from this much below it on: one point of accuracy, the tolerance of stability.
SETTLED = 0.01


def common_target(table: pd.DataFrame, runs: Sequence[Run] = ()) -> float | None:
    """The accuracy that every configuration gets to that gets to any. None without accuracies above 0.

    Where all have curves: the lowest of the levels they end on (median of the last smoothed epochs over replicates), less
    `SETTLED`, so that it is reached on entering the band around that level and not at its last flicker. Else the lowest
    final accuracy. Accuracies of 0, levels within `SETTLED` of it and runs that ended in NaN set no target: they would make
    one that asks for nothing.
    """
    table, runs = counted(table, runs)
    lost = without_answer(runs, ends_in_nothing)
    finals = {key: own for key, own in _accuracies(table).items() if key not in lost}
    levels: dict[Any, list[float]] = {}
    for run in runs:
        _, values = curve_of(run)
        key = key_of_run(run)
        if run.measured and len(values) >= SHORTEST_CURVE and key not in lost and not ends_in_nothing(recorded_in(run)):
            level = float(np.median(smooth(values)[-max(5, len(values) // 10) :]))
            levels.setdefault(key, []).append(level)
    if levels and set(finals) <= set(levels):
        found = [float(np.median(own)) - SETTLED for own in levels.values()]
    else:
        found = [float(np.median(own)) for own in finals.values()]
    return min((one for one in found if one > 0), default=None)


def ways(
    table: pd.DataFrame,
    target: float | None = None,
    runs: Sequence[Run] = (),
    prices: Mapping[str, float] | None = None,
) -> list[Way]:
    """Every measured configuration of one workload, named by what tells it from the others.

    Epochs to the target come from the accuracy curves of `runs` where all configurations have some; else from the
    table's epochs_to_stability (or epochs_to_target). Where nobody counted epochs, the whole run counts (if all are of one
    length), or one epoch, or million samples: the first that all configurations have, or else what most have. A recorded
    time_to_target goes before these three where all that were timed have it. A configuration that lacks what counts, were
    nothing but its accuracy measured, is a way without a time; so is one of which every run diverged, which does not reach
    anything. One rank is one way, whatever the learning-rate rules.

    Raises:
        UserError: the target is no fraction of one, or a price is not finite and above zero.
    """
    # What ranks took on other nodes than they were timed on, and got to there, is no part of these times.
    table, runs = counted(table, runs)
    found = _every(table, target, runs, prices)
    if found:
        rates = check_prices(prices)
        known = {_key(way) for way in found}  # a table may have numbers of it
        nowhere = {key: own for key, own in only_diverged(runs).items() if key not in known}
        found += [_nowhere(key, own, found[0].basis, rates) for key, own in nowhere.items()]
    diverged = Counter(key_of_run(run) for run in runs if run.diverged)
    found = [replace(way, diverged=diverged[_key(way)]) for way in found]
    apart = differing([way.fields for way in found])
    return [replace(way, apart=apart) for way in once(found)]


def _every(
    table: pd.DataFrame, target: float | None, runs: Sequence[Run], prices: Mapping[str, float] | None
) -> list[Way]:
    check_target(target)
    rates = check_prices(prices)
    jobs = job_times(table, runs)
    accuracies = _accuracies(table)
    stable = settled(table, runs, CONFIGURATION)
    every = {metric: _by_configuration(stable[stable["metric"] == metric]) for metric in METRICS_OF_EPOCHS}
    to = next((metric for metric, by in every.items() if by), METRICS_OF_EPOCHS[0])
    counts_of = every[to]
    curves, missed = first_epochs(runs, target) if target is not None else ({}, Counter())
    if not jobs or not all(_key(job) in curves for job in jobs):
        # Times to an accuracy and times to stability are not compared with each other.
        curves, missed = {}, Counter()
    # A curve that breaks off at its last epoch may have been at the target before: without it, nothing says so.
    lost = set() if curves else without_answer(runs, lambda values: not np.isfinite(values[-1]))
    energies = _by_configuration(table[table["metric"] == "energy"])
    epochs_of = [curves.get(_key(job)) if curves else counts_of.get(_key(job)) for job in jobs]
    counts_epochs = any(epochs is not None and len(epochs) for epochs in epochs_of)
    recorded = _by_configuration(table[table["metric"] == "time_to_target"])
    fast = _by_configuration(table[table["metric"] == "throughput"])
    timed = {_key(job) for job in jobs}

    def plain(key: Any, values: np.ndarray[Any, Any], seconds: float, basis: str) -> Way:
        return _plain(key, values, seconds, basis, _median(accuracies.get(key)), reached(key), rates)

    def reached(key: Any) -> bool | None:
        return key not in lost and _reached(_median(accuracies.get(key)), target, curves.get(key))

    def seen(key: Any) -> int:
        """Runs that were at the target or missed it: those without times have a curve all the same."""
        return len(curves.get(key, ())) + missed[key]

    found: list[Way] = []
    if recorded and not counts_epochs and timed | set(fast) <= set(recorded):
        basis, missing = "recorded target", "target"
        found = [plain(key, values, float(np.median(values)), basis) for key, values in recorded.items()]
    # Times would leave out who has a throughput only. Where neither is known of all, what is known of more counts.
    elif not counts_epochs and not timed >= set(fast) and len(fast) > len(timed):
        basis, missing = "million samples", "throughput"
        found = [plain(key, values, 1e6 / float(np.median(values)), basis) for key, values in fast.items()]
    else:
        missing = "time"
        if counts_epochs:
            basis = "target" if curves else "stable" if to == "epochs_to_stability" else "recorded target"
        else:
            basis = "whole run" if jobs and jobs[0].trained and len({job.trained for job in jobs}) == 1 else "epoch"
        for job, counts in zip(jobs, epochs_of, strict=True):
            key = _key(job)
            way = _way(
                job, counts, basis, _median(accuracies.get(key)), reached(key), rates, _median(energies.get(key))
            )
            found.append(replace(way, missed=missed[key], replicates=max(way.replicates, seen(key))))
    # Whatever was measured of a configuration, it is named.
    known_of = {_key(way) for way in found}
    named = [*fast, *map(_key, jobs), *recorded]
    # What has nothing but runs that diverged is named by `ways`, with the nodes that they ran on.
    gone = only_diverged(runs)
    curved = [key for key in curves if key not in gone]
    others = dict.fromkeys([*named, *(key for own in every.values() for key in own), *curved, *accuracies])
    for key in others if found else ():
        # What leaves out a field is no other configuration than one that it agrees with in the rest.
        if key not in named and any(_agree(key, own) for own in named):
            continue
        # The key of a log that does not say its ranks has none.
        if key not in known_of and key[-1]:
            way = plain(key, np.array([math.nan]), math.nan, basis)
            replicates = max(len(accuracies.get(key, ())), seen(key))
            found.append(replace(way, missing=missing, missed=missed[key], replicates=replicates))
    return found


def _way(
    job: JobTime, counts: np.ndarray[Any, Any] | None, basis: str, accuracy: float | None, reached: bool | None,
    rates: Mapping[str, float], energy: float | None,
) -> Way:  # fmt: skip
    deviation, epochs = job.deviation, None
    if basis in COUNTED:
        if counts is not None and len(counts):
            epochs = float(np.exp(np.log(counts).mean()))
            # A count is whole: half an epoch either way is lost in it besides the noise.
            own = deviation_of_mean(counts, float(np.hypot(NOISE, 0.5 / epochs)))
            deviation = float(np.hypot(deviation, own * epochs * job.mean_epoch / job.total(epochs)))
            seconds = job.total(epochs)
        else:
            seconds = float("nan")
    else:
        epochs = job.trained if basis == "whole run" else 1.0
        seconds = job.total(epochs or 1.0) if basis == "whole run" else job.epoch
    whole = job.total(job.trained) if job.trained else None
    return Way(
        fields=job.fields,
        n_gpus=job.n_gpus,
        n_nodes=job.n_nodes,
        epochs=epochs,
        seconds=seconds,
        low=seconds * float(np.exp(-Z * deviation)),
        high=seconds * float(np.exp(Z * deviation)),
        val_acc=accuracy,
        reached=reached,
        basis=basis,
        replicates=job.replicates,
        price=_price(job.fields, rates),
        energy=energy * seconds / whole if energy is not None and whole else None,
        mean_epoch=job.mean_epoch,
        missing="epochs" if math.isnan(seconds) else "",
    )


def _plain(
    key: tuple[Any, ...], values: np.ndarray[Any, Any], seconds: float, basis: str, accuracy: float | None, reached: bool | None,
    rates: Mapping[str, float],
) -> Way:  # fmt: skip
    """A way of which nothing but its seconds is known, from replicates of `values`."""
    fields = dict(zip(GROUP, key[:-1], strict=True))
    deviation = deviation_of_mean(values, PRIOR.expected)
    return Way(
        fields, int(key[-1]), None, None, seconds, seconds * float(np.exp(-Z * deviation)),
        seconds * float(np.exp(Z * deviation)), accuracy, reached, basis, len(values), _price(fields, rates),
    )  # fmt: skip


def _nowhere(key: tuple[Any, ...], runs: Sequence[Run], basis: str, rates: Mapping[str, float]) -> Way:
    """A way of which all runs diverged."""
    fields = dict(zip(GROUP, key[:-1], strict=True))
    nodes = min((run.n_nodes for run in runs if run.n_nodes is not None), default=None)
    unknown = float("nan")
    return Way(
        fields, int(key[-1]), nodes, None, unknown, unknown, unknown, None, False, basis, 0, _price(fields, rates)
    )


def _reached(accuracy: float | None, target: float | None, from_curve: np.ndarray[Any, Any] | None) -> bool | None:
    if from_curve is not None:
        return len(from_curve) > 0
    if target is None or accuracy is None:
        return None
    return accuracy >= target - 1e-9


def _median(values: np.ndarray[Any, Any] | None) -> float | None:
    return None if values is None else float(np.median(values))


def _accuracies(table: pd.DataFrame) -> dict[Any, np.ndarray[Any, Any]]:
    """Final accuracies by configuration. 0 is one, unlike times, epochs and throughputs of 0."""
    return _grouped(table[(table["metric"] == "val_acc") & (table["value"] >= 0)])


def _by_configuration(rows: pd.DataFrame) -> dict[Any, np.ndarray[Any, Any]]:
    return _grouped(rows[rows["value"] > 0])


def _grouped(rows: pd.DataFrame) -> dict[Any, np.ndarray[Any, Any]]:
    rows = rows[rows["n_gpus"].notna() & np.isfinite(rows["value"])]
    found: dict[Any, np.ndarray[Any, Any]] = {}
    for raw, own in rows.groupby([*GROUP, "n_gpus"], dropna=False, sort=False):
        text: list[Any] = [known(value) for value in raw]
        for place in (GROUP.index("per_gpu_batch"), len(GROUP)):
            text[place] = None if text[place] is None else int(float(text[place]))
        found[tuple(text)] = own["value"].to_numpy(dtype=float)
    return found


def _agree(key: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two keys are the same wherever both are known."""
    return all(one is None or two is None or one == two for one, two in zip(key, other, strict=True))


def _key(job: JobTime | Way) -> tuple[Any, ...]:
    return (*[job.fields[name] for name in GROUP], job.n_gpus)


def _price(fields: Mapping[str, Any], rates: Mapping[str, float]) -> float | None:
    return rates.get((priced_as(fields) or "").lower())


def check_target(target: float | None) -> None:
    """Raise UserError unless `target` is a fraction of one."""
    if target is not None and not 0 < target <= 1:
        hint = f"; did you mean {target / 100:g}?" if 1 < target <= 100 else ""
        raise UserError(f"target {target:g} is not an accuracy between 0 and 1{hint}")


def check_prices(prices: Mapping[str, float] | None) -> dict[str, float]:
    """Prices per GPU-hour by GPU type, in lower case.

    Raises:
        UserError: one is not a finite number above zero.
    """
    for kind, price in (prices or {}).items():
        if not price > 0:
            raise UserError(f"the price of {kind}, {price!r}, is not above zero; give currency units per GPU-hour")
        if not math.isfinite(price):
            raise UserError(f"the price of {kind}, {price!r}, is not finite; give currency units per GPU-hour")
    return {kind.lower(): float(price) for kind, price in (prices or {}).items()}
