"""How far every cell of a study is: our own records, and what SLURM says, brought together."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.record import CellRecord, read_cell
from hvdtrain.site.commands import SlurmError
from hvdtrain.submit import lock, queue, submissions, usage
from hvdtrain.submit.queue import Job
from hvdtrain.submit.states import LIVE
from hvdtrain.submit.submissions import Submission
from hvdtrain.submit.usage import Spent

#: Statuses that our record has, but that scancel overrules: told to stop, ranks note that they may be started again.
_UNFINISHED = ("preempted", "timeout")


@dataclass(frozen=True)
class CellView:
    """One cell, as `status` shows it.

    `why` says why it waits, or how it ended; `live` that SLURM may not be done with its job; `idle` that nobody is there to run it.
    """

    record: CellRecord
    status: str
    why: str = ""
    job: str | None = None
    nodes: str = ""
    elapsed: str = ""
    start: str = ""
    spent: Spent | None = None
    live: bool = False
    idle: bool = False

    @property
    def may_change(self) -> bool:
        """Whether waiting for it makes sense."""
        return self.live or (self.status in LIVE and not self.idle)

    @property
    def name(self) -> str:
        """The cell's name."""
        return self.record.folder.name


@dataclass(frozen=True)
class StudyView:
    """All cells, and what the user should know about how they were looked at."""

    cells: Sequence[CellView]
    notes: Sequence[str] = ()
    answered: bool = True


def look(folder: Path, cells: Sequence[CellRecord], *, must_answer: bool = False) -> StudyView:
    """The cells of the study in `folder`. Asks SLURM only where cells were submitted to it: one squeue, one sacct.

    Raises:
        SlurmError: SLURM does not answer, and `must_answer`: what is recorded does not say which jobs wait or run.
    """
    known = submissions.read(folder)
    in_use = any(cell.cell.get("cluster") == "local" for cell in cells) and lock.in_use(folder)
    copied = submissions.others(folder, known)
    notes = [f"{cell.damage}: no epoch of {cell.folder.name} is shown" for cell in cells if cell.damage]
    if not known:
        return StudyView([bring_together(cell, None, None, in_use=in_use, copied=copied) for cell in cells], notes)
    jobs: dict[str, Job] = {}
    answered = True
    try:
        jobs = queue.live_and_recent(submissions.owners(folder, known))
    except SlurmError as error:
        if must_answer:
            raise SlurmError(
                f"{error}\nso it is not known which jobs of {folder} wait or run, and nothing was done: give the command again "
                "when SLURM answers"
            ) from error
        answered = False
        notes.append(f"{error}\nso this is what was recorded, not what SLURM knows")
    known = submissions.adopt(folder, known, jobs)
    latest = submissions.latest(known)
    numbers = {submission.job for submission in known if submission.job is not None}
    accounted: dict[str, Job] = {}
    used: dict[str, list[queue.Usage]] = {}
    if answered:
        accounted, used = queue.accounted(numbers, min(submission.created for submission in known))
        cells = [_seen_anew(cell) if _is_lost(cell, latest, jobs, accounted) else cell for cell in cells]
    if answered and not accounted and any(_is_lost(cell, latest, jobs, accounted) for cell in cells):
        jobs = _with_exit_codes(jobs)
    views = []
    for cell in cells:
        submission = latest.get(cell.folder.name)
        job = _find(cell, submission, jobs, accounted)
        view = bring_together(cell, submission, job, in_use=in_use, answered=answered, copied=copied)
        running = job is not None and job.status == "running"
        views.append(dataclasses.replace(view, spent=_spent(cell, known, used, running)))
    return StudyView(views, notes, answered)


def bring_together(
    cell: CellRecord,
    submission: Submission | None,
    job: Job | None,
    *,
    in_use: bool = False,
    answered: bool = True,
    copied: bool = False,
) -> CellView:
    """One cell from what is recorded and what SLURM says of its newest job. Pure but for the cell's own files.

    A live job knows better than a record, which then is of an attempt before; a record knows better than an ended job, unless
    that was started again after it.
    """
    name = cell.folder.name
    if submission is None:
        status = recorded(cell, in_use)
        # A script may be handed to sbatch by hand; in a copy of a study the record of a start is that of the other's.
        lost = cell.cell.get("cluster") == "slurm" and (status == "pending" or (status == "running" and copied))
        # A local cell waits for its submit, which may have been stopped.
        return CellView(
            cell, "not submitted" if lost else status, idle=not in_use and cell.cell.get("cluster") == "local"
        )
    number = submission.job_of(name)
    ours = None if cell.result is None else str(cell.result["status"])
    reason = "" if cell.result is None else str(cell.result.get("reason") or "")
    if number is None:
        if ours is not None:
            return CellView(cell, ours, reason)
        if not answered:
            return CellView(cell, "unknown", "SLURM never said whether it accepted the job")
        return CellView(cell, "not submitted", "SLURM never accepted the job: the same submit command does it again")
    cancelled = name in submission.cancelled and ours != "completed"
    if job is None:
        if cancelled:
            return CellView(cell, "cancelled", "by hvdtrain cancel", number)
        if ours is not None:
            return CellView(cell, ours, reason, number)
        why = "SLURM does not answer" if not answered else "SLURM has forgotten the job, and it left no result"
        return CellView(cell, "unknown", why, number)
    told = CellView(cell, job.status, job.why(), number, _plain(job.nodes), job.elapsed, job.start, live=job.live)
    if job.live:
        if job.status in ("running", "unknown") and ours == "completed":  # its last seconds
            return dataclasses.replace(told, status="completed", why="")
        if job.status == "running" and ours is not None:
            return dataclasses.replace(told, why=f"ending: {reason}" if reason else "ending")
        if job.status == "pending" and ours is not None:
            return dataclasses.replace(told, why="; ".join(filter(None, [f"started again after: {reason}", job.why()])))
        return told
    if _is_earlier(cell):
        ours = None
    if cancelled:
        return dataclasses.replace(told, status="cancelled", why="by hvdtrain cancel")
    if ours is not None and not (ours in _UNFINISHED and job.status == "cancelled"):
        return dataclasses.replace(told, status=ours, why=reason)
    if ours is None and job.status in ("completed", "failed"):
        return dataclasses.replace(told, status="failed", why=_never_started(cell, job))
    return told


