"""What SLURM says of the job that this process is in."""

from __future__ import annotations

import datetime
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import UserError
from hvdtrain.site import commands
from hvdtrain.site.detect import parse_gres

#: What an answer takes, and whole seconds, make of clocks that agree.
_CLOCK_SECONDS = 2.0
_SDIAG_SECONDS = 15.0


@dataclass(frozen=True)
class Allocation:
    """One job. `end` is in seconds since 1970 by the controller's clock; None without a limit, or where SLURM did not say.

    `alone` is what scontrol calls this job and no other: a task of an array may have the number of the whole array.
    `preempted`: since its last start the job was told that it is to be preempted; with GraceTime it runs on for so long.
    """

    job: str
    alone: str
    state: str = ""
    name: str = ""
    nodes: str = ""
    end: float | None = None
    limit: float | None = None
    restarts: int = 0
    may_requeue: bool = True
    gpus: Mapping[str, int] | None = None
    partition: str = ""
    preempted: bool = False

    @property
    def gpu_types(self) -> list[str]:
        """The types of GPU that the job was given; empty when SLURM names none."""
        return sorted(name for name in self.gpus or {} if name)


def ask(job: str, seconds: float = commands.SECONDS) -> Allocation:
    """The job `job` as the controller sees it.

    Raises:
        SlurmError: the controller does not answer within `seconds`.
    """
    # As seconds since 1970: SLURM's usual form names no time zone, and in autumn one hour comes twice.
    return parse(job, commands.call(["scontrol", "show", "job", "--details", job], seconds, times="%s"))


def clock_ahead() -> float:
    """Seconds, to one or two, that this node's clock is ahead of the controller's, which SLURM's times are read off.

    `scontrol` cannot tell: its RunTime is the difference between this node's clock and a time of the controller's. `sdiag` prints
    the controller's own clock. 0 where it does not say.
    """
    try:
        said = re.search(r"sdiag output at .*\((\d+)\)", commands.call(["sdiag"], _SDIAG_SECONDS))
    except commands.SlurmError:
        return 0.0
    # The controller's time is in whole seconds, which it has passed by half of one on average.
    ahead = time.time() - (int(said[1]) + 0.5) if said else 0.0
    return ahead if abs(ahead) > _CLOCK_SECONDS else 0.0


def here() -> Allocation:
    """The job around this process. A controller that is down must not end a training: then little is known.

    Raises:
        UserError: there is no job around this process.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        raise UserError(
            "this is for batch scripts: submit it with sbatch (python -m hvdtrain.launch starts ranks elsewhere)"
        )
    try:
        return ask(job)
    except commands.SlurmError as error:
        print(f"warning: {error}\nwarning: so the time limit of this job is not known here", file=sys.stderr)
        return Allocation(job, _alone(job), "RUNNING", restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0))


def _alone(job: str) -> str:
    """What SLURM has told the job itself of the array that it is in."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else job


def parse(job: str, text: str) -> Allocation:
    """From the text of `scontrol show job --details`, which for a whole array's number holds all tasks of it.

    >>> parse("7", "JobId=7 JobName=x\\n JobState=RUNNING Requeue=1\\n Nodes=a CPU_IDs=0 Mem=1 GRES=gpu:t4:2(IDX:0-1)").gpus
    {'t4': 2}
    """
    records = re.split(r"\n\s*\n", text)
    text = next((record for record in records if re.match(rf"\s*JobId={job}\s", record)), text)

    def value(key: str) -> str:
        match = re.search(rf"(?:^|\s){key}=(\S*)", text)
        return match[1] if match and match[1] not in ("Unknown", "N/A", "(null)", "None") else ""

    gpus: dict[str, int] = {}
    for nodes, gres in re.findall(r"^\s+Nodes=(\S+) .*?GRES=(\S*)", text, re.MULTILINE):
        for name, count in parse_gres(gres).items():
            gpus[name] = gpus.get(name, 0) + count * _hosts(nodes)
    array, task = value("ArrayJobId"), value("ArrayTaskId")
    started, preempted = _moment(value("StartTime")), _moment(value("PreemptTime"))
    return Allocation(
        job=job,
        alone=f"{array}_{task}" if array and task.isdigit() else job,
        state=value("JobState"),
        name=value("JobName"),
        nodes=value("NodeList"),
        end=_moment(value("EndTime")),
        limit=_seconds(value("TimeLimit")),
        restarts=int(value("Restarts") or 0),
        may_requeue=value("Requeue") != "0",
        gpus=gpus,
        partition=value("Partition"),
        # Both by the controller's clock. A time before the start may be left from the start before.
        preempted=preempted is not None and (started is None or preempted >= started),
    )


def ranks() -> int:
    """How many tasks the allocation is for.

    Raises:
        UserError: the variables do not say.
    """
    environ = os.environ
    if tasks := environ.get("SLURM_NTASKS"):
        return int(tasks)
    each = environ.get("SLURM_NTASKS_PER_NODE", "1")
    if not each.isdigit():
        raise UserError(f"SLURM_NTASKS_PER_NODE={each}: give sbatch a plain number, such as --ntasks-per-node=4")
    return nodes() * int(each)


def nodes() -> int:
    """How many nodes the allocation has."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)


def _hosts(text: str) -> int:
    from hvdtrain.world import expand_hostlist

    return len(expand_hostlist(text))


def _moment(text: str) -> float | None:
    if text.isdecimal():
        return float(text)
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
