"""Waiting for the jobs of a study, with a line for each that changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hvdtrain import record
from hvdtrain.submit import progress, summary
from hvdtrain.submit.states import LIVE
from hvdtrain.submit.stop import Stop
from hvdtrain.submit.view import CellView, look

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 15.0


def until_ended(folder: Path, names: Sequence[str]) -> bool:
    """Return True when none of the cells is SLURM's business any more, False when the user stopped waiting."""
    seen: dict[str, str] = {}
    pause = _FIRST_SECONDS
    with Stop() as stop:
        while True:
            cells = [record.read_cell(folder / name) for name in names]
            view = look(folder, cells)
            changed = [cell for cell in view.cells if seen.get(cell.name) != cell.status] if view.answered else []
            for cell in changed:
                seen[cell.name] = cell.status
                print(f"{cell.name}: {_line(cell)}", flush=True)
                if cell.status in ("failed", "diverged"):
                    print(summary.failure(cell.record.folder), flush=True)
            # A controller that does not answer for a while says nothing about the jobs. A job that has trained still writes down
            # what SLURM knows of it.
            if view.answered and not any(cell.may_change for cell in view.cells):
                return True
            pause = _FIRST_SECONDS if changed else min(_LONGEST_SECONDS, pause * 1.3)
            end = time.monotonic() + pause
            while time.monotonic() < end and not stop.asked:
                time.sleep(0.1)
            if stop.asked:
                print("no longer waiting; the jobs go on (hvdtrain cancel ends them)", flush=True)
                return False


def _line(cell: CellView) -> str:
    result = cell.record.result
    if result is not None and cell.status == result["status"]:
        return progress.ended_text(result)
    where = f" on {cell.nodes}" if cell.nodes and cell.status in LIVE else ""
    job = f" (job {cell.job})" if cell.job else ""
    return f"{cell.status}{where}{job}" + (f": {cell.why}" if cell.why else "")
