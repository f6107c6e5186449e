"""`hvdtrain retry|resume STUDY`: what failed, or was ended early, is submitted again, from any shell."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain import attempts, paths, record
from hvdtrain.errors import UserError, run_cli
from hvdtrain.submit import batch_script
from hvdtrain.submit.control import cells_of, only_slurm, parser_of
from hvdtrain.submit.options import split_job_arguments
from hvdtrain.submit.status import find_study
from hvdtrain.submit.study import INTERRUPTED, Again
from hvdtrain.submit.view import look

if TYPE_CHECKING:
    from hvdtrain.site.profile import Site

#: What `retry` and `resume` start again.
_FAILED = ("failed", "diverged", "unknown")
_RESUMABLE = (*INTERRUPTED, "timeout")
#: Options of retry and resume that become sbatch's, which win over the script's own.
_OVERRIDES = ("partition", "account", "qos", "time", "mem")


def retry(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain retry STUDY [CELL...]`: the cells that failed."""
    return run_cli(lambda words: _again("retry", words, _FAILED, "failed"), argv)


def resume(argv: Sequence[str] | None = None) -> int:
    """`hvdtrain resume STUDY [CELL...]`: the cells that were ended early, from their checkpoints."""
    return run_cli(lambda words: _again("resume", words, _RESUMABLE, "was ended early"), argv)


def _again(command: str, argv: Sequence[str], wanted: Sequence[str], what: str) -> int:
    parser = parser_of(
        command, f"Submit again what {what}, with the script that it has; it goes on from its checkpoints, if any."
    )
    for name in _OVERRIDES:
        parser.add_argument(f"--{name}", help="instead of what the cells were submitted with")
    parser.add_argument("--max-parallel", help="cells that may run at the same time")
    given = parser.parse_args(argv)
    folder = find_study(given.study)
    named = cells_of(folder, given.cells)
    if all(cell.cell.get("cluster") == "local" for cell in cells_of(folder, ())):
        return _again_here(folder, command, what, given)
    cells = _of_slurm(folder, named, bool(given.cells))
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
            print(f"nothing to {command}: no cell {'' if len(cells) == len(named) else 'on SLURM '}{what}")
            return 0
        scripts = {each.name: (study / each.name / "script.sh").read_text(errors="surrogateescape") for each in chosen}
        for name, script in scripts.items():
            _check_place(study / name, script)
        site = _site()
        allowed = site.limits
        limits.check_time(allowed, given.time, "--time")
        limits.check_jobs(allowed, len(chosen), f"{len(chosen)} cells")
        words = {name: _overrides(given, script, site) for name, script in scripts.items()}
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
                        submission = sbatch.submit(study, submission, text, [*words[batch.cells[0]], *after])
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


def _of_slurm(folder: Path, cells: Sequence[record.CellRecord], named: bool) -> list[record.CellRecord]:
    """Those that were handed to SLURM: the script of another would train without asking where its submit would.

    Raises:
        UserError: another was `named`, or there are no others.
    """
    found = [cell for cell in cells if cell.cell.get("cluster") == "slurm"]
    others = [cell for cell in cells if cell.cell.get("cluster") != "slurm"]
    left = [cell.folder.name for cell in others if named or (cell.result or {}).get("status") != "completed"]
    they, it = ("it", "it") if len(left) == 1 else ("they", "them")
    told = f"{', '.join(left)} ran without SLURM: the submit command goes on with {it}, --retry-failed if {they} failed"
    if named and left:
        raise UserError(told)
    only_slurm(folder, cells, "its submit command goes on with it")
    if left:
        print(f"note: {told}", file=sys.stderr)
    return found


def _check_place(folder: Path, script: str) -> None:
    """A study may have been renamed, moved or copied since its scripts were written, and they train where it was."""
    written = batch_script.argument(script, "--run-dir")
    if written is not None and not paths.same(Path(written), folder):
        study = folder.parent
        place = shlex.join(["--out", str(study.parent), "--study", study.name])
        raise UserError(
            f"the script of {folder.name} trains in {written}, not in {study}. The study's submit command, with "
            f"{place} --retry-failed among its options, writes scripts for the place where it is now"
        )


def _overrides(given: argparse.Namespace, script: str, site: Site) -> list[str]:
    """Words for sbatch that win over a script's own. Scripts of one batch have the same directives, and so the same words.

    Raises:
        UserError: memory is wanted where nobody asks for any.
    """
    names = {name: name for name in _OVERRIDES if getattr(given, name) is not None}
    if "mem" in names:
        # Beside another of them in the script sbatch would refuse it.
        own = [each for each in batch_script.MEMORY.values() if batch_script.value(script, each) is not None]
        found = own[0] if own else batch_script.MEMORY.get(site.memory)
        if found is None:
            raise UserError(
                f'--mem {given.mem}: nobody asks for memory here (memory = "none" in the site profile); leave it out'
            )
        names["mem"] = found
    return [f"--{directive}={getattr(given, name)}" for name, directive in names.items()]


def _site() -> Site:
    """The profile that counts in this folder."""
    from hvdtrain.site import detect, files

    detected = files.Layer(files.DETECTED, detect.profile(detect.look()))
    return files.combine([detected, *files.layers(Path.cwd(), None)]).site


def _again_here(folder: Path, command: str, what: str, given: argparse.Namespace) -> int:
    """Cells of this machine: the study's own requests, given again where they were given, go on with what is left."""
    if given.cells or any(getattr(given, name) is not None for name in (*_OVERRIDES, "max_parallel")):
        raise UserError(f"the study {folder} runs on this machine: {command} takes its name and nothing else")
    from hvdtrain.submit import cli
    from hvdtrain.submit.lock import StudyLock

    here = folder.resolve()  # before other folders are entered
    StudyLock(folder).close()  # that another submit works on it is said once, not for each request
    study = record.read_json(folder / "study.json") or {}
    worst, done = 0, frozenset[str]()
    for directory, argv in _requests(study.get("requests") or [], retry=command == "retry"):
        try:
            _enter(directory, argv)
            # A cell of several requests is run for the first of them.
            ended = cli.submit(argv, again=Again(here, command == "retry", done))
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
