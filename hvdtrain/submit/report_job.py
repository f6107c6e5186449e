"""The job that writes a study's report when its cells have ended."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hvdtrain.site.profile import Site
from hvdtrain.submit import batch_script, sbatch, submissions
from hvdtrain.submit.study import make_folder


def submit(site: Site, study: Path, done: Sequence[str], waiting: Iterable[str], undo: contextlib.ExitStack) -> str:
    """Have the report written when the jobs in `done`, and those that the cells in `waiting` have already, have ended.

    A line for the user.

    Raises:
        SlurmError: SLURM refuses.
    """
    after = list(dict.fromkeys([*done, *_jobs_of(study, waiting)]))
    make_folder(_folder(study), undo)
    name, text = script(site, study, after)
    # sbatch takes no empty list, and then there is nothing to wait for.
    number = sbatch.submit_text(text, name, [f"--dependency=afterany:{':'.join(after)}"] if after else [])
    return f"submitted job {number}: the report{', when all cells have ended' if after else ''}"


def script(site: Site, study: Path, after: Sequence[str]) -> tuple[str, str]:
    """The job's name, and the script of the report that comes `after` these jobs; `study` is absolute."""
    # A second report may wait for the same jobs, so the moment is part of the name.
    name = submissions.job_name(f"report-{study.name}", study, ["report", submissions.now(), *after])
    return name, batch_script.render_report(site, study, _folder(study), Path.cwd(), sys.executable, name)


def _folder(study: Path) -> Path:
    return study / submissions.FOLDER / "report"


def _jobs_of(study: Path, cells: Iterable[str]) -> list[str]:
    latest = submissions.latest(submissions.read(study))
    found = (latest[cell].job for cell in cells if cell in latest)
    return [number for number in found if number is not None]
