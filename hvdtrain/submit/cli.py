"""`hvdtrain submit`: from the command line to run folders."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.errors import UserError, run_cli
from hvdtrain.submit import options

if TYPE_CHECKING:
    from hvdtrain.submit.cell import Cell
    from hvdtrain.submit.request import Request
    from hvdtrain.submit.study import Again, Plan
    from hvdtrain.submit.transports import Transport


@dataclass(frozen=True)
class Ended:
    """How a request ended: the exit status, whether it was stopped, and the names of the cells that it was to run."""

    status: int
    stopped: bool = False
    ran: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0 all cells succeeded, 1 some did not, 2 the request was wrong."""
    return run_cli(lambda words: submit(words).status, argv)


def submit(argv: Sequence[str], *, again: Again | None = None) -> Ended:
    """One request. Given `again`, one that has nothing to run leaves no trace: neither a line, nor in the study.

    Raises:
        UserError: the request is wrong.
    """
    given = options.parse(list(argv))
    # Below this line --help is answered already; what it does not need is imported only now.
    from hvdtrain.submit import grid, request, study, transports

    transport = transports.choose(given)
    wanted = request.read(given, transport.name, Path.cwd())
    if again is not None:
        wanted = wanted.within(again.folder)
    wanted, decided = transport.resolve(wanted)
    if wanted.dry_run:
        cells, notes = grid.expand(wanted.grid, wanted.common, transport.shape)
        known = study.read_known(wanted.folder) if wanted.launcher_chosen else {}
        cells, kept = study.keep_launchers(cells, known)
        _say([*decided, *notes, *kept], sys.stderr)
        _print_scripts(cells, transport, wanted)
        return Ended(0)
    grid.expand(wanted.grid, wanted.common, transport.shape)  # mistakes of the request come before those of the machine
    notes = transport.look(wanted)
    cells, more = grid.expand(wanted.grid, wanted.common, transport.shape)
    try:
        return _run(list(argv), cells, [*decided, *more, *notes], transport, wanted, again)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(_cannot_write(error, wanted.folder)) from error


def _cannot_write(error: OSError, folder: Path) -> str:
    return f"cannot write {error.filename or folder}: {error.strerror}"


def _run(
    argv: list[str], cells: list[Cell], notes: list[str], transport: Transport, request: Request, again: Again | None
) -> Ended:
    from hvdtrain.submit import study
    from hvdtrain.submit.lock import NAME, StudyLock

    folder = request.folder
    study.read_known(folder)  # before anything is created
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as undo:
            study.make_folder(folder, undo)
            lock = held.enter_context(StudyLock(folder))
            # Cells whose study.json is missing are what a killed submit had begun, which the lock tells from a stranger's folder.
            if all(path.name == NAME for path in folder.iterdir()):
                undo.callback((folder / NAME).unlink, missing_ok=True)
            known = transport.review(folder, study.read_known(folder))
            cells, kept = study.keep_launchers(cells, known if request.launcher_chosen else {})
            plan = study.plan(cells, known, folder.name, retry_failed=request.retry_failed, again=again)
            if again is not None and not plan.run:
                return Ended(0)
            facts = _facts(argv, request)
            study.create(folder, plan.run, lambda cell: transport.script(cell, request), facts, undo)
            handed = transport.hand_over(request, plan, undo)
            undo.pop_all()
        _say([*notes, *kept, *plan.notes], sys.stdout)
        _announce(plan, folder)
        for line in handed:
            print(line, flush=True)
        if transport.name == "slurm" and not request.wait:
            _say_what_next(folder)
            return Ended(0)
        goes_on = _goes_on(folder, again)
        try:
            to_the_end = transport.run(request, plan, lock)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            # The request was right: what ended until now is recorded, and the study is as after Ctrl-C.
            print(f"error: stopped: {_cannot_write(error, folder)}; repaired, {goes_on}", file=sys.stderr)
            return Ended(1, stopped=True)
    succeeded = _summarize(plan, request, transport, to_the_end, goes_on)
    if request.then_report and to_the_end:
        succeeded = _report(folder) and succeeded
    ran = tuple(cell.name for cell in plan.run)
    return Ended(0 if succeeded and to_the_end else 1, stopped=not to_the_end, ran=ran)


