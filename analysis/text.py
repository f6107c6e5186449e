"""The report as text: the same cells on the terminal and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis import plain, words
from analysis.assemble import Part, Report
from analysis.plain import Sheet, number
from analysis.runs import Run
from analysis.scaling import Point, Spread

_NONE = "-"
#: What means something in Markdown, wherever it stands in a line.
_MARKS = "\\*_`|<>[]&"


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
    who = words.ranks(run.asked, run.device) if run.asked else "ranks not known"
    return f"{run.source} ({who}, {epochs}): {run.status}{reason}"


def show(report: Report, console: Console) -> None:
    """Print every group's table and what must be said about it, then what was found and what to run."""
    for part in report.parts:
        console.print(Text(part.title, style="bold"))
        table = Table(header_style="bold")
        for heading in columns(part):
            table.add_column(heading, justify="right")
        for point in part.group.points:
            table.add_row(*(Text(cell) for cell in cells(point, "\n")))
        console.print(table)
        for note in (*part.notes, *ahead(report, part)):
            console.print(Padding(Text(note), (0, 0, 0, 2), expand=False))
        console.print()
    if report.insights.findings:
        console.print(Text("What stands out:", style="bold"))
        for finding in report.insights.findings:
            about = f" [{finding.group}]" if finding.group else ""
            console.print(Padding(Text(f"{finding.code}: {finding.message}{about}"), (0, 0, 0, 2), expand=False))
        console.print()
    for answer in report.insights.answers:
        console.print(Text(f"What to run{'' if answer.workload is None else f' ({answer.workload})'}:", style="bold"))
        for sentence in (*answer.sentences, answer.next_run):
            console.print(Padding(Text(sentence), (0, 0, 0, 2), expand=False))
        console.print()
    if report.insights.unanswered:
        console.print(Text("What to run:", style="bold"))
        console.print(Padding(Text(report.insights.unanswered), (0, 0, 0, 2), expand=False))
        console.print()
    if report.left_out:
        console.print(Text("Cells that are not in the tables:", style="bold"))
        for run in report.left_out:
            console.print(Padding(Text(left_out(run)), (0, 0, 0, 2), expand=False))
        console.print()


def ahead(report: Report, part: Part) -> list[str]:
    """The predictions of a group in a sentence, none where nothing was fitted."""
    rows = [row for row in report.insights.predictions.get(part.group.key, []) if row["status"] != "refused"]
    if not rows:
        return []
    said = [
        f"{words.ranks(row['n_gpus'], part.group.device)} {number(row['value'])} ({number(row['low'])} to {number(row['high'])})"
        for row in rows
        if row["value"] == row["value"]
    ]
    guess = ", a guess from too few sizes" if any(row["status"] == "insufficient_data" for row in rows) else ""
    return [f"Expected {rows[0]['metric']} in {rows[0]['unit']}: {', '.join(said)}{guess}."] if said else []


def sheets(report: Report, part: Part) -> list[Sheet]:
    """The tables of conclusions about one group."""
    found = [
        plain.predictions(report, part),
        plain.splits(report, part),
        plain.stability(report, part),
        plain.phases(report, part),
    ]
    return [sheet for sheet in found if sheet is not None]


def markdown(report: Report, figure: str, others: Sequence[tuple[str, str]] = (), note: str = "") -> str:
    """The report as Markdown.

    `figure` is the name of the image beside it, `others` are (alt text, file) of more, `note` is what is to be said of all.
    """
    lines = ["# How it scales", "", f"Read from {', '.join(map(_code, report.inputs))}.", ""]
    several = len({part.group.workload for part in report.parts}) > 1
    for answer in report.insights.answers:
        lines += [f"**{_escaped(answer.workload or 'workload not named')}**", ""] if several else []
        lines += [*(f"- {_escaped(sentence)}" for sentence in (*answer.sentences, answer.next_run)), ""]
    if report.insights.unanswered:
        lines += [f"- {_escaped(report.insights.unanswered)}", ""]
    if report.insights.findings:
        lines += ["## What stands out", ""]
        for one in report.insights.findings:
            about = f" ({_escaped(one.group)})" if one.group else ""
            lines.append(f"- **{_escaped(one.code)}**{about}: {_escaped(one.message)}. Likely: {_escaped(one.likely)}. "
                         f"Next: {_escaped(one.next)}.")  # fmt: skip
        lines.append("")
    lines += [_escaped(note), ""] if note else []
    lines += [f"![{_escaped(report.caption)}]({figure})", ""]
    for part in report.parts:
        rows = [columns(part), *(cells(p, " ") for p in part.group.points)]
        # Its cells are numbers: a range in brackets is no link, and a star is the only mark.
        lines += [f"## {_escaped(part.title)}", "", *_table(rows, marks="*"), ""]
        lines += [*(f"- {_escaped(note)}" for note in part.notes), ""]
        for sheet in sheets(report, part):
            lines += _sheet(sheet)
    for answer in report.insights.answers:
        lines += _sheet(plain.ways(answer), about=answer.workload)
    for group in report.insights.epochs.groups:
        sheet_of = plain.epochs(group)
        lines += [] if sheet_of is None else _sheet(sheet_of, about=group.workload)
    if others:
        lines += ["## Figures", "", *(f"![{_escaped(alt)}]({file})\n" for alt, file in others)]
    if report.left_out:
        lines += ["## Cells that are not in the tables", ""]
        lines += [*(f"- {_escaped(left_out(run))}" for run in report.left_out), ""]
    return "\n".join(lines)


def _sheet(sheet: Sheet, about: str | None = None) -> list[str]:
    heading = sheet.heading if about is None else f"{sheet.heading}: {about}"
    below = [_escaped(sheet.below), ""] if sheet.below else []
    return [f"### {_escaped(heading)}", "", *_table([sheet.columns, *sheet.rows]), "", *below]


def _code(text: str) -> str:
    """As code, between more backticks than it has in a row itself."""
    flat = " ".join(text.split())
    longest = max((len(run) for run in re.findall("`+", flat)), default=0)
    room = " " if longest else ""
    return f"{'`' * (longest + 1)}{room}{flat}{room}{'`' * (longest + 1)}"


def _escaped(line: str, marks: str = _MARKS) -> str:
    """In one line, and as it is: a name or a reason may hold anything that a person typed or a job printed."""
    flat = " ".join(line.split())
    for mark in marks:
        flat = flat.replace(mark, f"\\{mark}")
    return flat


def _table(rows: Sequence[Sequence[str]], marks: str = _MARKS) -> list[str]:
    """A Markdown table whose columns line up in an editor too."""
    escaped = [[_escaped(cell, marks) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in escaped) for column in range(len(rows[0]))]
    ruler = ["-" * (width - 1) + ":" for width in widths]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in escaped]
    return [f"| {' | '.join(line)} |" for line in (lines[0], ruler, *lines[1:])]
