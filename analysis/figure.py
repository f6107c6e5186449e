"""The figure of a report: speed, efficiency and validation accuracy, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from analysis import raster, words
from analysis.assemble import MOST_GROUPS, Part, Report, details, label
from analysis.panels import MARKERS, colour_of, draw_accuracy, draw_efficiency, draw_speed

# Printed at the width of a page (about 16 cm) the smallest letters are still 6 points high.
_WIDTH, _PANEL_HEIGHT, DPI = 8.2, 2.65, 250
#: Letters of a legend's labels side by side.
_WIDE = 116
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    # A dollar sign in a name is a dollar sign, not the start of a formula.
    "text.parse_math": False,
}


def draw(report: Report) -> Figure:
    """Three panels: throughput with the ideal line, efficiency, validation accuracy per epoch.

    The first panel shows samples/s; where a group has none, epochs/h from the time of an epoch; where that is missing
    too, the speedup. Marks are medians, bars and bands the least and the greatest of the replicates. With several
    groups the accuracy panel shows the fewest and the most ranks of each. Six groups at most are drawn, the first
    ones; the title says so.

    Returns:
        A figure with three axes, not shown and not saved.
    """
    parts = report.parts[:MOST_GROUPS]
    heading, below = _titles(report, parts)
    labels = [_label(part, parts) for part in parts]
    # Two columns of labels where all have room beside each other.
    columns = 2 if max(map(len, labels)) <= _WIDE // 2 else 1
    labels = [textwrap.fill(own, _WIDE // columns) for own in labels]
    rows = [labels[place : place + columns] for place in range(0, len(labels), columns)] if len(parts) > 1 else []
    legend_rows = sum(max(own.count("\n") + 1 for own in row) for row in rows)
    # Heights in inches: the panels keep theirs however much is written above and below them.
    top = 0.06 + 0.17 * len(heading)
    above, beneath = top + 0.17 * legend_rows, 0.06 + 0.13 * len(below)
    height = above + _PANEL_HEIGHT + beneath
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), dpi=DPI)
        figure.set_layout_engine("constrained", rect=(0, beneath / height, 1, _PANEL_HEIGHT / height))
        speed, efficiency, accuracy = figure.subplots(1, 3)
        draw_speed(speed, parts)
        draw_efficiency(efficiency, parts)
        draw_accuracy(accuracy, parts)
        left = 0.008
        figure.text(left, 1 - 0.04 / height, "\n".join(heading), va="top", fontsize=9.5, fontweight="bold")
        figure.text(left, 0.05 / height, "\n".join(below), va="bottom", fontsize=7, color="#444444")
        if legend_rows:
            handles = [_handle(own, index) for index, own in enumerate(labels)]
            at = (0, 1 - (top - 0.1) / height)
            figure.legend(handles=handles, loc="upper left", bbox_to_anchor=at, ncols=columns, labelspacing=0.3)
    return figure


def pixels(report: Report) -> Image.Image:
    """`draw`'s figure at `DPI` dots per inch."""
    figure = draw(report)
    with matplotlib.rc_context(_STYLE):
        return raster.pixels(figure, DPI)


def _handle(text: str, index: int) -> Line2D:
    return Line2D([], [], color=colour_of(index), marker=MARKERS[index % len(MARKERS)], label=text)


def _label(part: Part, parts: Sequence[Part]) -> str:
    """What tells one group from the others of the figure."""
    workloads = len({other.group.workload for other in parts}) > 1
    own = label(part, parts)
    return f"{part.group.workload or 'workload not named'}, {own}" if workloads else own


def _titles(report: Report, parts: Sequence[Part]) -> tuple[list[str], list[str]]:
    """The lines of the title, and of what stands below the panels."""
    first = parts[0]
    if len(parts) == 1:
        heading, machines = first.title, first.machine
    else:
        workloads = dict.fromkeys(part.group.workload or "workload not named" for part in parts)
        common = [word for word in details(first.group) if all(word in details(part.group) for part in parts)]
        devices = {words.where(part.group.device, part.group.gpu_type) for part in parts}
        on = f" on {devices.pop()}" if len(devices) == 1 else ""
        heading = ", ".join([f"{' and '.join(workloads)}{on}", *common])
        machines = "; ".join(dict.fromkeys(part.machine for part in parts if part.machine))
    if len(report.parts) > len(parts):
        heading += f" (first {len(parts)} of {len(report.parts)} groups)"
    below = [f"Machine: {machines or 'not recorded'}."]
    if any(point.replicates > 1 for part in parts for point in part.group.points):
        below.append("Marks and lines: medians; bars and bands: least to greatest of the replicates.")
    return textwrap.wrap(heading, 100), textwrap.wrap(" ".join(below), 150)
