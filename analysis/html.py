"""The report as one self-contained HTML page: no network, no script, figures inside."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import plain
from analysis.assemble import Report
from analysis.finding import Finding
from analysis.plots.style import Plot
from analysis.text import cells, columns, left_out, sheets
from hvdtrain import __version__


def page(report: Report, figures: Mapping[str | None, Sequence[tuple[Plot, bytes]]], note: str = "") -> str:
    """The page.

    Args:
        report: what to show.
        figures: of each workload, with its SVG.
        note: what is to be said about all of them.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    answers = {answer.workload: answer for answer in report.insights.answers}
    names = list(dict.fromkeys(part.group.workload for part in report.parts))
    epochs: dict[str | None, list[Any]] = {}
    for group in report.insights.epochs.groups:
        sheet = plain.epochs(group)
        if sheet is not None:
            epochs.setdefault(group.workload, []).append(sheet)
    workloads = [
        {
            "name": name or "workload not named",
            "answer": answers.get(name),
            "ways": plain.ways(answers[name]) if name in answers else None,
            "epochs": epochs.get(name, []),
            "figures": [_figure(plot, svg) for plot, svg in figures.get(name, ())],
            "parts": [
                {
                    "title": part.title,
                    "machine": part.machine,
                    "columns": columns(part),
                    "rows": [cells(point, " ") for point in part.group.points],
                    "notes": part.notes,
                    "sheets": sheets(report, part),
                }
                for part in report.parts
                if part.group.workload == name
            ],
        }
        for name in names
    ]
    return environment.get_template("report.html.j2").render(
        inputs=report.inputs,
        version=__version__,
        note=note,
        workloads=workloads,
        unanswered=report.insights.unanswered,
        findings=_sorted(report.insights.findings),
        left_out=[left_out(run) for run in report.left_out],
    )


def _figure(plot: Plot, svg: bytes) -> dict[str, str]:
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return {"name": plot.name, "alt": plot.alt, "source": source}


def _sorted(findings: Sequence[Finding]) -> Sequence[Finding]:
    # The word for what is missing comes once for every group; the report's reader sees the rest first.
    return sorted(findings, key=lambda finding: finding.code == "insufficient_data")
