"""A stand-in for SLURM's programs that can be silent, refuse, and give its numbers to other jobs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hvdtrain.site.commands import SlurmError
from hvdtrain.submit import sbatch
from hvdtrain.submit.queue import Job


class Slurm:
    """`jobs` is what squeue says, `silent` which programs do not answer, `accepts` how many more calls of sbatch it takes."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.silent: set[str] = set()
        self.accepts = 100
        self.cancelled: list[str] = []
        self.submitted: list[str] = []
        self._numbers = itertools.count(7)

    def call(self, argv: Sequence[str], seconds: float = 60.0, *, times: str | None = None) -> str:
        if argv[0] in self.silent:
            raise SlurmError(f"{argv[0]} ended with status 1:\n  Unable to contact slurm controller (connect failure)")
        if argv[0] == "scancel":
            self.cancelled += argv[1:]
            self.jobs = {number: job for number, job in self.jobs.items() if number not in argv}
        if argv[0] == "squeue":
            return "".join(f"{job.id}\t{job.name}\t{job.state}\t\tN/A\t0:00\t\tNone\n" for job in self.jobs.values())
        return ""

    def sbatch(self, script: str, name: str, words: Sequence[str]) -> str:
        if len(self.submitted) == self.accepts:
            raise sbatch.Refused(f"SLURM does not take the submission {name}:\n  no more today")
        number = str(next(self._numbers))
        self.jobs[number] = Job(number, "PENDING", name)
        self.submitted.append(name)
        return number

    def state(self, number: str, state: str) -> None:
        self.jobs[number] = Job(number, state, self.jobs[number].name)
