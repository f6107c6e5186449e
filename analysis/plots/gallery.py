"""All figures of one workload, in the order of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis import words
from analysis.assemble import MOST_GROUPS, Part, Report, label
from analysis.fitting import GroupFit, fit_scaling
from analysis.measured import to_one_length
from analysis.notes import runs_of
from analysis.plots.costs import epochs_plot, pareto_plot
from analysis.plots.scaling import Series, efficiency_plot, karp_flatt_plot, speed_plots, time_plots
from analysis.plots.style import Plot
from analysis.plots.training import Curves, accuracy_plots, phases_plot
from analysis.runs import Run
from analysis.way import differing, qualified

#: More curves in one figure than these are a tangle: the most and the fewest ranks of each group stay.
_MOST_CURVES = 6


def gallery(report: Report, workload: str | None) -> list[Plot]:
    """The figures that the measurements of one workload allow."""
    parts = _parts(report, workload)
    answer = next((one for one in report.insights.answers if one.workload == workload), None)
    series, timed = _series(report, parts)
    kinds = list(dict.fromkeys(part.group.gpu_type for part in report.parts if part.group.workload == workload))
    others = [plot for draw in (efficiency_plot, karp_flatt_plot) if (plot := draw(series)) is not None]
    found = [*time_plots([*series, *timed]), *speed_plots(series), *others]
    for part in parts:
        phases = report.insights.phases.get(part.group.key)
        place = 1 + sum(plot.title == "Phases" for plot in found)
        plot = phases_plot(phases, words.rank_noun(part.group.device), label(part, parts), place) if phases else None
        found += [] if plot is None else [plot]
    curves, every = _curves(report, workload, parts)
    found += accuracy_plots(curves, () if answer is None else answer.ways, kinds, every)
    groups = [group for group in report.insights.epochs.groups if group.workload == workload and len(group.batches) > 1]
    laws = [epochs_plot(group, place) for place, group in enumerate(groups[:MOST_GROUPS], start=1)]
    found += [plot for plot in laws if plot is not None]
    plot = None if answer is None else pareto_plot(answer.ways, answer.forecasts[:MOST_GROUPS], kinds, answer.money)
    return [*found, *([plot] if plot is not None else [])]


def laid_under(report: Report, workload: str | None) -> bool:
    """Whether the published table of a report is in some figure of the workload."""
    return any(one.reference for several in _series(report, _parts(report, workload)) for one in several)


def _parts(report: Report, workload: str | None) -> list[Part]:
    return [part for part in report.parts if part.group.workload == workload][:MOST_GROUPS]


def _series(report: Report, parts: Sequence[Part]) -> tuple[list[Series], list[Series]]:
    """The groups and what is laid under them, by the metric that each is fitted by; and what the figures of times have besides.

    That is a published table of times beside groups that are fitted by their throughput, with the times of these. Of a published
    table the groups of the same workload are laid under, or where it has none the first, `MOST_GROUPS` at most.
    """
    found = _own(report.insights.fits, report.table, parts)
    table = report.reference
    if table is None:
        return found, []
    timed: list[Series] = []
    every = fit_scaling(table).groups
    apart = [name for name in differing([_fields(fit) for fit in every]) if name != "gpu_type"]
    same = [fit for fit in every if parts and fit.fields["workload"] == parts[0].group.workload]
    for fit in same or every:
        laid = sum(one.reference for one in (*found, *timed))
        if laid == MOST_GROUPS:
            break
        metric = fit.data.metric
        kind = words.where(fit.fields["device"], fit.fields["gpu_type"])
        name = ", ".join([f"{fit.fields['workload']} on {kind}", *qualified(_fields(fit), apart)])
        published = Series(
            fit, replicates(table, fit), f"{name} (published)", (len(parts) + laid) % MOST_GROUPS, len(every)
        )
        if any(one.fit.data.metric == metric for one in found):
            found.append(published)
            continue
        if fit.data.is_time and not any(one.fit.data.metric == metric for one in timed):
            own = fit_scaling(report.table[report.table["metric"] == metric]).groups
            timed += _own({each.key: each for each in own}, report.table, parts)
        if any(one.fit.data.metric == metric for one in timed):
            timed.append(published)
    return found, timed


def _fields(fit: GroupFit) -> dict[str, Any]:
    return {**fit.fields, "global_batch": fit.data.global_batch}


def _own(fits: Mapping[Any, GroupFit], table: pd.DataFrame, parts: Sequence[Part]) -> list[Series]:
    return [
        Series(fit, replicates(table, fit), label(part, parts), index)
        for index, part in enumerate(parts)
        if (fit := fits.get(part.group.key)) is not None
    ]


def replicates(table: pd.DataFrame, fit: GroupFit) -> pd.DataFrame:
    """Every measurement behind a fit, as it was fitted: columns n_gpus and value."""
    rows = table.loc[list(fit.data.rows)]
    found = rows[["n_gpus", "value"]].astype(float)
    if fit.data.metric == "total_time":
        found["value"] *= to_one_length(rows["epochs"].to_numpy(dtype=float, na_value=float("nan")))
    return found


def _curves(report: Report, workload: str | None, parts: Sequence[Part]) -> tuple[list[Curves], int]:
    """The curves of some sizes of `parts`, and how many sizes of the workload have one.

    Of each group the most ranks go first, then the fewest, then what lies between.
    """
    found: list[tuple[int, Curves]] = []
    every = 0
    for part in report.parts:
        if part.group.workload != workload:
            continue
        stability = report.insights.stability.get(part.group.key, {})
        sizes: dict[int, list[Run]] = {}
        for run in runs_of(part.group, report.runs):
            # Without an accuracy there is no curve, and nothing for a legend to name.
            if any(epoch.val_acc is not None and math.isfinite(epoch.val_acc) for epoch in run.epochs):
                sizes.setdefault(run.n_gpus, []).append(run)
        every += len(sizes)
        for place, (ranks, runs) in enumerate(sorted(sizes.items()) if part in parts else ()):
            name = words.ranks(ranks, part.group.device)
            if len(parts) > 1:
                own = label(part, parts)
                name = f"{ranks} {own}" if words.rank_noun(part.group.device) in own else f"{name}, {own}"
            urgency = 0 if place == len(sizes) - 1 else 1 if place == 0 else 2
            found.append((urgency, Curves(runs[:8], stability.get(ranks), name, len(found))))
    urgent = sorted(found, key=lambda own: own[0])[:_MOST_CURVES]
    kept = sorted((curves for _, curves in urgent), key=lambda curves: curves.index)
    return [replace(curves, index=index) for index, curves in enumerate(kept)], every