def _goes_on(folder: Path, again: Again | None) -> str:
    if again is None or not again.failed_only:
        return "the same command goes on with the cells that have not completed"
    here = shlex.quote(str(folder))
    return (
        f"hvdtrain resume {here} goes on with the cell that was running, hvdtrain retry {here} with those that failed"
    )


def _facts(argv: list[str], request: Request) -> dict[str, Any]:
    from hvdtrain.submit import provenance

    return {
        "argv": [*request.from_file, *argv],
        "directory": str(request.directory),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "git": provenance.code(request.common.job.path),
        "versions": provenance.versions(),
    }


def _say(notes: Sequence[str], stream: Any) -> None:
    for note in notes:
        print(f"note: {note}", file=stream, flush=True)


def _print_scripts(cells: Sequence[Cell], transport: Transport, request: Request) -> None:
    more = transport.more_scripts(list(cells), request)  # which may have a mistake to tell
    for cell in cells:
        text = f"#### {cell.name}: {request.cell_folder(cell.name) / 'script.sh'}\n{transport.script(cell, request)}"
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    for heading, text in more:
        sys.stdout.buffer.write(f"#### {heading}\n{text}".encode(errors="surrogateescape"))
    sys.stdout.buffer.flush()


def _announce(plan: Plan, folder: Path) -> None:
    parts = [f"{len(plan.run)} to run"]
    parts += [f"{len(plan.finished)} finished already"] if plan.finished else []
    parts += [f"{len(plan.waiting)} in the queue already"] if plan.waiting else []
    parts += [f"{len(plan.failed)} failed before (--retry-failed runs them again)"] if plan.failed else []
    total = len(plan.cells)
    print(f"study {folder}: {total} cell{'' if total == 1 else 's'}: {', '.join(parts)}", flush=True)


def _say_what_next(folder: Path) -> None:
    """The jobs go on without us."""
    here = shlex.quote(str(folder))
    print(
        f"next: hvdtrain status {here} --watch   (or logs, cancel), then python -m analysis report {here}", flush=True
    )


def _summarize(plan: Plan, request: Request, transport: Transport, to_the_end: bool, goes_on: str) -> bool:
    """Print the table and what to type next; whether every cell of the grid has completed."""
    from hvdtrain import record
    from hvdtrain.submit import summary, view

    cells = [record.read_cell(request.cell_folder(cell.name)) for cell in plan.cells]
    if transport.name == "slurm":
        views = view.look(request.folder, cells).cells
    else:  # the lock is ours, so nothing runs any more
        views = [view.CellView(cell, view.recorded(cell, in_use=False)) for cell in cells]
    states = [each.status for each in views]
    print()
    summary.print_table([summary.row(each) for each in views])
    print()
    for name in plan.failed:
        result = record.read_json(request.cell_folder(name) / "result.json") or {}
        print(f"{name} {result.get('status')} in an earlier call: {result.get('reason')}")
    if not to_the_end:
        print(f"stopped; {goes_on}")
    elif set(states) - {"completed"}:
        print("the same command with --retry-failed runs the failed cells again")
    if not (request.then_report and to_the_end):
        print(f"next: python -m analysis report {shlex.quote(str(request.folder))}", flush=True)
    return set(states) == {"completed"}


def _report(folder: Path) -> bool:
    """Run the report; it prints for itself."""
    code = subprocess.run([sys.executable, "-m", "analysis", "report", str(folder)], check=False).returncode
    if code != 0:
        print(f"error: the report ended with exit status {code}; the cells are recorded all the same", file=sys.stderr)
    return code == 0
