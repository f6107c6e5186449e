"""Phases of an epoch, and accuracy against epoch, wall time and GPU-hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.phases import PHASES
from analysis.plots.costs import kinds_of
from analysis.plots.style import GREY, Plot, colour, legend, marker, numbered, panel, time_unit, titled
from analysis.runs import Run
from analysis.stability import Stability
from analysis.way import Way
from analysis.words import amount

#: Phases in colours that differ in lightness too, with hatching for print.
_PHASE_COLOURS = {
    "data": "#E69F00", "forward": "#56B4E9", "backward": "#0072B2", "allreduce": "#D55E00", "optimizer": "#009E73",
    "val": "#CC79A7", "other": "#BBBBBB",
}  # fmt: skip
_HATCHES = {"data": "//", "allreduce": "xx", "other": ".."}
_NAMES = {"val": "validation", "other": "not recorded"}


@dataclass(frozen=True)
class Curves:
    """The runs of one number of ranks, their stability, and what the legend calls them."""

    runs: Sequence[Run]
    stability: Stability | None
    label: str
    index: int


def phases_plot(by_size: Mapping[int, Mapping[str, float]], noun: str, label: str, place: int = 1) -> Plot | None:
    """Seconds of an epoch in each phase, stacked, one bar for each number of ranks.

    `label` is the group that they are of, `place` its number among the figures of this kind.
    """
    if not by_size:
        return None
    with panel() as (figure, axes):
        places = np.arange(len(by_size))
        bottom = np.zeros(len(by_size))
        for phase in (*PHASES, "other"):
            heights = np.array([seconds.get(phase, 0.0) for seconds in by_size.values()])
            if heights.any():
                axes.bar(places, heights, 0.62, bottom=bottom, color=_PHASE_COLOURS[phase], hatch=_HATCHES.get(phase),
                         edgecolor="white", lw=0.5, label=_NAMES.get(phase, phase))  # fmt: skip
                bottom += heights
        axes.set_xticks(places, [str(n) for n in by_size])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(noun)
        axes.set_ylabel("s per epoch")
        axes.set_ylim(0, 1.45 * float(bottom.max()))
        titled(axes, "Where an epoch's time goes", label)
        legend(axes, loc="upper left", ncols=3)
    said = "; ".join(
        f"{n} ranks: {', '.join(f'{_NAMES.get(phase, phase)} {amount(value)} s' for phase, value in seconds.items())}"
        for n, seconds in by_size.items()
    )
    name = numbered("phases", place)
    return Plot(name, "Phases", f"Seconds of an epoch by phase, of {label}. {said}.", figure)


def accuracy_plots(
    curves: Sequence[Curves], ways: Sequence[Way], kinds: Sequence[str | None], every: int = 0
) -> list[Plot]:
    """Validation accuracy against epoch, hours and GPU-hours; from a table without curves, the stable points only.

    `kinds` are the GPU types in the order of their colours, `every` is how many curves there are where `curves` are not all.
    """
    if any(_points(run, "epoch") for one in curves for run in one.runs):
        hours = "GPU" if all(run.device == "gpu" for one in curves for run in one.runs) else "rank"
        # Of logs without times, or with epochs left out or not timed, nobody knows when an epoch was.
        timed = [replace(one, runs=runs) for one in curves if (runs := [run for run in one.runs if _has_times(run)])]
        by_time = [("time", "wall time"), ("gpu_hours", f"{hours} time")] if timed else []
        left_out = every > len(curves)
        return [
            _curves(own, against, label, every if left_out else 0)
            for own, against, label in [(curves, "epoch", "epoch"), *((timed, *names) for names in by_time)]
        ]
    known = [
        way for way in ways if way.val_acc is not None and way.basis in ("stable", "recorded target") and way.epochs
    ]
    if not known:
        return []
    to = "stability" if known[0].basis == "stable" else "the target"
    units = {way.hours_unit for way in known}
    hours = units.pop() if len(units) == 1 else "rank-hours"
    return [
        _finals(known, kinds, f"epochs to {to}", "accuracy_epoch", [way.epochs or 0.0 for way in known]),
        _finals(known, kinds, f"wall time to {to} (h)", "accuracy_time", [way.hours for way in known]),
        _finals(known, kinds, f"{hours} to {to}", "accuracy_gpu_hours", [way.gpu_hours for way in known]),
    ]


def _has_times(run: Run) -> bool:
    """Whether it is known when each of its accuracies was; false of a run that has none."""
    return run.timed and any(epoch.val_acc is not None for epoch in run.epochs)


def _points(run: Run, against: str) -> list[tuple[float, float]]:
    """(epoch, seconds or rank-seconds, accuracy) of every epoch with an accuracy; times count from the first epoch's start."""
    found, passed = [], 0.0
    for epoch in run.epochs:
        passed += epoch.seconds or 0.0
        if epoch.val_acc is not None:
            x = {"epoch": float(epoch.epoch), "time": passed, "gpu_hours": passed * max(run.n_gpus, 1)}[against]
            found.append((x, epoch.val_acc))
    return found


