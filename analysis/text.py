"""The report as text: the same cells on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis import words
from analysis.assemble import Part, Report
from analysis.runs import Run
from analysis.scaling import Point, Spread

_NONE = "-"


def number(value: float) -> str:
    """A plain number with about three significant digits: `0.0412`, `0.420`, `1.25`, `81.2`, `1,216`."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if abs(value) >= 0.995:
        return f"{value:.2f}"
    return f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def columns(part: Part) -> list[str]:
    """Headings of the scaling table of one group."""
    noun = words.rank_noun(part.group.device)
    return [noun, "runs", "s/epoch", "samples/s", "speedup", "efficiency", "val. accuracy"]


def cells(point: Point, between: str) -> list[str]:
    """One row. `between` stands between the median and the range of replicates: a space, or a line break."""

    def cell(spread: Spread | None, form: Callable[[float], str], after: str = "") -> str:
        if spread is None:
            return _NONE
        middle, low, high = form(spread.median), form(spread.low), form(spread.high)
        bounds = "" if spread.count == 1 else f"{between}[{low} to {high}]"
        return f"{middle}{after}{bounds}"

    first = "*" if point.includes_first_epoch else ""
    return [
        str(point.n_gpus),
        str(point.replicates),
        cell(point.epoch_time, number, first),
        cell(point.throughput, number, first),
        cell(point.speedup, "{:.2f}".format, "x"),
        cell(point.efficiency, lambda value: f"{100 * value:.0f}", " %"),
        cell(point.val_acc, lambda value: f"{100 * value:.1f}", " %"),
    ]


def left_out(run: Run) -> str:
    """One line about a cell whose numbers are not in the table."""
    epochs = f"{len(run.epochs)} epoch{'' if len(run.epochs) == 1 else 's'} recorded"
    reason = f": {run.reason}" if run.reason else ""
    return f"{run.source} ({words.ranks(run.asked, run.device)}, {epochs}): {run.status}{reason}"


def show(report: Report, console: Console) -> None:
    """Print every group's table and what must be said about it."""
    for part in report.parts:
        console.print(Text(part.title, style="bold"))
        table = Table(header_style="bold")
        for heading in columns(part):
            table.add_column(heading, justify="right")
        for point in part.group.points:
            table.add_row(*(Text(cell) for cell in cells(point, "\n")))
        console.print(table)
        for note in part.notes:
            console.print(Padding(Text(note), (0, 0, 0, 2), expand=False))
        console.print()
    if report.left_out:
        console.print(Text("Cells that are not in the tables:", style="bold"))
        for run in report.left_out:
            console.print(Padding(Text(left_out(run)), (0, 0, 0, 2), expand=False))
        console.print()


def markdown(report: Report, figure: str) -> str:
    """The report as Markdown; `figure` is the name of the image beside it."""
    lines = ["# How it scales", "", f"Read from {', '.join(f'`{path}`' for path in report.inputs)}.", ""]
    lines += [f"![{report.caption}]({figure})", ""]
    for part in report.parts:
        lines += [f"## {part.title}", "", *_table([columns(part), *(cells(p, " ") for p in part.group.points)]), ""]
        lines += [*(f"- {_escaped(note)}" for note in part.notes), ""]
    if report.left_out:
        lines += ["## Cells that are not in the tables", ""]
        lines += [*(f"- {_escaped(left_out(run))}" for run in report.left_out), ""]
    return "\n".join(lines)


def _escaped(line: str) -> str:
    """A reason may hold anything a job printed; an asterisk at the start would become a list or emphasis."""
    flat = " ".join(line.split())
    for mark in "\\*_`|<":
        flat = flat.replace(mark, f"\\{mark}")
    return flat


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns line up in an editor too."""
    escaped = [[cell.replace("|", "\\|").replace("*", "\\*") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in escaped) for column in range(len(rows[0]))]
    ruler = ["-" * (width - 1) + ":" for width in widths]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in escaped]
    return [f"| {' | '.join(line)} |" for line in (lines[0], ruler, *lines[1:])]
