"""What this machine has: cores and GPUs."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.world import World, choose_device

#: A healthy driver answers within a second or two; a broken one can hang for ever.
_SMI_SECONDS = 20.0
# As malloc.h has them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def infiniband() -> list[str]:
    """Names of this host's InfiniBand (or RoCE) devices."""
    folder = Path("/sys/class/infiniband")
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for what is allocated next, instead of giving it back to the kernel.

    Gradients are freed and allocated anew in every step. glibc gives blocks of megabytes back at once, and the kernel has to clear
    each page of them again at its first use: a quarter of a step of a model of 25 MB on a CPU core. The process stays as large
    as it was at its largest. Whoever has set MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ is left alone.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # The greatest values that it takes; from outside of glibc there may be no mallopt, or one that does nothing.
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """GPUs that a process started with `environ` could use, as CUDA_VISIBLE_DEVICES names them.

    What nvidia-smi lists, less what CUDA_VISIBLE_DEVICES hides.

    Raises:
        UserError: nvidia-smi is there and does not answer.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and chosen.strip() in ("", "-1"):
        return []
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_SMI_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"nvidia-smi -L did not answer within {_SMI_SECONDS:.0f} s: the GPU driver hangs. "
            "Repair it, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on CPUs"
        ) from error
    present = sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0
    if chosen is None:
        return [str(index) for index in range(present)]
    # As CUDA does: up to the first name that is none. SLURM writes NoDevFiles where it gave no GPU.
    names = [name.strip() for name in chosen.split(",")]
    return list(itertools.takewhile(lambda name: _names_a_gpu(name, present), names))[:present]


def _names_a_gpu(name: str, present: int) -> bool:
    return int(name) < present if name.isdecimal() else name.startswith(("GPU-", "MIG-"))


def keep_own_slice(world: World, environ: MutableMapping[str, str]) -> None:
    """Hide the parts of GPUs (MIG) of a node's other ranks from this one, before it uses CUDA.

    SLURM shows every rank those of all ranks of its node, and of several CUDA gives a process only the first.

    Raises:
        UserError: they are not as many as ranks on this node.
    """
    names = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if world.local_size > 1 and len(names) > 1 and all(name.startswith("MIG-") for name in names):
        environ["CUDA_VISIBLE_DEVICES"] = names[int(choose_device(len(names), world).partition(":")[2])]


#: Framework -> what to type for one that sees GPUs.
_WITH_CUDA = {
    "torch": "pip uninstall torch, then install it from PyPI, where it has CUDA, and build Horovod again (hvdtrain build-horovod)",
    "tensorflow": "pip install 'tensorflow[and-cuda]'",
}


def refuse_unseen_gpus(framework: str, seen: int, environ: Mapping[str, str]) -> None:
    """Nobody wants a node's GPUs to stand idle beside ranks on its CPUs without a word.

    Args:
        framework: "torch" or "tensorflow".
        seen: GPUs that it sees.

    Raises:
        UserError: none, although this node has some that are not hidden; or nvidia-smi does not answer.
    """
    if not seen and (gpus := visible_gpus(environ)):
        number = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
        raise UserError(
            f"this node shows {number} (nvidia-smi), but the installed {framework} sees none, because it is built without CUDA or "
            f"its CUDA is newer than the driver; ranks would train on CPUs. Type: {_WITH_CUDA[framework]}; or hide the GPUs with "
            "CUDA_VISIBLE_DEVICES= to train on CPUs"
        )


def gpu_of_each(ranks: int, environ: Mapping[str, str]) -> list[str]:
    """The GPU of each rank, when all `ranks` are on this machine, as CUDA_VISIBLE_DEVICES names it; empty when they train on CPUs.

    Raises:
        UserError: there are GPUs, but fewer than ranks; or nvidia-smi does not answer.
    """
    gpus = visible_gpus(environ)
    if gpus and ranks > len(gpus):
        raise UserError(
            f"{ranks} ranks need {ranks} GPUs, but this machine shows {len(gpus)}; "
            "hide them with CUDA_VISIBLE_DEVICES= to train on CPUs"
        )
    return gpus[:ranks]


def find_mpirun() -> str | None:
    """mpirun beside this interpreter, where PyPI's Open MPI puts it and which need not be on the PATH, or on the PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


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
