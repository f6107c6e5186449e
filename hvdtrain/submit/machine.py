"""What this machine has: cores and GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UserError

#: A healthy driver answers within a second or two; a broken one can hang for ever.
_SMI_SECONDS = 20.0


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def visible_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that a rank started with `environ` could use: what nvidia-smi lists, less what CUDA_VISIBLE_DEVICES hides.

    Raises:
        UserError: nvidia-smi is there and does not answer.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and chosen.strip() in ("", "-1"):
        return 0
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return 0
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_SMI_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"nvidia-smi -L did not answer within {_SMI_SECONDS:.0f} s: the GPU driver hangs. "
            "Repair it, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on CPUs"
        ) from error
    present = sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0
    return present if chosen is None else min(present, len(chosen.split(",")))


def has_mpirun(python: str, environ: Mapping[str, str]) -> bool:
    """Whether the launcher will find mpirun: beside the interpreter, where PyPI's Open MPI puts it, or on the PATH."""
    return Path(python).with_name("mpirun").exists() or shutil.which("mpirun", path=environ.get("PATH")) is not None


def check_ranks(ranks: list[int], gpus: int, cores: int) -> list[str]:
    """Notes on running these numbers of ranks here.

    Raises:
        UserError: more ranks than GPUs, on a machine that has GPUs.
    """
    most = max(ranks)
    if gpus and most > gpus:
        legal = [n for n in ranks if n <= gpus]
        instead = f"; without the rest: --gpus {','.join(map(str, legal))}" if legal else ""
        raise UserError(
            f"--gpus {','.join(map(str, ranks))}: {most} ranks need {most} GPUs and this machine shows {gpus}; "
            f"legal are 1 to {gpus}{instead} (or hide the GPUs with --env CUDA_VISIBLE_DEVICES= to train on CPUs)"
        )
    if not gpus and most > cores:
        plural = "s" if cores > 1 else ""
        return [
            f"{most} ranks share {cores} core{plural}: efficiency beyond {cores} rank{plural} measures the machine, "
            "not the training"
        ]
    return []
