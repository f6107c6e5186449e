"""The folder of a study: what is there, what of a grid has still to run, and writing it down."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain import record
from hvdtrain.errors import UserError
from hvdtrain.submit import lock, submissions
from hvdtrain.submit.cell import Cell, differences, fingerprint
from hvdtrain.submit.states import LIVE

#: Ended without anybody's fault: run again when asked for again.
INTERRUPTED = ("cancelled", "preempted", "not submitted")
#: Names of cells in one note.
_LISTED = 8


@dataclass(frozen=True)
class Known:
    """A cell that the study holds already; `status` is None when it never ended."""

    facts: Mapping[str, Any]
    status: str | None


@dataclass(frozen=True)
class Plan:
    """What of a grid runs now, and what does not: `finished` already, `failed` before and left alone, or
    `waiting`: in a queue or running.

    `cells` is the whole grid in its order, under the names that the study has for it.
    """

    cells: tuple[Cell, ...]
    run: tuple[Cell, ...]
    finished: tuple[str, ...]
    failed: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Again:
    """What `retry` and `resume` leave out of a request: cells in `done`, which their call has run for an earlier one, and,
    with `failed_only`, what was interrupted or never began. `folder` is the study's, which may have been renamed since.
    """

    folder: Path
    failed_only: bool
    done: frozenset[str] = frozenset()

    def takes(self, name: str, status: str | None) -> bool:
        """Whether a cell that has not completed is run."""
        begun = status is not None and status not in INTERRUPTED
        return name not in self.done and (begun or not self.failed_only)


def plan(
    cells: Sequence[Cell], known: Mapping[str, Known], study: str, *, retry_failed: bool, again: Again | None = None
) -> Plan:
    """Decide for each cell whether it runs. Pure. What `again` leaves out is not in the plan at all.

    Raises:
        UserError: the study has a cell of the same name that is another configuration; says what differs.
    """
    by_hash = {fingerprint(cell.facts): name for name, cell in known.items()}
    named, notes = [], []
    for cell in cells:
        other = by_hash.get(fingerprint(cell.record()))
        if cell.name not in known and other is not None:
            notes.append(f"{cell.name} is the same configuration as {other}, which the study has already")
            cell = replace(cell, name=other)
        named.append(cell)
    conflicts = {
        cell.name: changes
        for cell in named
        if cell.name in known and (changes := differences(known[cell.name].facts, cell.record()))
    }
    if conflicts:
        name, changes = next(iter(conflicts.items()))
        more = f" (and {len(conflicts) - 1} more cells differ)" if len(conflicts) > 1 else ""
        raise UserError(
            f'the study "{study}" already has a cell {name} with another configuration: {"; ".join(changes)}{more}. '
            f"Nothing was changed. Give this grid a study of its own: --study {study}-2"
        )
    run, finished, failed, waiting = [], [], [], []
    left = set()
    for cell in named:
        status = known[cell.name].status if cell.name in known else None
        if status == "completed":
            finished.append(cell.name)
        elif status in LIVE:
            waiting.append(cell.name)
        elif again is not None and not again.takes(cell.name, status):
            left.add(cell.name)
        elif status is None or status in INTERRUPTED or retry_failed:
            run.append(cell)
        else:
            failed.append(cell.name)
    named = [cell for cell in named if cell.name not in left]
    return Plan(tuple(named), tuple(run), tuple(finished), tuple(failed), tuple(waiting), tuple(notes))


def keep_launchers(cells: Sequence[Cell], known: Mapping[str, Known]) -> tuple[list[Cell], list[str]]:
    """The cells, those that the study has with the launcher that it has them with, and notes. For a launcher that nobody named.

    What is chosen for some sizes may not be what was chosen for others, and what has been measured stays as it is.
    """
    by_hash = {_without_launcher(cell.facts): cell for cell in known.values()}
    kept: dict[str, list[str]] = {}
    result = []
    for cell in cells:
        same = known.get(cell.name) or by_hash.get(_without_launcher(cell.record()))
        launcher = cell.launcher if same is None else str(same.facts.get("launcher", cell.launcher))
        if launcher != cell.launcher:
            kept.setdefault(launcher, []).append(cell.name)
        result.append(replace(cell, launcher=launcher))
    new = {cell.launcher for cell in cells}
    notes = [
        f"launcher {launcher} stays with what the study has ({_listed(names)}); other cells take {', '.join(new)}: for {launcher} "
        f"there too give --launcher {launcher}"
        for launcher, names in kept.items()
    ]
    return result, notes


def _without_launcher(facts: Mapping[str, Any]) -> str:
    return fingerprint({**facts, "launcher": None})


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"


def read_known(folder: Path) -> dict[str, Known]:
    """The cells in a study folder, by name; none when there is no study yet.

    Raises:
        UserError: the folder holds something else, or a record in it is damaged.
    """
    try:
        strangers = {path.name for path in folder.iterdir()} - {lock.NAME, submissions.FOLDER}
        # Something half-created carries our lock; anything else is not ours to fill.
        if strangers and not (folder / "study.json").exists() and not (folder / lock.NAME).exists():
            raise UserError(
                f"the folder {folder} exists and is not a study (it has no study.json); give another --study or --out"
            )
        known = {}
        for path in sorted(folder.glob("*/cell.json")):
            result = record.read_json(path.with_name("result.json"))
            known[path.parent.name] = Known(record.read_json(path) or {}, None if result is None else result["status"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as error:
        raise UserError(f"a record in the study {folder} is damaged: {error}; repair or remove that file") from error
    return known


def write_cell(folder: Path, cell: Cell, script: str) -> None:
    """`script.sh`, then `cell.json`, whose presence makes the folder a cell."""
    (folder / "log").mkdir(parents=True, exist_ok=True)
    aside = folder / f".script.sh.{os.getpid()}"
    try:
        with open(aside, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(script)
        aside.chmod(0o755)
        os.replace(aside, folder / "script.sh")
    finally:
        aside.unlink(missing_ok=True)
    record.write_json(folder / "cell.json", cell.record())


def make_folder(folder: Path, undo: contextlib.ExitStack) -> None:
    """Create `folder` and its parents; `undo` takes away what was not there before and is empty."""
    for each in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            each.mkdir()
            undo.callback(_remove_if_empty, each)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def keep(file: Path, undo: contextlib.ExitStack) -> None:
    """`undo` gives `file` back what is in it now, or takes it away when it is not there."""
    undo.callback(_restore, file, file.read_bytes() if file.exists() else None)


def _restore(file: Path, before: bytes | None) -> None:
    if before is None:
        file.unlink(missing_ok=True)
        return
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_bytes(before)
        shutil.copymode(file, aside)
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def create(
    folder: Path,
    cells: Sequence[Cell],
    script: Callable[[Cell], str],
    request: Mapping[str, Any],
    undo: contextlib.ExitStack,
) -> None:
    """Write the new ones among `cells` and note the request in `study.json`; `undo` takes back both, and nothing else."""
    for cell in cells:
        where = folder / cell.name
        if (where / "cell.json").exists():
            continue
        if where.exists():  # a training that was started by hand has its records there
            for file in ("script.sh", "cell.json"):
                keep(where / file, undo)
        else:
            undo.callback(shutil.rmtree, where, ignore_errors=True)
        write_cell(where, cell, script(cell))
    keep(folder / "study.json", undo)
    study = record.read_json(folder / "study.json") or {
        "study": folder.name,
        "created": request["created"],
        "requests": [],
    }
    record.write_json(folder / "study.json", {**study, "requests": [*study["requests"], request]})
