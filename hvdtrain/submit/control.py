"""`hvdtrain logs|cancel STUDY`: from any shell, by what the study's folder holds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hvdtrain import record
from hvdtrain.errors import UserError, nearest, run_cli
from hvdtrain.submit.status import find_study, read_study
from hvdtrain.submit.view import CellView, look

_POLL_SECONDS = 0.5


def logs(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain logs STUDY [CELL...]`."""
    return run_cli(_logs, argv)


def cancel(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain cancel STUDY [CELL...]`."""
    return run_cli(_cancel, argv)


def parser_of(command: str, description: str) -> argparse.ArgumentParser:
    """What all commands take that look after a study."""
    parser = argparse.ArgumentParser(prog=f"hvdtrain {command}", description=description)
    parser.add_argument("study", metavar="STUDY", help="a study's folder, or its name below runs/")
    parser.add_argument("cells", metavar="CELL", nargs="*", help="only these cells (default: all)")
    return parser


def cells_of(folder: Path, names: Sequence[str]) -> list[record.CellRecord]:
    """The cells with these names, all where none is named.

    Raises:
        UserError: the study has no such cell, or a record is damaged.
    """
    cells = read_study(folder)
    legal = [cell.folder.name for cell in cells]
    for name in names:
        if name not in legal:
            raise UserError(f'the study {folder} has no cell "{name}"; it has {", ".join(legal)}{nearest(name, legal)}')
    return [cell for cell in cells if not names or cell.folder.name in names]


# --- logs ---------------------------------------------------------------------------------------------------------


def _logs(argv: Sequence[str]) -> int:
    parser = parser_of("logs", "What the cells of a study print.")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the cells have ended")
    parser.add_argument("-n", "--lines", type=int, default=20, help="last lines of each log (default 20)")
    parser.add_argument("--rank", type=int, default=0, help="of this rank (default 0, and SLURM's own words)")
    given = parser.parse_args(argv)
    folder = find_study(given.study)
    names = [cell.folder.name for cell in cells_of(folder, given.cells)]
    file = "job.log" if given.rank == 0 else f"rank-{given.rank}.log"
    followed = [_Log(folder / name / "log" / file, name if len(names) > 1 else "") for name in names]
    for log in followed:
        log.last(given.lines)
    while given.follow:
        live = any(view.may_change for view in look(folder, cells_of(folder, names)).cells)
        end = time.monotonic() + (5.0 if live else 0.0)
        while True:
            for log in followed:
                log.new()
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
        if not live:
            break
    if not given.follow:
        for log in followed:
            if not log.path.exists():
                print(f"note: {log.path} does not exist yet", file=sys.stderr)
    return 0


class _Log:
    """One log file, printed line by line with its cell's name where there are several."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self._prefix = f"{label} | " if label else ""
        self._at = 0

    def last(self, lines: int) -> None:
        """Print the last lines."""
        text = self._read()
        for line in text.splitlines()[-lines:] if lines > 0 else []:
            print(f"{self._prefix}{line}", flush=True)

    def new(self) -> None:
        """Print what has been added."""
        for line in self._read().splitlines():
            print(f"{self._prefix}{line}", flush=True)

    def _read(self) -> str:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return ""
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half there
        self._at += len(whole)
        return whole.decode(errors="replace")


# --- cancel -------------------------------------------------------------------------------------------------------


def _cancel(argv: Sequence[str]) -> int:
    given = parser_of("cancel", "End the jobs of a study, waiting or running.").parse_args(argv)
    folder = find_study(given.study)
    cells = cells_of(folder, given.cells)
    only_slurm(folder, cells, "press Ctrl-C where it was submitted")
    # A job may be in its last seconds when its cell has completed already.
    live = [view for view in look(folder, cells, must_answer=True).cells if view.live and view.status != "completed"]
    if not live:
        print("nothing to cancel: no job of these cells waits or runs")
        return 0
    from hvdtrain.site import commands
    from hvdtrain.submit import submissions

    names = {view.name for view in live}
    touched = [submission for submission in submissions.read(folder) if names & {*submission.cells}]

    def note(submission: submissions.Submission, cancelled: Iterable[str]) -> None:
        try:
            submissions.update(folder, submission, cancelled=tuple(cancelled))
        except OSError as error:  # a full disk is a reason to cancel
            print(f"note: not written down: {error.filename}: {error.strerror}", file=sys.stderr)

    # First the note, then the deed: whoever looks in between sees a cell that is being cancelled.
    for submission in touched:
        note(submission, sorted({*submission.cancelled, *(names & {*submission.cells})}))
    try:
        commands.call(["scancel", *_compact(live)])
    except commands.SlurmError:
        for submission in touched:
            note(submission, submission.cancelled)
        raise
    for view in live:
        print(f"cancelled {view.name} (job {view.job}, {view.status})")
    return 0


def _compact(views: Sequence[CellView]) -> list[str]:
    return sorted({view.job for view in views if view.job is not None})


def only_slurm(folder: Path, cells: Sequence[record.CellRecord], instead: str) -> None:
    """Raise UserError, which says what to do `instead`, for a study that is none of SLURM's."""
    if not any(cell.cell.get("cluster") == "slurm" for cell in cells):
        raise UserError(f"the study {folder} was not submitted to SLURM: {instead}")
