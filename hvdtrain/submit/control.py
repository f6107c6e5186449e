"""`hvdtrain logs|cancel|retry|resume STUDY`: from any shell, by what the study's folder holds."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain import attempts, record
from hvdtrain.errors import UserError, nearest, run_cli
from hvdtrain.submit.options import split_job_arguments
from hvdtrain.submit.states import LIVE
from hvdtrain.submit.status import find_study, read_study
from hvdtrain.submit.study import INTERRUPTED, Again
from hvdtrain.submit.view import CellView, look

if TYPE_CHECKING:
    from hvdtrain.site.profile import Limits

#: What `retry` and `resume` start again.
_FAILED = ("failed", "diverged", "unknown")
_RESUMABLE = (*INTERRUPTED, "timeout")
#: Options of retry and resume that become sbatch's, which win over the script's own.
_OVERRIDES = ("partition", "account", "qos", "time", "mem")
_POLL_SECONDS = 0.5


def logs(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain logs STUDY [CELL...]`."""
    return run_cli(_logs, argv)


def cancel(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain cancel STUDY [CELL...]`."""
    return run_cli(_cancel, argv)


def retry(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain retry STUDY [CELL...]`: the cells that failed."""
    return run_cli(lambda words: _again("retry", words, _FAILED, "failed"), argv)


def resume(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain resume STUDY [CELL...]`: the cells that were ended early, from their checkpoints."""
    return run_cli(lambda words: _again("resume", words, _RESUMABLE, "was ended early"), argv)


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"hvdtrain {command}", description=description)
    parser.add_argument("study", metavar="STUDY", help="a study's folder, or its name below runs/")
    parser.add_argument("cells", metavar="CELL", nargs="*", help="only these cells (default: all)")
    return parser


def _cells(folder: Path, names: Sequence[str]) -> list[record.CellRecord]:
    cells = read_study(folder)
    legal = [cell.folder.name for cell in cells]
    for name in names:
        if name not in legal:
            raise UserError(f'the study {folder} has no cell "{name}"; it has {", ".join(legal)}{nearest(name, legal)}')
    return [cell for cell in cells if not names or cell.folder.name in names]


# --- logs ---------------------------------------------------------------------------------------------------------


def _logs(argv: Sequence[str]) -> int:
    parser = _parser("logs", "What the cells of a study print.")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the cells have ended")
    parser.add_argument("-n", "--lines", type=int, default=20, help="last lines of each log (default 20)")
    parser.add_argument("--rank", type=int, default=0, help="of this rank (default 0, and SLURM's own words)")
    given = parser.parse_args(argv)
    folder = find_study(given.study)
    names = [cell.folder.name for cell in _cells(folder, given.cells)]
    file = "job.log" if given.rank == 0 else f"rank-{given.rank}.log"
    followed = [_Log(folder / name / "log" / file, name if len(names) > 1 else "") for name in names]
    for log in followed:
        log.last(given.lines)
    while given.follow:
        live = any(view.live or view.status in LIVE for view in look(folder, _cells(folder, names)).cells)
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
    given = _parser("cancel", "End the jobs of a study, waiting or running.").parse_args(argv)
    folder = find_study(given.study)
    cells = _cells(folder, given.cells)
    _only_slurm(folder, cells, "press Ctrl-C where it was submitted")
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


# --- retry and resume ---------------------------------------------------------------------------------------------


