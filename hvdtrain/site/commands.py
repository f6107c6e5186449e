"""Calls of SLURM's own programs, in one place: bounded in time, and quoted in full when they refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hvdtrain.errors import UserError

#: A busy controller answers within seconds; SLURM's own clients give up after about a minute.
SECONDS = 60.0
#: After so long somebody at a terminal is told what is waited for.
_SILENT_SECONDS = 2.0
#: What a job leaves in its environment. A job submitted from inside a job must not inherit the outer one's shape.
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "SUBMITIT_")
#: Of Horovod's variables only what a launcher sets: all others are settings of the user's, which are to reach the ranks.
_OF_A_LAUNCHER = {
    *(f"HOROVOD_{level}{name}" for level in ("", "LOCAL_", "CROSS_") for name in ("RANK", "SIZE")),
    *("HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_ELASTIC", "HOROVOD_SECRET_KEY"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
}
#: What a rank fills in where the user has not: left by an outer rank if there is one, else the user's own.
_OF_A_RANK = {"HOROVOD_GLOO_IFACE", "HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_FUSION_THRESHOLD"}
#: Which cluster is talked to, where a site has several.
CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")
_KEPT = ("SLURM_CONF", "SLURM_TIME_FORMAT", *CLUSTERS)
#: A user's defaults for srun.
_FOR_SRUN = ("SLURM_ACCOUNT", "SLURM_PARTITION", "SLURM_QOS")
_OURS = {
    *("HVDTRAIN_RUN_DIR", "HVDTRAIN_HELD_DIR", "HVDTRAIN_HELD_IN", "HVDTRAIN_LAUNCH_ID"),
    *("HVDTRAIN_LAUNCHER", "HVDTRAIN_JOB_STDERR", "HVDTRAIN_ATTEMPT"),
}


class SlurmError(UserError):
    """A SLURM program refused, or did not answer; the message holds its words."""


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what an outer job or launcher put there."""
    environ = os.environ if environ is None else environ
    left = {*_OURS, *_OF_A_LAUNCHER, *(_OF_A_RANK if {"HOROVOD_RANK", "HOROVOD_CONTROLLER"} & environ.keys() else ())}
    kept = {
        name: value
        for name, value in environ.items()
        # Settings of Open MPI (OMPI_MCA_...) are the user's own.
        if (name in _KEPT or "_MCA_" in name or not name.startswith(_OF_A_JOB)) and name not in left
        if name not in CLUSTERS or value.strip()
    }
    if "SBATCH_CLUSTERS" in kept:  # sbatch alone reads it: all others are to look where it submits to
        kept["SLURM_CLUSTERS"] = kept["SBATCH_CLUSTERS"]
    return kept


def cluster() -> str | None:
    """The one that is talked to, where the environment says which.

    Raises:
        SlurmError: it names several. sbatch and squeue take them, scontrol and sdiag do not.
    """
    kept = clean_environment()
    name = kept.get("SLURM_CLUSTERS", "").strip()
    if "," in name or name.lower() == "all":
        variable = "SBATCH_CLUSTERS" if "SBATCH_CLUSTERS" in kept else "SLURM_CLUSTERS"
        raise SlurmError(
            f"{variable}={name}: a study is of one cluster, so legal is the name of one: export {variable}=NAME "
            "(sacctmgr show clusters lists them)"
        )
    return name or None


def srun_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for an srun that makes a job of its own; the user's defaults for it count, an outer job's place does not."""
    environ = os.environ if environ is None else environ
    defaults = {} if "SLURM_JOB_ID" in environ else {name: environ[name] for name in _FOR_SRUN if name in environ}
    return clean_environment(environ) | defaults


def call(argv: Sequence[str], seconds: float = SECONDS, *, times: str | None = None) -> str:
    """What a SLURM program prints, with times in SLURM's usual form, or in that of `times`.

    Raises:
        SlurmError: it is not installed, refused, or did not answer in time; or several clusters are chosen.
    """
    cluster()
    # A user's own choice of time format or columns would make the answer unreadable.
    environment = {
        name: value
        for name, value in clean_environment().items()
        if not name.startswith(("SQUEUE_", "SACCT_", "SINFO_")) and name != "SLURM_TIME_FORMAT"
    } | ({} if times is None else {"SLURM_TIME_FORMAT": times})
    try:
        process = subprocess.Popen(
            list(argv), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not installed here, or not on the PATH") from None
    with process:
        try:
            out, err = _answer(process, argv[0], seconds)
        except BaseException as error:  # Ctrl-C too: a client that hangs must not outlive us
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise SlurmError(
                    f"{argv[0]} did not answer within {seconds:.0f} s: is the SLURM controller up?"
                ) from None
            raise
    if process.returncode != 0:
        words = (err.strip() or out.strip() or "it gave no reason").replace("\n", "\n  ")
        raise SlurmError(f"{argv[0]} ended with status {process.returncode}:\n  {words}")
    return out


def _answer(process: subprocess.Popen[str], name: str, seconds: float) -> tuple[str, str]:
    """What it prints; somebody who waits at a terminal is told what for."""
    try:
        return process.communicate(timeout=min(_SILENT_SECONDS, seconds))
    except subprocess.TimeoutExpired:
        if seconds <= _SILENT_SECONDS:
            raise
    shown = sys.stderr.isatty()
    if shown:
        print(f"waiting up to {seconds:.0f} s for {name} ...", end="", file=sys.stderr, flush=True)
    try:
        return process.communicate(timeout=seconds - _SILENT_SECONDS)
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def present() -> bool:
    """Whether SLURM's clients are installed here."""
    return shutil.which("sbatch") is not None
