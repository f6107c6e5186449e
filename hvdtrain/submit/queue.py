"""What squeue, scontrol and sacct say about jobs: one call each for all cells, read into one kind of value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hvdtrain.site import commands
from hvdtrain.site.commands import SlurmError
from hvdtrain.submit import states

#: Free text (names of nodes, reasons) last; a tab occurs in none of them.
_SQUEUE = "%i\t%j\t%T\t%V\t%S\t%M\t%N\t%r"
_SACCT = "JobID,JobIDRaw,State,ElapsedRaw,AllocTRES,NodeList,ExitCode,ConsumedEnergyRaw,Start,JobName"


@dataclass(frozen=True)
class Job:
    """One job, or one task of an array, as SLURM knows it. `id` is `12` or `12_3`."""

    id: str
    state: str
    name: str = ""
    start: str = ""
    elapsed: str = ""
    nodes: str = ""
    reason: str = ""
    exit_code: str = ""
    restarts: int = 0
    submitted: str = ""

    @property
    def status(self) -> str:
        """Its state in our words."""
        return states.translate(self.state)

    @property
    def live(self) -> bool:
        """Whether it is still SLURM's business. In a state that is not known here it may be."""
        return self.status in states.LIVE or self.status == "unknown"

    def why(self) -> str:
        """Why it waits or how it ended, for people."""
        if self.status in ("pending", "held", "starting"):
            when = f"; SLURM expects it to start at {self.start}" if self.start not in ("", "N/A", "Unknown") else ""
            return states.explain(self.reason) + when
        if self.status == "unknown":
            return f"SLURM's state {self.state} is not known here, so it may run"
        if self.live:
            return ""
        meaning = states.MEANINGS.get(self.state.split()[0] if self.state else "", "")
        code = f"exit code {self.exit_code}" if self.exit_code not in ("", "0:0") else ""
        return ", ".join(part for part in (meaning, code) if part)


@dataclass(frozen=True)
class Usage:
    """What one attempt of a job, called `name`, was allocated: from the main row of sacct."""

    gpus: int
    seconds: float
    energy_joules: float | None = None
    name: str = ""


def live_and_recent(others: Iterable[int] = ()) -> dict[str, Job]:
    """All jobs of this user, and of `others` by their numbers, that the controller remembers, by id: one call of squeue.

    Raises:
        SlurmError: the controller does not answer.
    """
    users = ",".join(map(str, sorted({os.getuid(), *others})))
    argv = ["squeue", "--noheader", "--array", "--all", "--states=all", f"--user={users}", f"--format={_SQUEUE}"]
    return parse_squeue(commands.call(argv))


def parse_squeue(text: str) -> dict[str, Job]:
    """Jobs from lines in our format."""
    jobs = {}
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) == 8:
            number, name, state, submitted, start, elapsed, nodes, reason = (part.strip() for part in parts)
            jobs[number] = Job(number, state, name, start, elapsed, nodes, reason, submitted=submitted)
    return jobs


def remembered() -> dict[str, Job]:
    """All jobs that the controller remembers with exit code and restarts: one call of scontrol."""
    try:
        return parse_scontrol(commands.call(["scontrol", "--oneliner", "--all", "show", "job"]))
    except SlurmError as error:
        if "no jobs" in str(error).lower():
            return {}
        raise


def parse_scontrol(text: str) -> dict[str, Job]:
    """Jobs from `scontrol --oneliner show job`."""
    jobs = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", line))
        named = re.search(r"\sJobName=(.*?) UserId=", line)  # the one field of these that may hold blanks
        number = fields.get("JobId", "")
        if not number:
            continue
        if "ArrayJobId" in fields and fields.get("ArrayTaskId", "").isdigit():
            number = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
        jobs[number] = Job(
            id=number,
            state=fields.get("JobState", ""),
            name=fields.get("JobName", "") if named is None else named[1],
            start=fields.get("StartTime", ""),
            elapsed=fields.get("RunTime", ""),
            nodes=fields.get("NodeList", ""),
            reason=fields.get("Reason", ""),
            exit_code=fields.get("ExitCode", ""),
            restarts=int(fields.get("Restarts", "0") or 0),
            submitted=fields.get("SubmitTime", ""),
        )
    return jobs


def accounted(ids: Iterable[str], since: str) -> tuple[dict[str, Job], dict[str, list[Usage]]]:
    """Jobs and what their attempts used, from accounting: one call of sacct, only main rows, every attempt.

    `since` is when the first of them was submitted (YYYY-MM-DDTHH:MM:SS). Both are empty where there is no accounting.
    """
    wanted = sorted(set(ids))
    if not wanted:
        return {}, {}
    argv = ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", f"--format={_SACCT}"]
    argv += [f"--jobs={','.join(wanted)}", f"--starttime={since}"]
    try:
        # It alone does not read the variables that choose one.
        if (cluster := commands.cluster()) is not None:
            argv.append(f"--clusters={cluster}")
        return parse_sacct(commands.call(argv))
    except SlurmError:
        return {}, {}  # "Slurm accounting storage is disabled", or its daemon is down: squeue and our records must do


def parse_sacct(text: str) -> tuple[dict[str, Job], dict[str, list[Usage]]]:
    """The newest row of each job, and the usage of all its rows."""
    jobs: dict[str, Job] = {}
    usage: dict[str, list[Usage]] = {}
    for line in text.splitlines():
        parts = line.split("|", 9)
        if len(parts) != 10 or "." in parts[0]:
            continue
        number, _, state, elapsed, tres, nodes, code, energy, start, name = parts
        jobs[number] = Job(number, state, name, start, elapsed, nodes, exit_code=code)
        seconds = float(elapsed) if elapsed.isdigit() else 0.0
        if seconds or start not in ("Unknown", "None", ""):
            joules = float(energy) if energy.isdigit() and int(energy) > 0 else None
            usage.setdefault(number, []).append(Usage(gpus_of(tres), seconds, joules, name))
    return jobs, usage


def gpus_of(tres: str) -> int:
    """GPUs in an AllocTRES text, which may name both the sum and each type.

    >>> gpus_of("billing=2,cpu=2,gres/gpu:t4=4,gres/gpu=4,node=1"), gpus_of("gres/gpu:t4=2,gres/gpu:v100=1"), gpus_of("cpu=1")
    (4, 3, 0)
    """
    pairs: Mapping[str, str] = dict(part.split("=", 1) for part in tres.split(",") if "=" in part)
    if pairs.get("gres/gpu", "").isdigit():
        return int(pairs["gres/gpu"])
    return sum(int(count) for name, count in pairs.items() if name.startswith("gres/gpu:") and count.isdigit())


def tasks_of(jobs: Mapping[str, Job], number: str) -> Sequence[Job]:
    """The job with this number and the tasks of it, if it is an array."""
    return [job for key, job in jobs.items() if key == number or key.startswith(f"{number}_")]