def _is_earlier(cell: CellRecord) -> bool:
    """Whether the cell's result is of an attempt after which SLURM was to start the job again."""
    return cell.result is not None and bool(cell.result.get("requeued")) and cell.result["status"] != "completed"


def recorded(cell: CellRecord, in_use: bool) -> str:
    """`pending`, `running`, `interrupted`, or how the cell ended. `in_use`: whether a submit works on the study."""
    if cell.result is not None:
        return str(cell.result["status"])
    if cell.running is None:
        return "pending"
    # A local cell ends with its submit, and a power cut removes no file. Only the scheduler knows of others.
    return "running" if in_use or cell.cell.get("cluster") != "local" else "interrupted"


def _never_started(cell: CellRecord, job: Job) -> str:
    """Why a job that has ended left no result."""
    from hvdtrain.submit.attempt import tail

    log = cell.folder / "log" / "job.log"
    lines = tail(log, 1)
    seen = f"; last line of its log: {lines[0].strip()}" if lines else f"; its log {log} is empty or missing"
    if cell.result is not None:
        return f"started again after: {cell.result.get('reason')}; then it never started training ({job.why() or job.state}){seen}"
    if cell.running is not None or (cell.folder / "slurm.json").exists():
        return f"its batch script was killed ({job.why() or job.state}){seen}"
    return f"it never started training ({job.why() or job.state}){seen}"


def _find(
    cell: CellRecord, submission: Submission | None, jobs: Mapping[str, Job], accounted: Mapping[str, Job]
) -> Job | None:
    """The job of a cell; None where it has none, or SLURM has forgotten it, though it may have given its number to another."""
    if submission is None or (number := submission.job_of(cell.folder.name)) is None:
        return None
    # Tasks of an array that wait in sacct are one row: 12_[0-3], 12_[5-7%2].
    array, underscore, _ = number.partition("_")
    waiting = (job for key, job in accounted.items() if underscore and key.startswith(f"{array}_["))
    found = itertools.chain((jobs.get(number), accounted.get(number)), waiting)
    return next((job for job in found if job is not None and submission.owns(job.name, job.submitted)), None)


def _is_lost(
    cell: CellRecord, latest: Mapping[str, Submission], jobs: Mapping[str, Job], accounted: Mapping[str, Job]
) -> bool:
    """Whether the last attempt of a cell left no result although its job has ended."""
    submission = latest.get(cell.folder.name)
    job = _find(cell, submission, jobs, accounted)
    submitted = submission is not None and submission.job is not None
    return (cell.result is None or _is_earlier(cell)) and submitted and not (job is not None and job.live)


def _seen_anew(cell: CellRecord) -> CellRecord:
    """The cell, read again. NFS remembers for a while that a file was not there; listing the folder asks the server."""
    os.listdir(cell.folder)
    return read_cell(cell.folder)


def _with_exit_codes(jobs: Mapping[str, Job]) -> dict[str, Job]:
    try:
        found = queue.remembered()
    except SlurmError:
        return dict(jobs)
    more = dict(jobs)
    for key, job in found.items():
        if (seen := jobs.get(key)) is None:
            more[key] = job
        elif not seen.live:  # squeue alone says names without doubt, and when a job was submitted
            more[key] = dataclasses.replace(job, name=seen.name, submitted=seen.submitted)
    return more


def _spent(
    cell: CellRecord, known: Sequence[Submission], used: Mapping[str, list[queue.Usage]], running: bool
) -> Spent:
    name = cell.folder.name
    mine = [(submission.job_of(name), submission) for submission in known if name in submission.cells]
    rows = [row for number, own in mine if number is not None for row in used.get(number, []) if own.owns(row.name)]
    if rows:
        return usage.from_accounting(rows, int(cell.cell.get("gpus") or 1))
    return usage.estimate(cell, time.time() if running else None)


def _plain(nodes: str) -> str:
    return "" if nodes in ("None assigned", "(null)", "N/A") else nodes
