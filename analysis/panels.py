"""The three panels of the figure, each drawn into axes that are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis import words
from analysis.assemble import Part
from analysis.curves import Curve
from analysis.scaling import Point, Spread

#: Okabe and Ito's colours (https://jfly.uni-koeln.de/color/): distinct with every common colour vision deficiency.
#: Black and yellow are left out: one is the ideal line's, the other too faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
_IDEAL = "#666666"
_STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_ENDS = ("fewest", "most")

_Y = Callable[[Point], Spread | None]


def draw_speed(axes: Axes, parts: Sequence[Part]) -> None:
    """Throughput (or what stands in for it) against ranks, with the ideal line from each group's baseline."""
    label, value = _speed(parts)
    axes.set_title("Speed")
    heights: list[float] = []
    for index, part in enumerate(parts):
        _points(axes, part, index, value)
        baseline = part.group.baseline
        first = next((point for point in part.group.points if baseline and point.n_gpus == baseline.n_gpus), None)
        start = value(first) if first is not None else None
        heights += [bound for point in part.group.points if (s := value(point)) for bound in (s.low, s.high)]
        if first is None or start is None:
            continue
        ends = (first.n_gpus, part.group.points[-1].n_gpus)
        ideal = [start.median * ranks / first.n_gpus for ranks in ends]
        heights += ideal
        axes.plot(ends, ideal, color=_IDEAL if len(parts) == 1 else colour_of(index), ls=(0, (4, 2)), lw=0.9, zorder=1)
    axes.set_yscale("log", base=2)
    if heights:
        # At least a factor of 1.5, so that noise does not fill the axis, and room for the legend above.
        low, high = math.log2(min(heights)), math.log2(max(heights))
        span = max(high - low, 0.6)
        middle = (low + high) / 2
        low, high = 2 ** (middle - 0.58 * span), 2 ** (middle + 0.7 * span)
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(FixedLocator(_round_ticks(low, high)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.set_ylabel(label)
    _rank_axis(axes, parts)
    ideal_line = Line2D([], [], color=_IDEAL, ls=(0, (4, 2)), lw=0.9, label=_ideal_label(parts))
    axes.legend(handles=[ideal_line], loc="upper left")


def _ideal_label(parts: Sequence[Part]) -> str:
    bases = [part.group.baseline for part in parts]
    if len({base.n_gpus for base in bases if base}) != 1 or bases[0] is None:
        return "ideal, from each group's fewest"
    noun = words.common_noun(part.group.device for part in parts)
    return f"ideal, from {bases[0].n_gpus} {noun if bases[0].n_gpus != 1 else noun.removesuffix('s')}"


def draw_efficiency(axes: Axes, parts: Sequence[Part]) -> None:
    """Efficiency in percent against ranks, with the line of 100 %."""
    axes.set_title("Efficiency")
    tops = [1.0]
    for index, part in enumerate(parts):
        _points(axes, part, index, lambda point: point.efficiency and _hundredfold(point.efficiency))
        tops += [point.efficiency.high for point in part.group.points if point.efficiency]
    axes.axhline(100, color=_IDEAL, ls=(0, (4, 2)), lw=0.9, zorder=1)
    axes.set_ylim(0, 100 * max(tops) * 1.1)
    axes.set_ylabel("efficiency (%)")
    axes.text(0.04, 0.04, _baseline_text(parts), transform=axes.transAxes, fontsize=7)
    _rank_axis(axes, parts)


def _baseline_text(parts: Sequence[Part]) -> str:
    texts = {part.group.baseline.text for part in parts if part.group.baseline}
    if len(texts) > 1:
        return "each group against its fewest;\nrelative where that is not 1"
    return "".join(texts).replace("; ", ";\n")


def draw_accuracy(axes: Axes, parts: Sequence[Part]) -> None:
    """Validation accuracy in percent against epochs, a line for each rank count."""
    axes.set_title("Validation accuracy")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy (%)")
    many = len(parts) > 1
    drawn = sum(_accuracy_of(axes, part, index, many) for index, part in enumerate(parts))
    if not drawn:
        axes.text(0.5, 0.5, "not recorded by epoch", transform=axes.transAxes, ha="center", color=_IDEAL)
        axes.set(xticks=[], yticks=[])
        return
    # Epochs begin at 1; a range below 5 points would turn the last images of a test set into a landscape.
    first, last = axes.dataLim.intervalx
    room = max(0.04 * (last - first), 0.5)
    axes.set_xlim(first - room, last + room)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    low, high = axes.get_ylim()
    if high - low < 5:
        axes.set_ylim((low + high) / 2 - 2.5, (low + high) / 2 + 2.5)
    noun = words.common_noun(part.group.device for part in parts)
    if not many:
        axes.legend(title=noun, title_fontsize=7, handlelength=1.8, ncols=1 if len(parts[0].group.points) < 7 else 2)
    elif any(part.curves for part in parts):
        keys = [
            Line2D([], [], color=_IDEAL, ls=style, label=label) for style, label in zip(_STYLES, _ENDS, strict=False)
        ]
        axes.legend(handles=keys, title=f"{noun} of a group", title_fontsize=7)


def _accuracy_of(axes: Axes, part: Part, index: int, many: bool) -> bool:
    """One group's accuracies: a colour per rank count where it is alone, else the group's colour for all of them."""
    drawn = False
    points = part.group.points
    lines = [point.n_gpus for point in points if point.n_gpus in part.curves]
    for place, point in enumerate(points):
        colour = colour_of(index) if many else _sequence(place, len(points))
        label = str(point.n_gpus)
        if point.n_gpus in lines:
            drawn = True
            if many and point.n_gpus not in (lines[0], lines[-1]):
                continue
            # Up to four rank counts read off the line's style too, for print without colours.
            rank_style = place if len(points) <= len(_STYLES) else 0
            style = _STYLES[int(point.n_gpus != lines[0]) if many else rank_style]
            _curve(axes, part.curves[point.n_gpus], colour, style, label)
        elif point.val_acc is not None and point.epochs:
            # A table of results has the last value only: a mark at the last epoch, no line to it.
            at = (point.epochs[-1], 100 * point.val_acc.median)
            marker = MARKERS[(index if many else place) % len(MARKERS)]
            _errorbar(axes, [at[0]], [_hundredfold(point.val_acc)], colour, marker, "none", label)
            if many:
                axes.annotate(label, at, (5, 0), textcoords="offset points", fontsize=6.5, va="center")
            drawn = True
    return drawn


def _curve(axes: Axes, curve: Curve, colour: str, style: Any, label: str) -> None:
    epochs = list(curve)
    medians, low, high = ([100 * getattr(curve[e], name) for e in epochs] for name in ("median", "low", "high"))
    axes.plot(epochs, medians, color=colour, ls=style, label=label, marker="o" if len(epochs) == 1 else "")
    if any(spread.count > 1 for spread in curve.values()):
        axes.fill_between(epochs, low, high, color=colour, alpha=0.22, lw=0)


def _points(axes: Axes, part: Part, index: int, value: _Y) -> None:
    shown = [(point.n_gpus, spread) for point in part.group.points if (spread := value(point)) is not None]
    ranks, spreads = [ranks for ranks, _ in shown], [spread for _, spread in shown]
    _errorbar(axes, ranks, spreads, colour_of(index), MARKERS[index % len(MARKERS)], "-", part.title)


def _errorbar(
    axes: Axes, x: Sequence[float], spreads: Sequence[Spread], colour: str, marker: str, line: str, label: str
) -> ErrorbarContainer:
    below = [spread.median - spread.low for spread in spreads]
    above = [spread.high - spread.median for spread in spreads]
    bars = [below, above] if any(spread.count > 1 for spread in spreads) else None
    medians = [spread.median for spread in spreads]
    return axes.errorbar(x, medians, yerr=bars, color=colour, marker=marker, ls=line, capsize=2.5, label=label)


def _speed(parts: Sequence[Part]) -> tuple[str, _Y]:
    metrics = [part.group.baseline.metric if part.group.baseline else None for part in parts]
    if all(metric == "throughput" for metric in metrics):
        return "throughput (samples/s)", lambda point: point.throughput
    if all(any(point.epoch_time for point in part.group.points) for part in parts):
        return "speed (epochs/h)", lambda point: _per_hour(point.epoch_time)
    return "speedup (times the baseline)", lambda point: point.speedup


def _per_hour(spread: Spread | None) -> Spread | None:
    if spread is None:
        return None
    return Spread(3600 / spread.median, 3600 / spread.high, 3600 / spread.low, spread.count)


def _hundredfold(spread: Spread) -> Spread:
    return Spread(100 * spread.median, 100 * spread.low, 100 * spread.high, spread.count)


def _rank_axis(axes: Axes, parts: Sequence[Part]) -> None:
    counts = sorted({point.n_gpus for part in parts for point in part.group.points})
    low, high = counts[0] / 1.2, counts[-1] * 1.2
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    # Labels closer than a tenth of the axis would touch; the first and the last always stay.
    apart = math.log2(high / low) / 10
    kept = [counts[-1]]
    for count in reversed(counts[:-1]):
        if math.log2(kept[-1] / count) >= apart:
            kept.append(count)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.set_xlabel(words.common_noun(part.group.device for part in parts))


def _round_ticks(low: float, high: float) -> list[float]:
    """Round numbers within an axis: 1, 2, 5, 10 ..., denser where that gives fewer than four."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(step / 10 for step in range(10, 100, 2))):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            break
    return ticks[:: math.ceil(len(ticks) / 8)]


def _plain(value: float, _position: int | None = None) -> str:
    return f"{value:,.6g}"


def colour_of(index: int) -> str:
    """The colour of the figure's group number `index`, from 0."""
    return COLOURS[index % len(COLOURS)]


def _sequence(place: int, count: int) -> str:
    """Rank counts are ordered, so their colours are: light to dark of one map that is even to every eye."""
    shade = matplotlib.colormaps["viridis"](0.78 * (1 - place / max(count - 1, 1)) if count > 1 else 0.3)
    return str(matplotlib.colors.to_hex(shade))
