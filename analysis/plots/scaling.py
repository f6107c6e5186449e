"""Time, throughput, efficiency and Karp-Flatt's serial fraction against ranks, with fit and band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from analysis import words
from analysis.fitting import FURTHEST, GroupFit
from analysis.plots.style import GREY, Plot, colour, legend, log2_axis, marker, numbered, panel, rank_axis, titled

Floats = NDArray[np.float64]
#: Metric -> the unit of a speed in it.
_SPEEDS = {"throughput": "samples/s", "steps_per_s": "steps/s", "epoch_time": "epochs/h", "total_time": "runs/h"}


@dataclass(frozen=True)
class Series:
    """One group in a figure: its fit, its replicates (columns n_gpus, value), what the legend calls it, its number.

    A reference is drawn hollow and grey beside the user's own points: it is of a table that has `published` groups, 0 of one's own.
    """

    fit: GroupFit
    replicates: pd.DataFrame
    label: str
    index: int
    published: int = 0

    @property
    def reference(self) -> bool:
        """Whether it is of a published table."""
        return self.published > 0

    @property
    def colour(self) -> str:
        """Grey for a reference."""
        return GREY if self.reference else colour(self.index)


def time_plots(series: Sequence[Series]) -> list[Plot]:
    """Times of an epoch, and those of a whole run, against ranks: two quantities, and so two figures."""
    timed = _by_metric([one for one in series if one.fit.data.is_time])
    labels = {"epoch_time": "epoch time (s)", "total_time": "time of a whole run (s)"}
    return [
        _measured(own, numbered("time", place), "Time", labels[metric])
        for place, (metric, own) in enumerate(timed.items(), start=1)
    ]


def speed_plots(series: Sequence[Series]) -> list[Plot]:
    """Throughput against ranks; where only times are known, epochs (or runs) per hour. A figure for each unit."""
    own = _by_metric([one for one in series if not one.fit.data.is_time] or series)
    return [
        _measured(one, numbered("throughput", place), "Throughput", f"speed ({_SPEEDS[metric]})", rate=True)
        for place, (metric, one) in enumerate(own.items(), start=1)
    ]


def _by_metric(series: Sequence[Series]) -> dict[str, list[Series]]:
    """Those of each metric, the one that most groups have first."""
    found: dict[str, list[Series]] = {}
    for one in series:
        found.setdefault(one.fit.data.metric, []).append(one)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _measured(series: Sequence[Series], name: str, title: str, label: str, rate: bool = False) -> Plot:
    heights: list[float] = []
    ranks: list[float] = []
    with panel() as (figure, axes):
        for one in series:
            data = one.fit.data
            invert = rate and data.is_time
            values = _rate(data.values) if invert else data.values
            dots = one.replicates.assign(value=_rate(one.replicates["value"]) if invert else one.replicates["value"])
            seaborn.scatterplot(
                dots, x="n_gpus", y="value", ax=axes, color="none" if one.reference else one.colour, edgecolor=one.colour,
                marker=marker(one.index), s=26, alpha=0.85, linewidth=1.0, legend=False, zorder=3,
            )  # fmt: skip
            heights += [*dots["value"].tolist(), *values.tolist()]
            ranks += data.n.tolist()
            # At the smallest size's rank-seconds for the same work: what the fit and the efficiency go by too.
            ideal = data.value(np.full_like(data.n, data.log_cost(data.values, data.n)[0]), data.n)
            ideal = _rate(ideal) if invert else ideal
            axes.plot(data.n, ideal, color=one.colour, ls=(0, (1, 1.5)), lw=1.0, zorder=1)
            heights += ideal.tolist()
            if one.fit.posterior is not None:
                ends = _band(axes, one, invert)
                heights += ends
                ranks.append(float(data.n[-1] * 2))
        _boundary(axes, series)
        log2_axis(axes, heights, label)
        rank_axis(axes, ranks, words.common_noun(one.fit.fields["device"] for one in series))
        titled(axes, f"{title} against ranks", _laid_under(series))
        _legend(axes, series)
    return Plot(name, title, _alt(series, label, rate), figure)


def _rate(values: Floats | pd.Series) -> Floats:
    return np.asarray(3600.0 / np.asarray(values, dtype=float))


def _band(axes: Axes, one: Series, invert: bool) -> list[float]:
    """The fit with its 90 % interval: solid within the data, dashed beyond; returns the outermost heights."""
    data = one.fit.data
    sizes = np.unique(np.append(np.geomspace(data.n[0], 2 * data.n[-1], 25), data.n))
    middle, low, high = one.fit.quantiles(sizes, data.nodes_of(sizes))
    if invert:
        middle, low, high = _rate(middle), _rate(high), _rate(low)
    within, beyond = sizes <= data.n[-1], sizes >= data.n[-1]
    axes.plot(sizes[within], middle[within], color=one.colour, lw=1.4, zorder=2)
    axes.plot(sizes[beyond], middle[beyond], color=one.colour, lw=1.4, ls=(0, (5, 2)), zorder=2)
    axes.fill_between(sizes, low, high, color=one.colour, alpha=0.10 if one.reference else 0.16, lw=0, zorder=0)
    # A band that explodes must not squeeze the points: the axis ends at four times the fit.
    return [
        max(float(low.min()), float(middle.min()) / FURTHEST),
        min(float(high.max()), float(middle.max()) * FURTHEST),
    ]


def _boundary(axes: Axes, series: Sequence[Series]) -> None:
    """A line between the largest size on one node and the smallest on several, where both were measured."""
    for one in series:
        data = one.fit.data
        several = np.flatnonzero(data.nodes > 1)
        if data.known_nodes and len(several) and several[0] > 0:
            at = float(np.sqrt(data.n[several[0] - 1] * data.n[several[0]]))
            axes.axvline(at, color=GREY, lw=0.9, ls=(0, (2, 2)), zorder=0)
            axes.text(
                at, 0.02, " several nodes", transform=axes.get_xaxis_transform(), fontsize=7, color=GREY, va="bottom"
            )
            return


def _legend(axes: Axes, series: Sequence[Series]) -> None:
    handles: list[Line2D | Patch] = [
        Line2D(
            [],
            [],
            color=one.colour,
            marker=marker(one.index),
            label=one.label,
            markerfacecolor="none" if one.reference else one.colour,
        )
        for one in series
    ]
    handles.append(Line2D([], [], color=GREY, ls=(0, (1, 1.5)), label="ideal"))
    if any(one.fit.posterior is not None for one in series):
        handles.append(Line2D([], [], color=GREY, ls=(0, (5, 2)), label="fit, beyond the data"))
        handles.append(Patch(color=GREY, alpha=0.2, lw=0, label="90 % interval"))
    legend(axes, handles)


def efficiency_plot(series: Sequence[Series]) -> Plot | None:
    """Efficiency in percent against ranks."""
    own = [one for one in series if len(one.fit.data.n) > 1]
    if not own:
        return None
    with panel() as (figure, axes):
        top = 110.0
        for one in own:
            data, values = one.fit.data, _efficiencies(one)
            top = max(top, 1.12 * float(values.max()))
            _line(axes, one, data.n, values)
        axes.axhline(100, color=GREY, ls=(0, (1, 1.5)), lw=1.0)
        axes.set_ylim(0, top)
        axes.set_ylabel("efficiency (%)")
        _boundary(axes, own)
        rank_axis(
            axes,
            [n for one in own for n in one.fit.data.n.tolist()],
            words.common_noun(one.fit.fields["device"] for one in own),
        )
        titled(axes, "Efficiency", _laid_under(own))
        legend(axes, loc="lower left")
    spans = []
    for one in own:
        points = [f"{n:g} ranks {value:.0f} %" for n, value in zip(one.fit.data.n, _efficiencies(one), strict=True)]
        spans.append(f"{one.label}: {', '.join(points)}")
    some = _laid_under(own, ", ")
    return Plot("efficiency", "Efficiency", f"Efficiency against the smallest size{some}. {'; '.join(spans)}.", figure)


def _line(axes: Axes, one: Series, n: Floats, values: Floats) -> None:
    face = "none" if one.reference else one.colour
    label = f"{one.label}, against {one.fit.data.n[0]:g}"
    axes.plot(n, values, color=one.colour, marker=marker(one.index), label=label, markerfacecolor=face)


def _efficiencies(one: Series) -> Floats:
    cost = one.fit.data.log_cost(one.fit.data.values, one.fit.data.n)
    return np.asarray(100 * np.exp(cost[0] - cost))


def karp_flatt_plot(series: Sequence[Series]) -> Plot | None:
    """The experimentally determined serial fraction against ranks: rising means overhead, level a serial part."""
    own = [one for one in series if one.fit.karp_flatt]
    if not own:
        return None
    with panel() as (figure, axes):
        for one in own:
            n, values = np.array(one.fit.karp_flatt).T
            _line(axes, one, n, 100 * values)
        axes.axhline(0, color=GREY, ls=(0, (1, 1.5)), lw=1.0)
        axes.set_ylabel("serial fraction (%)")
        rank_axis(
            axes,
            [float(n) for one in own for n, _ in one.fit.karp_flatt],
            words.common_noun(one.fit.fields["device"] for one in own),
        )
        titled(axes, "Karp-Flatt serial fraction", _laid_under(own))
        legend(axes)
    spans = [
        f"{one.label}: {', '.join(f'{n} ranks {100 * value:.1f} %' for n, value in one.fit.karp_flatt)}" for one in own
    ]
    some = _laid_under(own, ", ")
    alt = f"Experimentally determined serial fraction{some}. {'; '.join(spans)}."
    return Plot("karp_flatt", "Karp-Flatt", alt, figure)


def _laid_under(series: Sequence[Series], before: str = "") -> str:
    """How many groups of a published table are in a figure, where not all are: "6 of 48 published groups"."""
    laid, every = sum(one.reference for one in series), max(one.published for one in series)
    return f"{before}{laid} of {every} published groups" if 0 < laid < every else ""


def _alt(series: Sequence[Series], label: str, rate: bool) -> str:
    """The values that are drawn, in the unit of the axis."""
    parts = []
    for one in series:
        data = one.fit.data
        values, unit = (_rate(data.values), _SPEEDS[data.metric]) if rate and data.is_time else (data.values, data.unit)
        points = ", ".join(f"{n:g} ranks {words.amount(value)}" for n, value in zip(data.n, values, strict=True))
        parts.append(f"{one.label}: {points} {unit}")
    some = _laid_under(series, ", ")
    return f"{label} against the number of ranks, with ideal scaling, fit and 90 % interval{some}. {'; '.join(parts)}."
