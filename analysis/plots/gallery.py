"""All figures of one workload, in the order of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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

#: More curves in one figure than these are a tangle: the most and the fewest ranks of each group stay.
_MOST_CURVES = 6


def gallery(report: Report, workload: str | None) -> list[Plot]:
    """The figures that the measurements of one workload allow."""
    parts = [part for part in report.parts if part.group.workload == workload][:MOST_GROUPS]
    answer = next((one for one in report.insights.answers if one.workload == workload), None)
    series = _series(report, parts)
    kinds = list(dict.fromkeys(part.group.gpu_type for part in report.parts if part.group.workload == workload))
    others = [plot for draw in (efficiency_plot, karp_flatt_plot) if (plot := draw(series)) is not None]
    found = [*time_plots(series), *speed_plots(series), *others]
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
    plot = None if answer is None else pareto_plot(answer.ways, answer.forecasts[:MOST_GROUPS], kinds)
    return [*found, *([plot] if plot is not None else [])]


def _series(report: Report, parts: Sequence[Part]) -> list[Series]:
    found = []
    for index, part in enumerate(parts):
        fit = report.insights.fits.get(part.group.key)
        if fit is not None:
            found.append(Series(fit, replicates(report.table, fit), label(part, parts), index))
    for index, fit in enumerate(fit_scaling(report.reference).groups if report.reference is not None else ()):
        if any(one.fit.data.metric == fit.data.metric for one in found):
            kind = words.where(fit.fields["device"], fit.fields["gpu_type"])
            name = f"{fit.fields['workload']} on {kind} (published)"
            rows = replicates(report.reference, fit) if report.reference is not None else pd.DataFrame()
            found.append(Series(fit, rows, name, len(parts) + index, reference=True))
    return found


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
