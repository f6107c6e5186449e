"""Counts of epochs to stability that stand for their runs: not where most of the runs had not settled when they ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.epochs import Bounds
from analysis.finding import known
from analysis.runs import Run, accuracies, stable_from, under_each_rule
from analysis.schema import GROUP
from analysis.stability import SHORTEST, epochs_to_stability

#: What the runs behind one count share: those of a global batch for how epochs grow, those of a configuration for its time.
BATCH, CONFIGURATION = ("workload", "lr_rule", "global_batch"), (*GROUP, "n_gpus")


def unsettled(runs: Sequence[Run], by: Sequence[str]) -> list[tuple[list[Run], list[Run]]]:
    """Runs that agree in the attributes `by`, with those of them that have not settled, where these are more than half.

    The runs that did settle are then the quick ones: what they count is a lower bound. Runs without a curve do not take part.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in under_each_rule(runs):
        if run.measured and sum(epoch.val_acc is not None for epoch in run.epochs) >= SHORTEST:
            groups.setdefault(tuple(getattr(run, name) for name in by), []).append(run)
    found = [(own, [run for run in own if stable_from(run.epochs) is None]) for own in groups.values()]
    return [(own, open_ended) for own, open_ended in found if 2 * len(open_ended) > len(own)]


def lower_bounds(runs: Sequence[Run]) -> Bounds:
    """Of global batches most of whose runs had not settled: epochs that are known not to be enough, by workload and rule."""
    found: dict[tuple[str | None, str | None], dict[int, float]] = {}
    for own, open_ended in unsettled(runs, BATCH):
        one, least = own[0], [bound for run in open_ended if (bound := _bound(run)) is not None]
        if least and one.global_batch is not None:
            found.setdefault((one.workload, one.lr_rule), {})[one.global_batch] = min(least)
    return found


def _bound(run: Run) -> float | None:
    curve = accuracies(run.epochs)
    one = epochs_to_stability(list(curve.values()), epochs=list(curve), resamples=0)
    return one.longer_than if one.status == "censored" else None


def settled(table: pd.DataFrame, runs: Sequence[Run], by: Sequence[str]) -> pd.DataFrame:
    """`table` without the epochs to stability of groups most of whose runs have not settled."""
    out = {(run.source, run.lr_rule) for own, _ in unsettled(runs, by) for run in own}
    if not out:
        return table
    of_those = [(source, known(rule)) in out for source, rule in zip(table["source"], table["lr_rule"], strict=True)]
    return table[~((table["metric"] == "epochs_to_stability") & pd.Series(of_those, table.index, dtype=bool))]
