"""Checks of a site: SLURM, its limits, and the profile."""

from __future__ import annotations

import functools
import re
from importlib import metadata
from pathlib import Path

from hvdtrain import machine
from hvdtrain.doctor.check import REGISTRY, Context, Finding, failed, ok, skipped, warning
from hvdtrain.errors import UserError
from hvdtrain.horovod_build import check as build
from hvdtrain.launch import allocation, choice
from hvdtrain.site import commands, detect

_PART = "site"


@functools.cache
def _facts() -> detect.Facts | str:
    if not commands.present():
        return "SLURM is not installed here"
    try:
        return detect.look()
    except commands.SlurmError as error:
        return str(error).splitlines()[-1].strip()


@REGISTRY.add(_PART, "slurm")
def slurm(context: Context) -> Finding:
    """Does a cluster answer?"""
    facts = _facts()
    if isinstance(facts, str):
        if not commands.present():
            return skipped(facts)
        return warning(
            f"no SLURM cluster answers: {facts}",
            "nothing can be submitted from here",
            "check SLURM_CONF, or use a login node",
        )
    nodes = sum(group.nodes for group in facts.groups)
    return ok(
        f"{facts.settings.get('ClusterName', 'the cluster')} answers, {nodes} entries of nodes in {len(facts.groups)} groups",
    )


@REGISTRY.add(_PART, "submitit")
def submitit(context: Context) -> Finding:
    """Is the transport there?"""
    try:
        return ok(f"submitit {metadata.version('submitit')}")
    except metadata.PackageNotFoundError:
        return failed("submitit is not installed", "nothing can be submitted", "pip install submitit")


@REGISTRY.add(_PART, "profile")
def profile(context: Context) -> Finding:
    """Is the site profile valid?"""
    from hvdtrain.site import files
    from hvdtrain.site.files import Layer

    facts = _facts()
    try:
        found = [] if isinstance(facts, str) else [Layer(files.DETECTED, detect.profile(facts))]
        combined = files.combine([*found, *files.layers(Path.cwd(), None)])
    except UserError as error:
        return failed(
            str(error), "submit refuses to start", "correct that file; hvdtrain site show lists what is legal"
        )
    origins = sorted(set(combined.origins.values()))
    return ok(f"valid, from {', '.join(origins) or 'defaults alone'}")


@REGISTRY.add(_PART, "launcher")
def launcher(context: Context) -> Finding:
    """Which launcher does auto take, and why?"""
    facts = _facts()
    if isinstance(facts, str):
        return skipped(facts)
    info = build.installed()
    name, why = choice.decide(list(facts.mpi), info, ethernet=False)
    far, why_far = choice.decide(list(facts.mpi), info, ethernet=not machine.infiniband())
    if info is not None and info.mpi is not None and name == "gloo":
        plugin = "ask the administrator for SLURM's PMIx plugin (libpmix)"
        other = f"pip install 'hvdtrain[mpi]', then {build.COMMAND}"
        return warning(
            f"auto takes gloo: {why}",
            "MPI would be the faster of the two",
            plugin if info.mpi.startswith("Open MPI") else other,
        )
    if far != name:
        return ok(f"auto takes {name} within a node ({why}), {far} for {why_far}")
    return ok(f"auto takes {name}: {why}")


@REGISTRY.add(_PART, "gpu-types")
def gpu_types(context: Context) -> Finding:
    """Does SLURM know the GPUs by type?"""
    facts = _facts()
    if isinstance(facts, str):
        return skipped(facts)
    types = sorted({name for group in facts.groups for name in group.gpus})
    if not types:
        return skipped("no node has GPUs that SLURM knows of: ranks run on CPUs")
    if "" in types:
        return warning(
            "some GPUs have no type in SLURM",
            "--gpu-type cannot tell them apart, and one job may mix models",
            'name them by partition or constraint in the site profile: [gpus.a100] slurm = "" constraint = "a100"',
        )
    return ok(", ".join(types))


@REGISTRY.add(_PART, "accounting")
def accounting(context: Context) -> Finding:
    """Can GPU-hours be taken from sacct?"""
    facts = _facts()
    if isinstance(facts, str):
        return skipped(facts)
    if not facts.accounting:
        return warning(
            "SLURM keeps no accounts",
            "GPU-hours are estimated from wall clock, and ended jobs are forgotten after MinJobAge",
            "nothing to do: hvdtrain status reads its own records",
        )
    tres = facts.settings.get("AccountingStorageTRES", "")
    if "gres/gpu" not in tres:
        return warning(
            "SLURM accounts no GPUs",
            "GPU-hours are estimated from ranks",
            "AccountingStorageTRES=gres/gpu (administrator)",
        )
    return ok("sacct knows GPUs")


@REGISTRY.add(_PART, "controller-clock")
def controller_clock(context: Context) -> Finding:
    """Does this machine's clock agree with the SLURM controller's?"""
    facts = _facts()
    if isinstance(facts, str):
        return skipped(facts)
    ahead = allocation.clock_ahead()
    if ahead:
        return warning(
            f"this clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the SLURM controller's",
            "munge refuses credentials that are minutes off, and times in logs mislead (jobs keep their time limit all the same)",
            "ask the administrator about NTP",
        )
    return ok("within 2 s of the controller's")


@REGISTRY.add(_PART, "requeue")
def requeue(context: Context) -> Finding:
    """May jobs be started again?"""
    facts = _facts()
    if isinstance(facts, str):
        return skipped(facts)
    if facts.settings.get("JobRequeue") == "0":
        return warning(
            "JobRequeue=0: SLURM starts no job again",
            "after preemption or a time limit a cell waits for you",
            "hvdtrain resume STUDY goes on",
        )
    return ok("jobs may be requeued")


@REGISTRY.add(_PART, "kill-wait")
def kill_wait(context: Context) -> Finding:
    """How long do ranks have after SIGTERM?"""
    facts = _facts()
    if isinstance(facts, str):
        return skipped(facts)
    seconds = int((re.match(r"\d+", facts.settings.get("KillWait", "30")) or ["30"])[0])
    if seconds < 20:
        return warning(
            f"KillWait is {seconds} s",
            "a large checkpoint may not be written between SIGTERM and SIGKILL when a job is cancelled",
            "rely on the warning before the time limit: requeue.signal_seconds in the site profile",
        )
    return ok(f"{seconds} s between SIGTERM and SIGKILL")


@REGISTRY.add(_PART, "limits")
def limits(context: Context) -> Finding:
    """How large may arrays and queues be?"""
    facts = _facts()
    if isinstance(facts, str):
        return skipped(facts)
    size = int(facts.settings.get("MaxArraySize", "1001") or 1001)
    if size < 17:
        return warning(
            f"MaxArraySize is {size}", "a grid becomes many submissions", "nothing to do: submit splits arrays"
        )
    return ok(f"arrays of up to {size - 1} cells, {facts.settings.get('MaxJobCount', '?')} jobs in all")
