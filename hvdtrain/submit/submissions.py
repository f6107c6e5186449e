"""What of a study was handed to SLURM: one folder for each call of sbatch, written before the call.

runs/<study>/submissions/<name>/submission.json   cells in order, job id once SLURM has answered
                                script.sh         what was submitted, for an array
                                <i>.sh, <i>.log   links to the script and the log of cell i
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain import paths, record
from hvdtrain.submit import batch_script
from hvdtrain.submit.queue import Job

FOLDER = "submissions"
#: Clocks of the controller and of this machine may differ by so much.
_SKEW = datetime.timedelta(minutes=2)
#: sbatch may take so long beside that; a controller that has begun with 1 again comes to the same number much later.
_NEAR = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class Submission:
    """One call of sbatch.

    Attributes:
        folder: name of its folder.
        name: the job's name, an array's own until a task starts.
        cells: in the order of the array's tasks.
        names: the cells' own job names: what sbatch was given, and what they call themselves when they start.
        created: local time, before sbatch was called.
        job: its number; None until SLURM has answered.
        overrides: words that were given to sbatch beside the script.
        cancelled: cells that the user has cancelled.
        study: the study's folder, from which it may have been moved or copied since.
    """

    folder: str
    name: str
    cells: tuple[str, ...]
    names: tuple[str, ...]
    created: str
    job: str | None = None
    overrides: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    study: str = ""

    @property
    def array(self) -> bool:
        """Whether it is a job array."""
        return len(self.cells) > 1

    def owns(self, name: str, submitted: str = "") -> bool:
        """Whether the job that has its number is of this submission, by its name, or by when it was `submitted` (local time).

        A number alone does not say: SLURM may have begun with 1 again. Nor does a name: users, administrators and plugins of
        a site change it.
        """
        if name in (self.name, *self.names):
            return True
        moment = _moment(submitted)
        return moment is not None and abs(moment - datetime.datetime.fromisoformat(self.created)) <= _NEAR

    def job_of(self, cell: str) -> str | None:
        """The id of one cell's job."""
        if self.job is None:
            return None
        return f"{self.job}_{self.cells.index(cell)}" if self.array else self.job


def job_name(label: str, folder: Path, cells: Iterable[str]) -> str:
    """A name that no other cell has: `label`, and a mark of the study's place and the cells.

    The same cells get the same name, so a job that SLURM accepted without our hearing of it is found again.
    """
    text = "\n".join([str(folder), *cells])
    return f"{label}.{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:8]}"


