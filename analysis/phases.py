"""Where an epoch's time goes, and what therefore limits it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.measured import held_batches
from analysis.runs import Run, counted, group_key
from hvdtrain.record import Epoch

#: The fields `seconds_<phase>` of an epoch, in the order of a step; "val" is validation.
PHASES = ("data", "forward", "backward", "allreduce", "optimizer", "val")
#: A phase that waits for something else limits from this share of the training time on: removing it whole would then bring
#: more than what a run differs from another.
_INPUT, _COMMUNICATION, _OVERHEAD = 0.25, 0.25, 0.35


def phase_seconds(epochs: Sequence[Epoch]) -> dict[str, float] | None:
    """Median seconds of an epoch in each phase, and "other" for the rest; None where no phase was measured.

    The first epoch of every start is left out where there are others.
    """
    started: set[int] = set()
    steady = []
    for epoch in epochs:
        if epoch.restart in started:
            steady.append(epoch)
        started.add(epoch.restart)
    chosen = [epoch for epoch in steady or epochs if epoch.seconds]
    found = {}
    for phase in PHASES:
        values = [value for epoch in chosen if (value := getattr(epoch, f"seconds_{phase}")) is not None]
        if values:
            found[phase] = statistics.median(values)
    if not set(found) - {"val"}:
        return None
    whole = statistics.median(epoch.seconds or 0.0 for epoch in chosen)
    return {**found, "other": max(0.0, whole - sum(found.values()))}


def bound(seconds: Mapping[str, float], n_gpus: int) -> str:
    """What limits training: "input", "communication", "overhead" or "compute", by shares of the time without validation.

    A phase that was not measured is part of another one: waiting for data of what no phase holds, communication (of several
    ranks) of the backward pass. Then it is "input or overhead", or "compute or communication".
    """
    training = sum(value for phase, value in seconds.items() if phase != "val")
    if training <= 0:
        return "compute"
    share = {phase: value / training for phase, value in seconds.items()}
    if share.get("data", 0.0) > _INPUT:
        return "input"
    if share.get("allreduce", 0.0) > _COMMUNICATION:
        return "communication"
    if share["other"] > _OVERHEAD:
        return "overhead" if "data" in share else "input or overhead"
    return "compute" if "allreduce" in share or n_gpus == 1 else "compute or communication"


def by_size(table: pd.DataFrame, runs: Sequence[Run]) -> dict[tuple[Any, ...], dict[int, list[Run]]]:
    """Measured runs behind a table by group and number of ranks, in order of ranks, those on the fewest nodes.

    Logs that do not say their ranks are of no group.
    """
    held = held_batches(table)
    found: dict[tuple[Any, ...], dict[int, list[Run]]] = {}
    for run in sorted(counted(table, runs)[1], key=lambda run: run.n_gpus):
        if run.measured and run.n_gpus:
            found.setdefault(group_key(run, held), {}).setdefault(run.n_gpus, []).append(run)
    return found


def phases_by_size(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    """Phases of the runs of one group by number of ranks; sizes that recorded none are absent."""
    sizes: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.n_gpus):
        sizes.setdefault(run.n_gpus, []).append(run)
    found = {}
    for ranks, own in sizes.items():
        each = [seconds for run in own if (seconds := phase_seconds(run.epochs)) is not None]
        if each:
            names = [*(phase for phase in PHASES if any(phase in one for one in each)), "other"]
            found[ranks] = {name: statistics.median([one[name] for one in each if name in one]) for name in names}
    return found
