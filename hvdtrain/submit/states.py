"""SLURM's job states in our words, and why a job waits. A closed table: what is not in it stays unknown."""

from __future__ import annotations

from collections.abc import Mapping

#: State of SLURM (without what follows it, as in "CANCELLED by 1000") -> ours.
STATES: Mapping[str, str] = {
    "PENDING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "held",
    "RESV_DEL_HOLD": "held",
    "SPECIAL_EXIT": "held",
    "CONFIGURING": "starting",
    "POWER_UP_NODE": "starting",
    "LAUNCH_FAILED": "failed",
    "RECONFIG_FAIL": "failed",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "RESIZING": "running",
    "SUSPENDED": "suspended",
    "STOPPED": "suspended",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "BOOT_FAIL": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "PREEMPTED": "preempted",
    "REVOKED": "cancelled",
    "CANCELLED": "cancelled",
}
#: In these the job is still SLURM's business.
LIVE = ("pending", "held", "starting", "running", "suspended")
#: What an ended job's state says beside our word for it.
MEANINGS: Mapping[str, str] = {
    "BOOT_FAIL": "a node did not boot",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "a node ran out of the job's memory: ask for more with --mem, or a smaller --batch-size",
    "DEADLINE": "the job's deadline passed",
    "TIMEOUT": "the time limit came",
    "PREEMPTED": "a job of higher priority took the nodes",
    "LAUNCH_FAILED": "SLURM could not launch the job on its nodes",
}
#: Reason of SLURM -> what it means and what to do. Reasons that are not here are shown as they are.
REASONS: Mapping[str, str] = {
    "Resources": "waiting for free nodes or GPUs",
    "Priority": "other jobs are before it",
    "BeginTime": "it was requeued; SLURM holds such jobs back for about two minutes",
    "Dependency": "it waits for other jobs of this study",
    "DependencyNeverSatisfied": "the job it waits for cannot end as it should: cancel it",
    "JobArrayTaskLimit": "--max-parallel cells run already",
    "JobHeldUser": "you hold it: scontrol release JOB",
    "JobHeldAdmin": "an administrator holds it",
    "JobLaunchFailure": "SLURM could not launch it, and holds it: scontrol release JOB when the node is repaired",
    "launch failed requeued held": "SLURM could not launch it, and holds it: scontrol release JOB when the node is repaired",
    "PartitionTimeLimit": "its --time is longer than the partition allows: it will never start",
    "PartitionNodeLimit": "it needs more nodes than the partition allows: it will never start",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "BadConstraints": "no node fulfils its request: it will never start",
    "InvalidAccount": "its account is not valid: give another --account",
    "InvalidQOS": "its QOS is not valid: give another --qos",
    "AssocGrpGRES": "your account's GPUs are all in use",
    "AssocGrpGRESMinutes": "your account has used up its GPU hours",
    "AssocMaxJobsLimit": "you run as many jobs as you may",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as this QOS allows",
    "QOSMaxGRESPerUser": "you use as many GPUs as this QOS allows",
    "QOSMaxWallDurationPerJobLimit": "its --time is longer than the QOS allows: it will never start",
    "QOSMaxSubmitJobPerUserLimit": "you have as many jobs queued as this QOS allows",
    "Licenses": "it waits for a licence",
    "Reservation": "it waits for its reservation",
    "NodeDown": "a node that it needs is down",
    "Prolog": "the site's prolog runs",
    "Cleaning": "an earlier run of it is being cleaned up",
}


def translate(state: str) -> str:
    """Our word for a state of SLURM; `unknown` for one that is not in the table.

    >>> translate("CANCELLED by 1000"), translate("CG+"), translate("FROZEN")
    ('cancelled', 'unknown', 'unknown')
    """
    words = state.split()
    return STATES.get(words[0].rstrip("+"), "unknown") if words else "unknown"


def explain(reason: str) -> str:
    """A pending reason, with its meaning where it is known.

    >>> explain("Priority")
    'Priority: other jobs are before it'
    """
    word = reason.strip().strip("()")
    if not word or word == "None":
        return ""
    meaning = REASONS.get(word) or REASONS.get(word.split(",")[0])
    return f"{word}: {meaning}" if meaning else word
