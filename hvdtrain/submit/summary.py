"""What is printed when cells have ended: a table, and for a failed cell the end of its log."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.record import CellRecord
from hvdtrain.submit.attempt import tail

_LOG_LINES = 15
#: On a pipe nobody knows the width; wide enough that no cell of a table is broken.
_PIPE_COLUMNS = 160


def failure(folder: Path) -> str:
    """Where the log of a failed cell is, and its last lines."""
    path = folder / "log" / "job.log"
    lines = tail(path, _LOG_LINES)
    shown = "".join(f"\n    | {line}" for line in lines) or "\n    (it is empty)"
    return f"  log: {path}; its last lines:{shown}"


def row(cell: CellRecord, status: str) -> dict[str, Any]:
    """One line of the table. Times and rates are medians over the finished epochs."""
    total = cell.cell.get("epochs")
    epochs = len(cell.epochs)
    return {
        "cell": cell.folder.name,
        "status": status,
        "epochs": epochs,
        "epochs_total": total,
        "seconds_per_epoch": _median(epoch.seconds for epoch in cell.epochs),
        "samples_per_second": _median(epoch.samples_per_second for epoch in cell.epochs),
        "val_acc": cell.epochs[-1].val_acc if cell.epochs else None,
        "reason": (cell.result or {}).get("reason") or "",
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The rows on standard output, one line each."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("cell", "status"):
        table.add_column(heading, overflow="fold")
    for heading in ("epochs", "s/epoch", "samples/s", "val_acc"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in rows:
        total = "" if entry["epochs_total"] is None else f"/{entry['epochs_total']}"
        table.add_row(
            entry["cell"],
            entry["status"],
            f"{entry['epochs']}{total}",
            _number(entry["seconds_per_epoch"], ".3g"),
            _number(entry["samples_per_second"], ",.0f"),
            _number(entry["val_acc"], ".3f"),
        )
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    Console(width=width, markup=False, highlight=False).print(table)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
