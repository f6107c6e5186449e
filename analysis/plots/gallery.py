"""All figures of one workload, in the order of the report."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import words
from analysis.assemble import Part, Report, details
from analysis.fitting import GroupFit, fit_scaling
from analysis.measured import to_one_length
from analysis.notes import runs_of
from analysis.plots.costs import epochs_plot, pareto_plot
from analysis.plots.scaling import Series, efficiency_plot, karp_flatt_plot, speed_plot, time_plot
from analysis.plots.style import Plot
from analysis.plots.training import Curves, accuracy_plots, phases_plot
from analysis.runs import Run

#: More groups in one figure than colours would have to share one.
MOST = 6
#: More curves in one figure than these are a tangle: the fewest and the most ranks stay.
_MOST_CURVES = 6
_MOST_WAYS = 24


def gallery(report: Report, workload: str | None) -> list[Plot]:
    """The figures that the measurements of one workload allow."""
    parts = [part for part in report.parts if part.group.workload == workload][:MOST]
    answer = next((one for one in report.insights.answers if one.workload == workload), None)
    series = _series(report, parts)
    kinds = list(dict.fromkeys(part.group.gpu_type for part in parts))
    found = [
        plot for draw in (time_plot, speed_plot, efficiency_plot, karp_flatt_plot) if (plot := draw(series)) is not None
    ]
    for part in parts:
        phases = report.insights.phases.get(part.group.key)
        plot = phases_plot(phases, words.rank_noun(part.group.device)) if phases else None
        if plot is not None:
            found.append(plot)
            break
    found += accuracy_plots(_curves(report, parts), () if answer is None else answer.ways, kinds)
    groups = [group for group in report.insights.epochs.groups if group.workload == workload]
    found += [plot for group in groups[:1] if (plot := epochs_plot(group)) is not None]
    plot = None if answer is None else pareto_plot(answer.ways[:_MOST_WAYS], answer.forecasts[:MOST], kinds)
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


def label(part: Part, parts: Sequence[Part]) -> str:
    """What tells one group from the others of the figure."""
    common = set.intersection(*({*details(other.group)} for other in parts))
    own = [word for word in details(part.group) if word not in common]
    return ", ".join([words.where(part.group.device, part.group.gpu_type), *own])


def _curves(report: Report, parts: Sequence[Part]) -> list[Curves]:
    found: list[Curves] = []
    for part in parts:
        stability = report.insights.stability.get(part.group.key, {})
        sizes: dict[int, list[Run]] = {}
        for run in runs_of(part.group, report.runs):
            sizes.setdefault(run.n_gpus, []).append(run)
        for ranks, runs in sorted(sizes.items()):
            name = words.ranks(ranks, part.group.device)
            if len(parts) > 1:
                name = f"{ranks} {label(part, parts)}"
            found.append(Curves(runs[:8], stability.get(ranks), name, len(found)))
    if len(found) > _MOST_CURVES:
        found = [*found[: _MOST_CURVES - 1], found[-1]]
    return [Curves(one.runs, one.stability, one.label, index) for index, one in enumerate(found)]
