"""`hvdtrain status STUDY`: how far every cell is, from any shell: the run folders, and SLURM's queue."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hvdtrain import record
from hvdtrain.errors import UserError, nearest, run_cli
from hvdtrain.submit import summary
from hvdtrain.submit.view import look

_WATCH_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return run_cli(_status, argv)


def _status(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="hvdtrain status", description="How far every cell of a study is.")
    parser.add_argument("study", metavar="STUDY", help="a study's folder, or its name below runs/")
    parser.add_argument("--json", action="store_true", help="as a JSON list on standard output")
    parser.add_argument("--watch", action="store_true", help="again and again, until all cells have ended")
    given = parser.parse_args(argv)
    folder = find_study(given.study)
    if not given.watch:
        _show(folder, given.json)
        return 0
    while True:
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        print(time.strftime("%H:%M:%S"), flush=True)
        if not _show(folder, given.json):
            return 0
        time.sleep(_WATCH_SECONDS)


def _show(folder: Path, as_json: bool) -> bool:
    """Print the study's state; whether anything in it may still change."""
    view = look(folder, read_study(folder))
    for note in view.notes:
        print(f"note: {note}", file=sys.stderr)
    rows = [summary.row(cell) for cell in view.cells]
    rows.sort(key=lambda row: [int(part) if part.isdigit() else part for part in _pieces(str(row["cell"]))])
    if as_json:
        print(json.dumps(rows, indent=1), flush=True)
    else:
        summary.print_table(rows)
        summary.print_reasons(rows)
        summary.print_hours(rows)
    return any(cell.may_change for cell in view.cells)


def read_study(folder: Path) -> list[record.CellRecord]:
    """All cells of a study.

    Raises:
        UserError: a record is damaged.
    """
    try:
        return record.read_study(folder)
    except ValueError as error:
        raise UserError(f"a record in the study {folder} is damaged: {error}") from error


def find_study(text: str) -> Path:
    """The study folder: as given, or below `runs`.

    Raises:
        UserError: there is no such study; names the nearest.
    """
    for folder in (Path(text), Path("runs") / text):
        if (folder / "study.json").is_file():
            return folder
    there = sorted(path.parent.name for path in Path("runs").glob("*/study.json"))
    known = f"; studies in runs: {', '.join(there)}" if there else "; there are no studies in runs"
    raise UserError(f'there is no study "{text}" (a folder with a study.json){known}{nearest(text, there)}')


def _pieces(name: str) -> list[str]:
    """`n16-b8` as `["n", "16", "-b", "8", ""]`: so that 2 comes before 16."""
    pieces = [""]
    for letter in name:
        if pieces[-1] and letter.isdigit() != pieces[-1].isdigit():
            pieces.append("")
        pieces[-1] += letter
    return pieces
