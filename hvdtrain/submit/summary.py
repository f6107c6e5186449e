"""What is printed when cells have ended: a table, and for a failed cell the end of its log."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.errors import printable
from hvdtrain.submit.attempt import tail
from hvdtrain.submit.view import CellView

_LOG_LINES = 15
#: On a pipe nobody knows the width; wide enough that no cell of a table is broken.
_PIPE_COLUMNS = 160


def failure(folder: Path) -> str:
    """Where the log of a failed cell is, and its last lines."""
    path = folder / "log" / "job.log"
    lines = tail(path, _LOG_LINES)
    shown = "".join(f"\n    | {line}" for line in lines) or "\n    (it is empty)"
    return f"  log: {path}; its last lines:{shown}"


def row(view: CellView) -> dict[str, Any]:
    """One line of the table. Times and rates are medians over the finished epochs."""
    cell = view.record
    found = {
        "cell": view.name,
        "status": view.status,
        "epochs": len(cell.epochs),
        "epochs_total": cell.cell.get("epochs"),
        "seconds_per_epoch": _median(epoch.seconds for epoch in cell.epochs),
        "samples_per_second": _median(epoch.samples_per_second for epoch in cell.epochs),
        "val_acc": cell.epochs[-1].val_acc if cell.epochs else None,
        "reason": view.why or (cell.result or {}).get("reason") or "",
    }
    if view.job is not None:
        found |= {"job": view.job, "nodes": view.nodes, "elapsed": view.elapsed, "start": view.start}
    if view.spent is not None:
        spent = view.spent
        found |= {"gpu_hours": spent.gpu_hours, "gpu_hours_estimated": spent.estimated, "joules": spent.joules}
    return found


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The rows on standard output, one line each."""
    from rich.console import Console
    from rich.table import Table

    jobs = any("job" in entry for entry in rows)
    headings = ["cell", "status", *(["job"] if jobs else []), "epochs", "s/epoch", "samples/s", "val_acc"]
    lines = [
        [
            entry["cell"],
            entry["status"],
            *([entry.get("job", "")] if jobs else []),
            f"{entry['epochs']}" + ("" if entry["epochs_total"] is None else f"/{entry['epochs_total']}"),
            _number(entry["seconds_per_epoch"], ".3g"),
            _number(entry["samples_per_second"], ",.0f"),
            _number(entry["val_acc"], ".3f"),
        ]
        for entry in rows
    ]
    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, markup=False, highlight=False, emoji=False)
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    # Where everything fits, rich need not find out: of 1,000 rows that takes it nearly half of its time.
    fits = sum(widths) + 2 * len(widths) <= console.width
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, width in zip(headings, widths, strict=True):
        side: Any = "left" if heading in ("cell", "status", "job") else "right"
        folded = heading in ("cell", "status")
        table.add_column(
            heading, justify=side, overflow="fold", no_wrap=fits or not folded, width=width if fits else None
        )
    for line in lines:
        table.add_row(*line)
    console.print(table)


def print_reasons(rows: Sequence[dict[str, Any]]) -> None:
    """Why cells wait or did not succeed, each reason once with the cells that have it."""
    reasons: dict[str, list[str]] = {}
    for entry in rows:
        if entry["reason"] and entry["status"] != "completed":
            reasons.setdefault(f"{entry['status']}: {entry['reason']}", []).append(entry["cell"])
    if reasons:
        print()
    for reason, cells in reasons.items():
        several = ", ".join(cells) if len(cells) <= 3 else f"{cells[0]}, {cells[1]} and {len(cells) - 2} more"
        print(printable(f"{several} {reason}"))


def print_hours(rows: Sequence[dict[str, Any]]) -> None:
    """What the study has cost so far, where it ran on SLURM."""
    spent = [entry for entry in rows if "gpu_hours" in entry]
    if not spent:
        return
    estimates = [entry for entry in spent if entry["gpu_hours_estimated"]]
    # A cell that has not begun has an estimate of nothing, which makes no sum less certain.
    guessed = len(estimates) == len(spent) or any(entry["gpu_hours"] for entry in estimates)
    source = "estimated from wall clock times GPUs" if guessed else "from accounting"
    joules = [entry["joules"] for entry in spent if entry["joules"] is not None]
    energy = f", {sum(joules) / 3.6e6:.3g} kWh" if joules else ""
    print(f"\nGPU-hours of all attempts: {sum(entry['gpu_hours'] for entry in spent):.3g} ({source}){energy}")


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
