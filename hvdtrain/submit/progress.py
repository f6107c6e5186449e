"""What the user sees while cells run: one line per event on a pipe, live bars on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hvdtrain.errors import printable
from hvdtrain.record import Epoch
from hvdtrain.submit import estimate
from hvdtrain.submit.cell import Cell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: A pipe gets a line per epoch, but not more often than this; the last epoch is in the line that ends the cell.
_LINE_SECONDS = 2.0


@dataclass
class View:
    """What is known while a study runs. `ended` holds `(ranks, seconds)` of cells that have completed."""

    cells: Sequence[Cell]
    ended: list[tuple[int, float]] = field(default_factory=list)
    index: int = -1
    epochs: list[Epoch] = field(default_factory=list)
    began: float = 0.0
    study_began: float = field(default_factory=time.monotonic)

    @property
    def cell(self) -> Cell:
        """The cell that runs."""
        return self.cells[self.index]

    @property
    def place(self) -> str:
        """`[2/6] n4-b32`."""
        return f"[{self.index + 1}/{len(self.cells)}] {self.cell.name}"

    def elapsed(self) -> float:
        """Seconds since the cell began."""
        return time.monotonic() - self.began

    def remaining(self) -> tuple[float | None, float | None]:
        """Seconds left of the cell and of the study; None when they cannot be told yet."""
        elapsed, gpus = self.elapsed(), self.cell.gpus
        current = estimate.cell_remaining(
            self.epochs, self.cell.epochs, elapsed, estimate.usual_seconds(gpus, self.ended)
        )
        pending = [cell.gpus for cell in self.cells[self.index + 1 :]]
        return current, estimate.study_remaining(current, elapsed, gpus, pending, self.ended)


class Display(Protocol):
    """Shows a `View`; used as a context manager around the cells."""

    def __enter__(self) -> Display:
        """Begin to draw."""

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""

    def say(self, text: str) -> None:
        """Print lines that stay."""

    def started(self) -> None:
        """A cell begins."""

    def tick(self, new_epochs: bool) -> None:
        """A few times a second while a cell runs."""

    def ended(self, result: Mapping[str, Any]) -> None:
        """A cell has ended with this `result.json`."""


def make_display(view: View) -> Display:
    """Live bars if standard output is a terminal that can draw them, else lines."""
    if sys.stdout.isatty():
        from rich.console import Console

        if not Console().is_dumb_terminal:
            return TerminalDisplay(view)
    return LineDisplay(view)


def ranks_text(cell: Cell) -> str:
    """`4 ranks`."""
    return f"{cell.gpus} rank{'s' if cell.gpus > 1 else ''}"


def epoch_text(epoch: Epoch, total: int | None) -> str:
    """`epoch 3/10  val_acc 0.912`; the accuracy only where there is one."""
    of = "" if total is None else f"/{total}"
    accuracy = "" if epoch.val_acc is None else f"  val_acc {epoch.val_acc:.3f}"
    return f"epoch {epoch.epoch}{of}{accuracy}"


def ended_text(result: Mapping[str, Any]) -> str:
    """`completed: 10 epochs in 14 s, val_acc 0.957`, or the status and the reason."""
    totals = result.get("totals") or {}
    if result["status"] != "completed":
        return f"{result['status']}: {result.get('reason') or 'no reason was recorded'}"
    accuracy = totals.get("val_acc")
    epochs = totals.get("epochs", 0)
    took = "" if result.get("seconds") is None else f" in {estimate.shown(result['seconds'])}"
    shown = "" if accuracy is None else f", val_acc {accuracy:.3f}"
    return f"completed: {epochs} epoch{'' if epochs == 1 else 's'}{took}{shown}"


class LineDisplay:
    """Lines that can be kept in a file."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._said = 0.0

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def say(self, text: str) -> None:
        """Print lines that stay."""
        print(printable(text), flush=True)

    def started(self) -> None:
        """A cell begins."""
        self.say(f"{self.view.place}: {ranks_text(self.view.cell)}")
        self._said = 0.0

    def tick(self, new_epochs: bool) -> None:
        """One line for the newest epoch, unless one was printed just now."""
        view, now = self.view, time.monotonic()
        if not new_epochs or now - self._said < _LINE_SECONDS:
            return
        self._said = now
        each = estimate.seconds_per_epoch(view.epochs)
        rate = view.epochs[-1].samples_per_second
        parts = [f"{view.place}: {epoch_text(view.epochs[-1], view.cell.epochs)}"]
        parts += [] if each is None else [f"{each:.3g} s/epoch"]
        parts += [] if rate is None else [f"{rate:,.0f} samples/s"]
        cell, study = view.remaining()
        parts += [] if cell is None else [f"left: {estimate.shown(cell)}, of the study {estimate.shown(study)}"]
        self.say("  ".join(parts))

    def ended(self, result: Mapping[str, Any]) -> None:
        """A cell has ended."""
        self.say(f"{self.view.place}: {ended_text(result)}")


class TerminalDisplay:
    """Two bars, study and cell, below the lines that stay. Drawn by the main thread only."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._bars, self._study, self._cell = _bars(len(view.cells))

    def __enter__(self) -> TerminalDisplay:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Print lines that stay, above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def started(self) -> None:
        """A cell begins."""
        self._bars.reset(self._cell, total=self.view.cell.epochs, description=self.view.place, visible=True)
        self.tick(new_epochs=False)

    def tick(self, new_epochs: bool) -> None:
        """Draw."""
        view = self.view
        cell, study = view.remaining()
        seen = epoch_text(view.epochs[-1], view.cell.epochs) if view.epochs else "before the first epoch"
        done = view.epochs[-1].epoch if view.epochs else 0
        self._bars.update(
            self._cell, completed=done, state=f"{ranks_text(view.cell)}  {seen}", times=_times(view.elapsed(), cell)
        )
        whole = time.monotonic() - view.study_began
        part = done / view.cell.epochs if view.cell.epochs else 0
        self._bars.update(self._study, completed=view.index + part, times=_times(whole, study))
        self._bars.refresh()

    def ended(self, result: Mapping[str, Any]) -> None:
        """A cell has ended."""
        self._bars.update(self._cell, visible=False)
        self._bars.update(self._study, completed=self.view.index + 1)
        self.say(f"{self.view.place}: {ended_text(result)}")


def _times(elapsed: float, remaining: float | None) -> str:
    left = "" if remaining is None else f", {estimate.shown(remaining)} left"
    return f"{estimate.shown(elapsed)}{left}"


def _bars(cells: int) -> tuple[Progress, TaskID, TaskID]:
    from rich.progress import BarColumn, Progress, TextColumn

    columns = [
        TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[state]", "fields[times]")
    ]
    # auto_refresh would draw from a thread, and forking a process with threads in it may deadlock.
    bars = Progress(columns[0], BarColumn(bar_width=24), *columns[1:], auto_refresh=False)
    study = bars.add_task("study", total=cells, state=f"{cells} cell{'' if cells == 1 else 's'}", times="")
    return bars, study, bars.add_task("", total=None, visible=False, state="", times="")
