"""How an attempt in a batch job ended, and whether the job starts again. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from hvdtrain.stop import RESTART, SIGNALS

#: SLURM sends the signal of --signal up to this much too early.
EARLY_SECONDS = 65.0
#: Of a short time limit, the part that is kept for writing a checkpoint.
_PART_OF_LIMIT = 0.2
_LEAST_SECONDS = 5.0
#: What ranks say of an end that no program decided on. A program's own exception would only be raised again.
_ACCIDENT = re.compile(r"died without a word|has not answered|no rank has made progress|did not arrive in time")
#: What a rank says that no program of the user's has failed of: it ends because of a signal.
_ASKED = "was asked to stop"
#: What srun says of ranks that die of a request to stop, because they have not come to the point from which they catch it.
_UNCAUGHT = {128 + number for number in SIGNALS}


@dataclass(frozen=True)
class Policy:
    """What the user wants: which ends start the job again, and how many accidents do."""

    on: Collection[str] = ("preempted", "timeout")
    retries: int = 1


@dataclass(frozen=True)
class Ending:
    """The status for `result.json`, why, whether to requeue, and what `then` is said of that beside the reason."""

    status: str
    reason: str
    requeue: bool = False
    then: str = ""


def warning_seconds(wanted: float, limit: float | None) -> float:
    """How long before its end a job with this time limit (seconds) is told: `wanted`, less for a short one.

    >>> warning_seconds(120, 60), warning_seconds(120, 86400)
    (12.0, 120)
    """
    return wanted if limit is None else max(_LEAST_SECONDS, min(wanted, limit * _PART_OF_LIMIT))


def is_early_warning(left: float | None, warning: float) -> bool:
    """Whether a USR1 now is SLURM's coarse warning of the time limit, so that more can be trained before the end."""
    return left is not None and warning < left <= warning + EARLY_SECONDS


def judge(
    exit_status: int,
    *,
    job_state: str,
    left: float | None,
    warning: float,
    reason: str,
    recorded: str | None,
    progress: bool,
    accidents: int,
    policy: Policy,
    restarts: bool = False,
    preempted: bool = False,
    may_requeue: bool = True,
) -> Ending:
    """Judge an attempt.

    Args:
        exit_status: of srun.
        job_state: of the job, from the controller.
        left: seconds until its time limit; None without one.
        warning: seconds before the limit at which ranks were told.
        reason: what the ranks said; empty if nothing.
        recorded: the status that they wrote, if they did.
        progress: whether this attempt wrote a checkpoint, or recorded an epoch that none before it had reached.
        accidents: how many earlier attempts of this job ended by accident.
        policy: what the user wants.
        restarts: whether SLURM has counted the next start already, which it does when it preempts without grace, when somebody
            requeues the job, and when its node fails.
        preempted: whether SLURM has chosen this attempt for preemption, and told it.
        may_requeue: whether SLURM may start the job again.
    """
    if not may_requeue:
        policy = Policy(on=(), retries=0)
    if exit_status == 0 and recorded is not None:
        return Ending(recorded, reason)
    timed_out = left is not None and left <= warning
    # SLURM calls a job that it is ending COMPLETING. Before the time limit, and without another start of SLURM's own, only scancel
    # does that, and whoever cancels does not want another start.
    if exit_status == 0:
        # srun says 0 when a node fails under it. Ranks that ended well would have recorded that.
        words = "a node failed: srun ended although the ranks had recorded no end"
        running = job_state in ("RUNNING", "")
        return Ending("failed" if running else "preempted", words, requeue=running and accidents < policy.retries)
    if restarts and job_state == "COMPLETING":
        return Ending("preempted", "SLURM ended this attempt to start the job again: preempted, or requeued")
    if job_state.startswith("CANCELLED") or (job_state == "COMPLETING" and not timed_out):
        return Ending("cancelled", "cancelled by scancel")
    own_error = bool(reason) and not _ACCIDENT.search(reason) and _ASKED not in reason
    # After the limit SLURM ends all processes, and errors come of that; before it, a program fails of its own.
    by_limit = left is not None and (left < 1 or (timed_out and not own_error))
    if exit_status == RESTART or (by_limit and not recorded):
        return _stopped("timeout" if timed_out else "preempted", reason, progress, policy)
    if preempted and exit_status in _UNCAUGHT and (recorded == "preempted" or not (recorded or own_error)):
        return _stopped("preempted", reason, progress, policy)
    if recorded == "diverged":
        return Ending("diverged", reason)
    reason = reason or _what(exit_status)
    if _ACCIDENT.search(reason) or (not recorded and exit_status >= 128):
        if accidents < policy.retries:
            return Ending("failed", reason, True, f"started again ({accidents + 1} of {policy.retries} retries)")
        if policy.retries:
            return Ending("failed", f"{reason}; no retry is left ({policy.retries} used)")
    return Ending("failed", reason)


def _stopped(status: str, reason: str, progress: bool, policy: Policy) -> Ending:
    words = "the time limit came" if status == "timeout" else (reason or "the cluster ended the job")
    if status not in policy.on:
        return Ending(status, f"{words}; requeueing is off for this: `hvdtrain resume` goes on")
    if status == "timeout" and not progress:
        return Ending(
            status,
            f"{words} before this attempt wrote a checkpoint or got further than those before it, and would again: give a longer "
            "--time, or let the job save checkpoints, then `hvdtrain resume`",
        )
    return Ending(status, words, True)


def _what(status: int) -> str:
    import signal

    if status - 128 in {*signal.Signals}:
        return f"ended by signal {signal.Signals(status - 128).name}"
    return f"exit status {status}"