def _curves(curves: Sequence[Curves], against: str, label: str, every: int) -> Plot:
    """One figure; `every` is how many curves there are where it leaves some out, else 0."""
    some = f"{len(curves)} of {every} sizes" if every else ""
    scale, title = 1.0, f"Accuracy against {label}"
    if against != "epoch":
        scale, unit = time_unit(max(x for one in curves for run in one.runs for x, _ in _points(run, against)))
        label += f" ({unit})"
    said = []
    with panel() as (figure, axes):
        for one in curves:
            for place, run in enumerate(one.runs):
                points = np.array(_points(run, against)).reshape(-1, 2)
                axes.plot(points[:, 0] / scale, 100 * points[:, 1], color=colour(one.index), alpha=0.9 if place == 0 else 0.35,
                          lw=1.4 if place == 0 else 0.9, label=one.label if place == 0 else None)  # fmt: skip
            if against == "epoch":
                _band(axes, one)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
            _mark(axes, one, against, scale)
            said.append(f"{one.label}: {_in_words(one.stability)}")
        axes.set_xlabel(label)
        axes.set_ylabel("validation accuracy (%)")
        titled(axes, title, some)
        low, high = axes.get_ylim()
        if high - low < 5:
            axes.set_ylim((low + high) / 2 - 2.5, (low + high) / 2 + 2.5)
        legend(axes, loc="lower right")
    drawn = f", {some}" if some else ""
    alt = f"Validation accuracy against {label}{drawn}. {'; '.join(said)}."
    return Plot(f"accuracy_{against}", "Accuracy", alt, figure)


def _band(axes: Axes, one: Curves) -> None:
    """The band around the plateau, and a line at the first stable epoch."""
    stable = one.stability
    if stable is None or stable.plateau is None:
        return
    level, band = 100 * stable.plateau, 100 * stable.band
    axes.axhspan(level - band, level + band, color=colour(one.index), alpha=0.10, lw=0)
    if stable.epoch is not None:
        axes.axvline(stable.epoch, color=colour(one.index), lw=0.8, ls=(0, (3, 2)))


def _mark(axes: Axes, one: Curves, against: str, scale: float) -> None:
    """The first stable epoch on the first run."""
    stable = one.stability
    if stable is None or stable.epoch is None or stable.plateau is None:
        return
    run = one.runs[0]
    numbers = [float(epoch.epoch) for epoch in run.epochs if epoch.val_acc is not None]
    at = [x / scale for (x, _), number in zip(_points(run, against), numbers, strict=True) if number == stable.epoch]
    look = {"marker": marker(one.index), "color": colour(one.index), "ms": 8, "mec": "black", "mew": 0.9, "zorder": 4}
    axes.plot(at, [100 * stable.plateau] * len(at), ls="none", **look)  # type: ignore[arg-type]


def _in_words(stable: Stability | None) -> str:
    if stable is None:
        return "no stable epoch was looked for"
    if stable.epoch is None:
        more = f", more than {stable.longer_than:g} epochs" if stable.status == "censored" else ""
        return f"{stable.status}{more}"
    return f"stable from epoch {stable.epoch:g} at {100 * (stable.plateau or 0):.1f} %"


def _finals(ways: Sequence[Way], kinds: Sequence[str | None], label: str, name: str, x: Sequence[float]) -> Plot:
    kinds = kinds_of(ways, kinds)
    with panel() as (figure, axes):
        for way, at in zip(ways, x, strict=True):
            index = kinds.index(way.gpu_type)
            axes.plot([at], [100 * (way.val_acc or 0.0)], marker=marker(index), color=colour(index), ls="none")
            axes.annotate(
                way.name, (at, 100 * (way.val_acc or 0.0)), (6, 4), textcoords="offset points", fontsize=8, color=GREY
            )
        values = [100 * (way.val_acc or 0.0) for way in ways]
        room = max(2.5 - (max(values) - min(values)) / 2, 0.5)
        axes.set_ylim(min(values) - room, max(values) + room)
        axes.set_xlim(0, 1.25 * max(x))
        axes.set_xlabel(label)
        axes.set_ylabel("final validation accuracy (%)")
        axes.set_title(f"Accuracy against {label.split(' (')[0]}")
    said = "; ".join(
        f"{way.name}: {amount(at)}, {100 * (way.val_acc or 0.0):.1f} %" for way, at in zip(ways, x, strict=True)
    )
    return Plot(name, "Accuracy", f"Final validation accuracy against {label}. {said}.", figure)
