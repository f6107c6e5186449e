"""`hvdtrain status STUDY`: how far every cell is, read from the run folders alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from hvdtrain import record
from hvdtrain.errors import UserError, nearest, run_cli
from hvdtrain.submit import lock, summary


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return run_cli(_status, argv)


def _status(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="hvdtrain status", description="How far every cell of a study is.")
    parser.add_argument("study", metavar="STUDY", help="a study's folder, or its name below runs/")
    parser.add_argument("--json", action="store_true", help="as a JSON list on standard output")
    given = parser.parse_args(argv)
    folder = find_study(given.study)
    try:
        cells = record.read_study(folder)
    except ValueError as error:
        raise UserError(f"a record in the study {folder} is damaged: {error}") from error
    in_use = lock.in_use(folder)
    rows = [summary.row(cell, state(cell, in_use)) for cell in cells]
    rows.sort(key=lambda row: [int(part) if part.isdigit() else part for part in _pieces(str(row["cell"]))])
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        summary.print_table(rows)
    return 0


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


def state(cell: record.CellRecord, in_use: bool) -> str:
    """`pending`, `running`, `interrupted`, or how the cell ended. `in_use`: whether a submit works on the study."""
    if cell.result is not None:
        return str(cell.result["status"])
    if cell.running is None:
        return "pending"
    # A local cell ends with its submit, and a power cut removes no file. Only the scheduler knows of others.
    return "running" if in_use or cell.cell.get("cluster") != "local" else "interrupted"


def _pieces(name: str) -> list[str]:
    """`n16-b8` as `["n", "16", "-b", "8", ""]`: so that 2 comes before 16."""
    pieces = [""]
    for letter in name:
        if pieces[-1] and letter.isdigit() != pieces[-1].isdigit():
            pieces.append("")
        pieces[-1] += letter
    return pieces