def _again(command: str, argv: Sequence[str], wanted: Sequence[str], what: str) -> int:
    parser = _parser(
        command, f"Submit again what {what}, with the script that it has; it goes on from its checkpoints, if any."
    )
    for name in _OVERRIDES:
        parser.add_argument(f"--{name}", help="instead of what the cells were submitted with")
    parser.add_argument("--max-parallel", help="cells that may run at the same time")
    given = parser.parse_args(argv)
    folder = find_study(given.study)
    cells = _cells(folder, given.cells)
    if all(cell.cell.get("cluster") == "local" for cell in cells):
        return _again_here(folder, command, what, given)
    _only_slurm(folder, cells, "its submit command goes on with it")
    from hvdtrain.submit import limits, sbatch, submissions, values
    from hvdtrain.submit.batches import batches
    from hvdtrain.submit.lock import StudyLock

    parallel = None if given.max_parallel is None else values.count("--max-parallel", given.max_parallel)
    study = Path(os.path.abspath(folder))
    with StudyLock(folder):
        views = look(folder, cells, must_answer=True).cells
        chosen = [each for each in views if each.status in wanted and not each.live]
        others = [each for each in views if each.status not in wanted or each.live]
        if given.cells and others:
            raise UserError(
                "; ".join(f"{each.name} is {each.status}" for each in others) + f": {command} is for what {what}"
            )
        if not chosen:
            print(f"nothing to {command}: no cell {what}")
            return 0
        scripts = {each.name: (study / each.name / "script.sh").read_text(errors="surrogateescape") for each in chosen}
        allowed = _limits()
        limits.check_time(allowed, given.time, "--time")
        limits.check_jobs(allowed, len(chosen), f"{len(chosen)} cells")
        words = [f"--{name}={getattr(given, name)}" for name in _OVERRIDES if getattr(given, name) is not None]
        done: list[str] = []
        try:
            for batch in batches(scripts, array_size=allowed.array_size, max_parallel=parallel):
                after = [] if batch.after is None else [f"--dependency=afterany:{done[batch.after]}"]
                with contextlib.ExitStack() as undo:
                    for name in batch.cells:
                        undo.callback(attempts.put_back, study / name, attempts.set_aside(study / name))
                    submission, text = submissions.prepare(
                        study, {name: scripts[name] for name in batch.cells}, batch.parallel
                    )
                    try:
                        submission = sbatch.submit(study, submission, text, [*words, *after])
                    except sbatch.Unanswered:
                        undo.pop_all()  # SLURM may have taken it
                        raise
                    undo.pop_all()
                done.append(str(submission.job))
                print(f"submitted job {submission.job}: {', '.join(batch.cells)}", flush=True)
        except UserError as error:
            if done:
                raise UserError(f"{error}\nsubmitted before that: jobs {', '.join(done)}, which stay") from error
            raise
    return 0


def _limits() -> Limits:
    """What this site allows: the profile that counts in this folder."""
    from hvdtrain.site import detect, files

    detected = files.Layer("detected", detect.profile(detect.look()))
    return files.combine([detected, *files.layers(Path.cwd(), None)]).site.limits


def _again_here(folder: Path, command: str, what: str, given: argparse.Namespace) -> int:
    """Cells of this machine: the study's own requests, given again where they were given, go on with what is left."""
    if given.cells or any(getattr(given, name) is not None for name in (*_OVERRIDES, "max_parallel")):
        raise UserError(f"the study {folder} runs on this machine: {command} takes its name and nothing else")
    from hvdtrain.submit import cli
    from hvdtrain.submit.lock import StudyLock

    StudyLock(folder).close()  # that another submit works on it is said once, not for each request
    study = record.read_json(folder / "study.json") or {}
    worst, done = 0, frozenset[str]()
    for directory, argv in _requests(study.get("requests") or [], retry=command == "retry"):
        try:
            _enter(directory, argv)
            # A cell of several requests is run for the first of them.
            ended = cli.submit(argv, again=Again(command == "retry", done))
        except UserError as error:  # a request that is no longer legal holds up no other
            print(f"error: {error}", file=sys.stderr)
            ended = cli.Ended(2)
        worst, done = max(worst, ended.status), done | {*ended.ran}
        if ended.stopped:
            break
    if not done and worst == 0:
        print(f"nothing to {command}: no cell {what}")
    return worst


def _requests(given: Sequence[Mapping[str, Any]], retry: bool) -> list[tuple[str, list[str]]]:
    """The different ones among a study's requests, in their order: where each was given, and its words."""
    found = []
    for request in given:
        own, _ = split_job_arguments(request["argv"])
        again = [word for word in own if word != "--retry-failed"] + (["--retry-failed"] if retry else [])
        found.append((str(request["directory"]), [*again, *request["argv"][len(own) :]]))
    return [request for place, request in enumerate(found) if request not in found[:place]]


def _enter(directory: str, argv: Sequence[str]) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise UserError(
            f"{directory}: {error.strerror}; relative paths of a request mean what they meant there, so give its submit command "
            f"where its files are now: hvdtrain submit {shlex.join(argv)}"
        ) from error


def _only_slurm(folder: Path, cells: Sequence[record.CellRecord], instead: str) -> None:
    if not any(cell.cell.get("cluster") == "slurm" for cell in cells):
        raise UserError(f"the study {folder} was not submitted to SLURM: {instead}")
