"""What all figures share: size, fonts, colours, axes of ranks, and a figure as PNG and SVG bytes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import seaborn
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox
from PIL import Image

from analysis.panels import COLOURS, MARKERS
from analysis.raster import pixels, png

#: Inches. One column of a printed page, and at 96 dots per inch about the width of a phone.
WIDTH, HEIGHT = 4.4, 3.3
GREY = "#5a5a5a"
DPI = 160
#: Where the axes end below the title, in shares of the height, and points of a line below it.
_TOP, _LINE = 0.915, 10.5
_STYLE: dict[str, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titley": 1.0,
    "axes.labelsize": 9,
    "legend.fontsize": 7.5, "legend.frameon": True, "legend.framealpha": 0.85, "legend.edgecolor": "none", "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5, "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "lines.linewidth": 1.5, "lines.markersize": 5,
    "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path", "svg.hashsalt": "hvdtrain",
    # A dollar sign in a name is a dollar sign, not the start of a formula.
    "text.parse_math": False,
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """One figure: a name for its files, a title, what it shows in words for those who cannot see it, and itself."""

    name: str
    title: str
    alt: str
    figure: Figure

    def pixels(self) -> Image.Image:
        """The figure at `DPI` dots per inch."""
        with styled():
            return pixels(self.figure, DPI)

    def png(self) -> bytes:
        """The figure as PNG, of these pixels."""
        return png(self.pixels(), DPI, self.alt)

    def svg(self) -> bytes:
        """The figure as SVG, its letters as paths so that it looks the same everywhere."""
        buffer = io.BytesIO()
        with styled():
            self.figure.savefig(buffer, format="svg", metadata={"Description": self.alt, "Date": None})
        return buffer.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """seaborn's white grid with this report's sizes."""
    settings: Any = {**seaborn.axes_style("whitegrid"), **_STYLE}
    with matplotlib.rc_context(settings):
        yield


@contextmanager
def panel(height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """A new figure with one pair of axes."""
    with styled():
        figure = Figure(figsize=(WIDTH, height))
        # All panels are alike: fixed margins, with room for labels like 20,000, take half the time of a computed layout.
        yield figure, figure.subplots(gridspec_kw={"left": 0.165, "right": 0.97, "bottom": 0.145, "top": _TOP})


def titled(axes: Axes, title: str, below: str = "") -> None:
    """The title, and below it in smaller letters what the figure is of, or leaves out."""
    lines = textwrap.wrap(below, 52)
    axes.set_title(title, pad=6 + _LINE * len(lines))
    if lines:
        look: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 8, "color": GREY}
        axes.annotate("\n".join(lines), (0, 1), (0, 4), va="bottom", **look)
        box, height = axes.get_position(), axes.figure.bbox.height / axes.figure.dpi
        axes.set_position((box.x0, box.y0, box.width, _TOP - _LINE * len(lines) / 72 / height - box.y0))


def legend(axes: Axes, handles: Sequence[Any] | None = None, loc: str = "best", ncols: int = 1) -> None:
    """The legend, long labels wrapped: within the axes where it covers no data, else below them, the figure growing as needed.

    `handles` are those of the legend; None takes everything that is drawn with a label.
    """
    own = list(axes.get_legend_handles_labels()[0] if handles is None else handles)
    labels = [textwrap.fill(str(handle.get_label()), 40) for handle in own]
    figure = axes.figure
    places: Any = dict.fromkeys((loc, "best"))
    for place in places:
        found = axes.legend(own, labels, loc=place, ncols=ncols, handlelength=2.2)
        if not _covers(axes, found.get_window_extent()):
            return
    found.remove()
    columns = 1 if any("\n" in label or len(label) > 24 for label in labels) else 2
    found = axes.legend(own, labels, loc="lower left", bbox_to_anchor=(0.02, 0.0), bbox_transform=figure.transFigure,
                        ncols=columns, handlelength=2.2, borderaxespad=0.2)  # fmt: skip
    room, before = found.get_window_extent().height / figure.dpi + 0.05, float(figure.bbox.height / figure.dpi)
    # In inches the axes stay as they were.
    box, height = axes.get_position(), before + room
    figure.set_size_inches(WIDTH, height)  # type: ignore[union-attr]
    axes.set_position((box.x0, (box.y0 * before + room) / height, box.width, box.height * before / height))


def _covers(axes: Axes, extent: Bbox) -> bool:
    """Whether a legend there would reach out of the axes, or hide something that is drawn."""
    box = axes.get_window_extent()
    if extent.x0 < box.x0 or extent.x1 > box.x1 or extent.y0 < box.y0 or extent.y1 > box.y1:
        return True
    lines = [line.get_transform().transform(line.get_xydata()) for line in axes.lines]
    dots = [axes.transData.transform(own.get_offsets()) for own in axes.collections if isinstance(own, PathCollection)]
    # A marker reaches some way around its point.
    if any(extent.padded(3).count_contains(points) for points in (*lines, *dots) if len(points)):
        return True
    return any(extent.overlaps(patch.get_window_extent()) for patch in axes.patches if isinstance(patch, Rectangle))


def numbered(name: str, place: int) -> str:
    """What the figure number `place` of a kind is called, from 1: "phases", "phases-2"."""
    return name if place == 1 else f"{name}-{place}"


def colour(index: int) -> str:
    """Colour of group number `index`: Okabe and Ito's, told apart with every common colour vision deficiency."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """Marker of group number `index`, for print without colours; where colours come again, another one."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def rank_axis(axes: Axes, counts: Sequence[float], label: str) -> None:
    """Numbers of ranks on a logarithmic axis of base 2, each labelled unless labels would touch."""
    sizes = sorted(set(counts))
    low, high = sizes[0] / 1.25, sizes[-1] * 1.25
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    apart = math.log2(high / low) / 9
    kept = [sizes[-1]]
    for count in reversed(sizes[:-1]):
        if math.log2(kept[-1] / count) >= apart:
            kept.append(count)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(plain))
    axes.set_xlabel(label)


def log2_axis(axes: Axes, heights: Sequence[float], label: str) -> None:
    """Values on a logarithmic axis of base 2 with round numbers on it."""
    low, high = math.log2(min(heights)), math.log2(max(heights))
    span, middle = max(high - low, 0.6), (low + high) / 2
    bottom, top = 2 ** (middle - 0.58 * span), 2 ** (middle + 0.62 * span)
    axes.set_yscale("log", base=2)
    axes.set_ylim(bottom, top)
    axes.yaxis.set_major_locator(FixedLocator(round_ticks(bottom, top)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(plain))
    axes.set_ylabel(label)


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers between `low` and `high`: 1, 2, 5, 10 ..., denser where that gives fewer than four."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    finer = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)
    finest = tuple(step / 10 for step in range(10, 100, 2))
    for digits in ((1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), finer, finest):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            break
    return ticks[:: max(1, math.ceil(len(ticks) / 8))]


def plain(value: float, _position: int | None = None) -> str:
    """`1,234.5` without a power of ten."""
    return f"{value:,.6g}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Seconds in one of the unit that suits a time, and its name: h, min or s."""
    return (3600.0, "h") if seconds > 5400 else (60.0, "min") if seconds > 100 else (1.0, "s")