def read(study: Path) -> list[Submission]:
    """All submissions of a study, in the order in which they were made; of a copy's those that it has made itself."""
    found = []
    for path in sorted((study / FOLDER).glob("*/submission.json")):
        facts = record.read_json(path) or {}
        lists = {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
        submission = Submission(folder=path.parent.name, **{**facts, **lists})
        if not submission.study:  # of a version that did not note the names that jobs give themselves
            submission = replace(submission, names=(*submission.names, *_own_names(study, submission.cells)))
        found.append(submission)
    return [each for each in found if each.study in ("", os.path.abspath(study)) or not _is_elsewhere(each, study)]


def others(study: Path, own: Sequence[Submission]) -> bool:
    """Whether it holds submissions besides its `own`: it is a copy of the study that made them."""
    return sum(1 for _ in (study / FOLDER).glob("*/submission.json")) > len(own)


def _own_names(study: Path, cells: Iterable[str]) -> list[str]:
    """What cells' jobs call themselves when they start, by their scripts."""
    found = []
    for cell in cells:
        with contextlib.suppress(FileNotFoundError):
            script = (study / cell / "script.sh").read_text(encoding="utf-8", errors="surrogateescape")
            found.append(batch_script.argument(script, "--job-name"))
    return [name for name in found if name is not None]


def _is_elsewhere(submission: Submission, here: Path) -> bool:
    """Whether the folder that it was made in holds it still, and is not `here`, where it then is a copy."""
    there = Path(submission.study)
    try:
        facts = record.read_json(there / FOLDER / submission.folder / "submission.json")
    except (OSError, ValueError):
        return False
    # Another study may have taken the place of one that was renamed.
    if facts is None or facts.get("created") != submission.created or submission.job not in (None, facts.get("job")):
        return False
    return not paths.same(there, here)


def owners(study: Path, submissions: Iterable[Submission]) -> set[int]:
    """Who made them, as numbers of users: somebody may look after a colleague's study."""
    found = set()
    for submission in submissions:
        with contextlib.suppress(FileNotFoundError):  # taken back in this moment
            found.add((study / FOLDER / submission.folder).stat().st_uid)
    return found


def latest(submissions: Sequence[Submission]) -> dict[str, Submission]:
    """For each cell the submission that counts: its newest."""
    return {cell: submission for submission in submissions for cell in submission.cells}


def draft(study: Path, scripts: Mapping[str, str], number: int, parallel: int | None = None) -> tuple[Submission, str]:
    """The submission of these cells' scripts as the study's `number`-th, and the script for sbatch. Pure but for the clock."""
    cells = tuple(scripts)
    names = [batch_script.value(text, "job-name") or cell for cell, text in scripts.items()]
    name = names[0] if len(cells) == 1 else job_name(study.name, study, cells)
    folder = f"{number:04d}-{name}"
    script = scripts[cells[0]]
    if len(cells) > 1:
        place = study / FOLDER / folder
        script = batch_script.render_array(list(scripts.values()), job_name=name, folder=place, parallel=parallel)
    # The site may have sbatch given another name than the launcher takes.
    own = [given for text in scripts.values() if (given := batch_script.argument(text, "--job-name")) is not None]
    return Submission(folder, name, cells, tuple(dict.fromkeys([*names, *own])), now(), study=str(study)), script


def now() -> str:
    """Local time, for `created`."""
    return datetime.datetime.now().isoformat(timespec="seconds")


def next_number(study: Path) -> int:
    """The number of the study's next submission."""
    numbers = [int(path.name.split("-")[0]) for path in (study / FOLDER).glob("[0-9]*-*")]
    return max(numbers, default=0) + 1


def prepare(study: Path, scripts: Mapping[str, str], parallel: int | None = None) -> tuple[Submission, str]:
    """Write the intent to submit cells, whose folders exist; `study` is absolute."""
    submission, script = draft(study, scripts, next_number(study), parallel)
    folder = study / FOLDER / submission.folder
    try:
        folder.mkdir(parents=True)
        for index, cell in enumerate(scripts):
            # SLURM makes no folders for logs: without them a job fails at once and says nothing.
            (study / cell / "log").mkdir(exist_ok=True)
            if submission.array:
                (folder / f"{index}.sh").symlink_to(Path("..", "..", cell, "script.sh"))
                (folder / f"{index}.log").symlink_to(Path("..", "..", cell, "log", "job.log"))
        if submission.array:
            (folder / "script.sh").write_text(script, encoding="utf-8", errors="surrogateescape", newline="")
        _write(study, submission)
    except BaseException:
        forget(study, submission)
        raise
    return submission, script


def update(study: Path, submission: Submission, **changes: Any) -> Submission:
    """Record what has become known since."""
    changed = replace(submission, **changes)
    _write(study, changed)
    return changed


def forget(study: Path, submission: Submission) -> None:
    """Take back an intent of which nothing came."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(study / FOLDER / submission.folder)
    with contextlib.suppress(OSError):  # others are there
        (study / FOLDER).rmdir()


def adopt(study: Path, submissions: Sequence[Submission], jobs: Mapping[str, Job]) -> list[Submission]:
    """The submissions, those without an answer completed by what the queue holds under their names."""
    result = []
    for submission in submissions:
        if submission.job is None and (number := find(submission, jobs.values())) is not None:
            submission = update(study, submission, job=number)
        result.append(submission)
    return result


def find(submission: Submission, jobs: Iterable[Job]) -> str | None:
    """The number under which SLURM has a submission that it never answered; None when it has not."""
    since = datetime.datetime.fromisoformat(submission.created) - _SKEW
    for job in jobs:
        number, underscore, _ = job.id.partition("_")
        # A job of one cell and a task of an array may have the same name.
        if bool(underscore) == submission.array and submission.owns(job.name):
            submitted = _moment(job.submitted)
            if job.live or (submitted is not None and submitted >= since):
                return number
    return None


def _moment(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def _write(study: Path, submission: Submission) -> None:
    facts = dataclasses.asdict(submission)
    record.write_json(study / FOLDER / facts.pop("folder") / "submission.json", facts)
