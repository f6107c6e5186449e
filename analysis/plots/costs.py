"""Epochs against global batch, and time against cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from analysis import words
from analysis.epochs import EpochsGroup
from analysis.panels import COLOURS
from analysis.plots.style import (
    GREY,
    Plot,
    colour,
    legend,
    log2_axis,
    marker,
    numbered,
    panel,
    rank_axis,
    time_unit,
    titled,
)
from analysis.way import Way, judged_by_cost

_BASES = {
    "target": "time to the target", "stable": "time to stable accuracy", "whole run": "time of a run", "epoch": "time of an epoch",
    "million samples": "time of a million samples", "recorded target": "time to the recorded target",
}  # fmt: skip
#: More ways in one figure than these are not told apart; what no other beats is drawn in any case.
_MOST_WAYS = 24


def epochs_plot(group: EpochsGroup, place: int = 1) -> Plot | None:
    """Epochs to stability, or to a target, against global batch, with the three laws and the interval; None for a single batch.

    `place` is its number among the figures of this kind.
    """
    if len(group.batches) < 2:
        return None
    rule = "" if group.lr_rule is None else words.rule(group.lr_rule)
    counted = f"epochs to {words.counted_to(group.metric)}"
    # Where runs have not settled, these say more than the interval does.
    batches = np.array(
        [b for b in np.geomspace(group.batches[0], 2 * group.batches[-1], 30) if group.expects(float(b))]
    )
    with panel() as (figure, axes):
        ends = np.array([group.interval(float(batch)) for batch in batches])
        axes.fill_between(
            batches, ends[:, 0], ends[:, 2], color=colour(0), alpha=0.15, lw=0, label="90 % interval, all laws"
        )
        styles = {"hyperbolic": "-", "power": (0, (5, 2)), "log2": (0, (1, 1.5))}
        names = {"hyperbolic": "Emin (1 + B/Bcrit)", "power": "power of B", "log2": "1 + a log2 B"}
        for law, style in styles.items():
            axes.plot(batches, group.predict_law(law, batches), color=colour(0) if law == "hyperbolic" else GREY, ls=style, lw=1.3,
                      label=names[law])  # fmt: skip
        axes.plot(group.batches, group.epochs, color=colour(1), marker=marker(0), ls="none", label="measured")
        for place_of, (batch, least) in enumerate(group.bounds):
            axes.plot([batch], [least], color=colour(1), marker="^", mfc="none", ls="none",
                      label=None if place_of else "not settled by then")  # fmt: skip
        unsettled = [least for _, least in group.bounds]
        log2_axis(axes, [*group.epochs.tolist(), *unsettled, float(ends[:, 0].min()), float(ends[:, 2].max())], counted)
        every = [*group.batches.tolist(), *(batch for batch, _ in group.bounds), float(2 * group.batches[-1])]
        rank_axis(axes, sorted(every), "global batch (samples)")
        titled(axes, "Epochs against global batch", rule)
        legend(axes, loc="upper left")
    points = ", ".join(
        [f"batch {batch:,.0f}: {epochs:g}" for batch, epochs in zip(group.batches, group.epochs, strict=True)]
        + [f"batch {batch:,.0f}: not settled by {least:g}" for batch, least in group.bounds]
    )
    twice = float(2 * group.batches[-1])
    low, middle, high = group.interval(twice)
    ahead = (
        ""
        if not group.expects(twice)
        else f" Expected at {twice:,.0f}: {middle:.0f}, between {low:.0f} and {high:.0f}."
    )
    of_rule = f", {rule}" if rule else ""
    alt = f"{counted.capitalize()} against global batch{of_rule}. Measured: {points}.{ahead}"
    return Plot(numbered("epochs", place), "Epochs", alt, figure)


def pareto_plot(
    ways: Sequence[Way], forecasts: Sequence[Way], kinds: Sequence[str | None], money: bool = False
) -> Plot | None:
    """Time against cost (GPU-hours where no price is known) with 90 % intervals; nothing dominates what is on the line.

    `kinds` are the GPU types in the order of their colours. Where some ways have a price, or costs are in `money` anyway, those
    without are left out; of many ways those that no other beats are drawn first, then the fastest.
    """
    judged = judged_by_cost([*ways, *forecasts], money)
    measured = [way for way in judged if way.measured]
    left_out = [way.name for way in ways if way not in measured]
    if len(measured) < 2:
        return None
    best = front(measured)
    shown = [*best, *sorted((way for way in measured if way not in best), key=lambda way: way.seconds)]
    shown = shown[: max(_MOST_WAYS, len(best))]
    every = [way for way in judged if way in shown or not way.measured]
    kinds = kinds_of(every, kinds)
    some = f"{len(shown)} of {len(measured)} ways" if len(shown) < len(measured) else ""
    scale, unit = time_unit(max(way.seconds for way in every))
    axis = "cost" if all(way.price is not None for way in every) else every[0].hours_unit
    with panel() as (figure, axes):
        axes.set_xlim(0, _room([way.worth("seconds") for way in every], every) / scale)
        for place, way in enumerate(every):
            _cross(axes, way, scale, kinds.index(way.gpu_type), above=place % 2 == 0)
        line = [way.seconds / scale for way in best], [way.worth("cost")[1] for way in best]
        axes.plot(*line, color=GREY, lw=0.9, ls=(0, (3, 2)), zorder=0)
        axes.set_ylim(0, _room([way.worth("cost") for way in every], every))
        axes.set_xlabel(f"{_BASES[every[0].basis]} ({unit})")
        axes.set_ylabel(axis)
        titled(axes, "Time against cost", some)
    said = "; ".join(
        f"{way.name}{'' if way.measured else ' (forecast)'}: {words.amount(way.seconds / scale)} {unit}, "
        f"{words.amount(way.worth('cost')[1])}"
        for way in every
    )
    drawn = f", {some}" if some else ""
    none = f"None beats {', '.join(way.name for way in best)} in both."
    if left_out:
        none += f" Without a price, and not shown: {', '.join(left_out)}."
    return Plot("pareto", "Time and cost", f"Time against {axis}{drawn}. {said}. {none}", figure)


def _room(worths: Sequence[tuple[float, float, float]], ways: Sequence[Way]) -> float:
    """Where an axis ends. Intervals of forecasts may run out of it: the widest would squeeze all that was measured together."""
    needed = [
        high if way.measured else min(high, 1.5 * value) for (_, value, high), way in zip(worths, ways, strict=True)
    ]
    return 1.2 * max(needed)


def kinds_of(ways: Sequence[Way], kinds: Sequence[str | None]) -> list[str | None]:
    """The GPU types of `ways` in the order of their colours: as in `kinds`, unless that are more than there are colours."""
    if len(kinds) <= len(COLOURS) and all(way.gpu_type in kinds for way in ways):
        return list(kinds)
    own = {way.gpu_type for way in ways}
    return list(dict.fromkeys([*(kind for kind in kinds if kind in own), *(way.gpu_type for way in ways)]))


def _cross(axes: Axes, way: Way, scale: float, index: int, above: bool) -> None:
    """One way with its interval both ways; hollow and with a question mark where it is a forecast."""
    low, value, high = (end / scale for end in way.worth("seconds"))
    down, cost, up = way.worth("cost")
    face = colour(index) if way.measured else "none"
    wide, tall = [[value - low], [high - value]], [[cost - down], [up - cost]]
    axes.errorbar(
        [value],
        [cost],
        xerr=wide,
        yerr=tall,
        color=colour(index),
        marker=marker(index),
        mfc=face,
        capsize=2,
        elinewidth=0.8,
    )
    text = way.name + ("" if way.measured else "?")
    # To the side where there is room.
    across, side = (6, "left") if value < axes.get_xlim()[1] / 2 else (-6, "right")
    at = across, 5 if above else -12
    axes.annotate(text, (value, cost), at, textcoords="offset points", ha=side, fontsize=8, color=GREY)


def front(ways: Sequence[Way]) -> list[Way]:
    """The ways that no other beats in both time and cost, by time."""
    found: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.seconds, way.worth("cost")[1])):
        if not found or way.worth("cost")[1] < found[-1].worth("cost")[1]:
            found.append(way)
    return found
