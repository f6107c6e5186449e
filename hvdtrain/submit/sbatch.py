"""Handing scripts to SLURM through submitit, whose executor gets our text instead of its own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hvdtrain.site import commands
from hvdtrain.site.commands import SlurmError
from hvdtrain.submit import batch_script, queue, submissions
from hvdtrain.submit.submissions import Submission

#: Words of sbatch after which the job may or may not have been accepted.
_UNANSWERED = (
    "timed out",
    "Zero Bytes were transmitted",
    "Unexpected message received",
    "Connection refused",
    "reset by peer",
)
#: How long to look for such a job in the queue.
_SEARCH_SECONDS = 5.0
#: How long to wait for cancelled jobs to be gone: a job that runs has SLURM's KillWait, 30 seconds unless a site says otherwise.
_CANCEL_SECONDS = 40.0
#: Environment variables of sbatch whose names do not follow from the option's.
_VARIABLES = {"time": "SBATCH_TIMELIMIT", "array": "SBATCH_ARRAY_INX", "mem": "SBATCH_MEM_PER_NODE"}


class Refused(SlurmError):
    """SLURM does not take a submission; the message quotes it in full."""


class Unanswered(SlurmError):
    """Nobody knows whether SLURM took a submission; its intent stays on record."""


def submit(study: Path, submission: Submission, script: str, words: Sequence[str] = ()) -> Submission:
    """Submit, and note the job's number; `words` are further options for sbatch, which win over the script's.

    Whatever ends it but `Unanswered` leaves neither a job nor a record.

    Raises:
        Refused: SLURM said no.
        Unanswered: it said nothing, or does not end what is to go.
        OSError: the number cannot be noted.
    """
    number = None
    try:
        try:
            with _environment(script, words):
                number = _through_submitit(script, submission.name, words)
        except Refused as error:
            number = _look_for(submission, error) if _is_no_answer(error) else None
            if number is None:
                raise
        return submissions.update(study, submission, job=number, overrides=tuple(words))
    except Unanswered:
        raise
    except BaseException as error:
        if not isinstance(error, Refused):
            try:
                _withdraw(submission, number)
            except SlurmError as silent:
                raise Unanswered(
                    f"{str(error) or 'interrupted'}\n{silent}\nWhether SLURM has the job still is not known. When it answers, "
                    "`hvdtrain status` finds the job by its name, and `hvdtrain cancel` ends it."
                ) from error
        submissions.forget(study, submission)
        raise


def _withdraw(submission: Submission, number: str | None = None) -> None:
    """Ctrl-C, or a full disk: the job has to go, even if SLURM took it and nobody heard its number.

    Raises:
        SlurmError: SLURM does not answer.
    """
    if number is None:
        time.sleep(1.0)  # the question may be on its way still, and both ends may be slow
        number = submissions.find(submission, queue.live_and_recent().values())
    if number is not None:
        cancel([number])


def cancel(numbers: Sequence[str]) -> None:
    """End jobs that should not have been taken, and return when they are gone: what has begun writes a last record into its folder.

    Raises:
        SlurmError: SLURM does not answer.
    """
    commands.call(["scancel", *numbers])
    end = time.monotonic() + _CANCEL_SECONDS
    while time.monotonic() < end:
        jobs = queue.live_and_recent().values()
        if not any(job.live and job.id.partition("_")[0] in numbers for job in jobs):
            return
        time.sleep(0.5)


def submit_text(script: str, name: str, words: Sequence[str] = ()) -> str:
    """Submit a script that belongs to no cell, as a job with a name that no other has; returns the job's number.

    Raises:
        Refused: SLURM said no.
    """
    submission = Submission("", name, (name,), (), submissions.now())
    try:
        with _environment(script, words):
            return _through_submitit(script, name, words)
    except BaseException as error:
        if not isinstance(error, Refused) or _is_no_answer(error):
            try:
                _withdraw(submission)
            except SlurmError as silent:
                print(
                    f"note: {silent}\nnote: this ends the job, if SLURM has it: scancel --name={name}", file=sys.stderr
                )
        raise


def _is_no_answer(error: Refused) -> bool:
    return any(text in str(error) for text in _UNANSWERED)


def _through_submitit(script: str, name: str, words: Sequence[str]) -> str:
    from submitit.core.utils import FailedJobError, FailedSubmissionError
    from submitit.slurm.slurm import SlurmExecutor

    class Executor(SlurmExecutor):
        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return script

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            # submitit writes in the locale's encoding, and names may hold bytes that are no text.
            submission_file_path.write_bytes(script.encode(errors="surrogateescape"))
            return ["sbatch", *words, str(submission_file_path)]

    said = io.StringIO()
    # Not the study's own folder: in its path submitit would replace %j and the like.
    folder = tempfile.mkdtemp(prefix="hvdtrain-submit-")
    try:
        with contextlib.redirect_stderr(said):  # the error holds the same words
            return str(Executor(folder)._submit_command("").job_id)
    except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
        quoted = (str(error).strip() or said.getvalue().strip() or "it gave no reason").replace("\n", "\n  ")
        raise Refused(f"SLURM does not take the submission {name}:\n  {quoted}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(script: str, words: Sequence[str]) -> Iterator[None]:
    """While entered, the environment is free of an outer job's, and of defaults for sbatch that the script decides."""
    decided = [text.lstrip("-").partition("=")[0] for text in (*batch_script.directives(script), *words)]
    names = {_VARIABLES.get(name, f"SBATCH_{name.upper().replace('-', '_')}") for name in decided}
    clean = {name: value for name, value in commands.clean_environment().items() if name not in names}
    before = dict(os.environ)
    try:
        _become(clean)
        yield
    finally:
        _become(before)


def _become(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _look_for(submission: Submission, error: Refused) -> str | None:
    """The job of a submission that SLURM did not answer, None when it was not accepted."""
    end = time.monotonic() + _SEARCH_SECONDS
    while True:
        try:
            number = submissions.find(submission, queue.live_and_recent().values())
        except SlurmError as again:
            if time.monotonic() > end:
                raise Unanswered(
                    f"{error}\nSLURM does not answer questions either, so whether the job was accepted is not known. "
                    f"When it answers again, `hvdtrain status` finds the job by its name, and submitting doubles nothing.",
                ) from again
        else:
            if number is not None or time.monotonic() > end:
                return number
        time.sleep(1.0)
