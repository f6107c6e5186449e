"""A stand-in for SLURM's programs that can be silent, refuse, and give its numbers to other jobs."""

from __future__ import annotations

import argparse
import datetime
import itertools
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hvdtrain import record
from hvdtrain.site.commands import SlurmError
from hvdtrain.submit import sbatch
from hvdtrain.submit.queue import Job

SUBMIT = ["--cluster", "slurm", "--launcher", "gloo", "--study", "toy"]


def ended(status: str, cell: str = "n2", **more: object) -> None:
    """Write how a cell of the study ended."""
    record.write_json(Path("runs/toy") / cell / "result.json", {"status": status, "reason": "why", **more})


class Slurm:
    """`jobs` is what squeue says, `silent` which programs do not answer, `accepts` how many more calls of sbatch it takes,
    `submitted` and `words` the names of jobs that it took, and what sbatch was given beside each script."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.silent: set[str] = set()
        self.accepts = 100
        self.cancelled: list[str] = []
        self.submitted: list[str] = []
        self.words: list[list[str]] = []
        self._numbers = itertools.count(7)

    def call(self, argv: Sequence[str], seconds: float = 60.0, *, times: str | None = None) -> str:
        if argv[0] in self.silent:
            raise SlurmError(f"{argv[0]} ended with status 1:\n  Unable to contact slurm controller (connect failure)")
        if argv[0] == "scancel":
            self.cancelled += argv[1:]
            self.jobs = {key: job for key, job in self.jobs.items() if not {key, key.partition("_")[0]} & {*argv}}
        if argv[0] == "squeue":
            rows = (
                (job.id, job.name, job.state, job.submitted, "N/A", "0:00", "", "None") for job in self.jobs.values()
            )
            return "".join("\t".join(row) + "\n" for row in rows)
        return ""

    def sbatch(self, script: str, name: str, words: Sequence[str]) -> str:
        if len(self.submitted) == self.accepts:
            raise sbatch.Refused(f"SLURM does not take the submission {name}:\n  no more today")
        given = _options(script, words)
        if given.dependency is not None and given.dependency.endswith(":"):
            raise sbatch.Refused("sbatch: error: Batch job submission failed: Job dependency problem")
        number = str(next(self._numbers))
        for index in range(given.tasks):
            job = f"{number}_{index}" if given.array else number
            self.jobs[job] = Job(job, "PENDING", given.job_name, submitted=now())
        self.submitted.append(given.job_name)
        self.words.append([*words])
        return number

    def state(self, number: str, state: str) -> None:
        self.jobs[number] = replace(self.jobs[number], state=state)


def now(**later: float) -> str:
    """The time, as squeue writes it, or one that is so much `later`."""
    return (datetime.datetime.now() + datetime.timedelta(**later)).isoformat(timespec="seconds")


def _options(script: str, words: Sequence[str]) -> argparse.Namespace:
    """What sbatch heeds of a script and its command line: of several words for one thing the last, the line's own after all."""
    head = itertools.takewhile(lambda line: line.startswith("#") or not line, script.splitlines())
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--job-name", "-J", default="sbatch")
    parser.add_argument("--array")
    parser.add_argument("--dependency")
    found = [word for line in head if line.startswith("#SBATCH ") for word in shlex.split(line)[1:]]
    given, _ = parser.parse_known_args([*found, *words])
    given.tasks = 1 if given.array is None else 1 + int(given.array.partition("%")[0].removeprefix("0-"))
    return given
