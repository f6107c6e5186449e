"""What a training notes of itself when it starts: the report must be able to say what the numbers were measured on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

import hvdtrain
from hvdtrain import gpus, record
from hvdtrain.errors import UserError
from hvdtrain.world import World


def record_start(
    place: World, device: str, packages: Iterable[str], gather: Callable[[Any], list[Any]], **facts: Any
) -> None:
    """Rank 0 notes who takes part. All ranks must call it.

    Args:
        device: model of this rank's GPU, or "cpu".
        packages: whose versions count.
        gather: gives every rank what each rank passed to it.
        facts: more to note.
    """
    members = gather((place.node, device))
    # A rank may be bound to some cores only: those of a node are the union over its ranks.
    cores = {(node, core) for node, bound in gather((place.node, os.sched_getaffinity(0))) for core in bound}
    each = gather({"rank": place.rank, "host": place.node, "device": device, **gpus.describe(place.device)})
    folder = record.run_dir()
    if folder is not None:
        gpus.sample(place.device, place.rank, folder)
    if place.rank != 0 or folder is None:
        return
    models = sorted({model for _, model in members if model != "cpu"})
    versions = {"python": platform.python_version(), "hvdtrain": hvdtrain.__version__}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    record.begin(
        folder,
        {
            "device": "gpu" if models else "cpu",
            "hosts": list(dict.fromkeys(node for node, _ in members)),
            "gpu_models": models,
            "mixed": len({model for _, model in members}) > 1,
            "ranks": each,
            "launcher": place.launcher,
            "world_size": place.size,
            "cores": len(cores),
            "versions": versions,
            **facts,
        },
    )


class SeveralForOne(UserError):
    """Several ranks of a job for one process; no rank has met another yet, but all say the same."""

    agreed = True


def refuse_several(place: World, strategy: str) -> None:
    """A strategy of one process must not run in a world of several, each of which would train by itself.

    Raises:
        SeveralForOne: it does.
    """
    if place.size == 1:
        return
    # Launchers end all ranks as soon as one leaves: rank 0 speaks first.
    time.sleep(0.0 if place.rank == 0 else 2.0)
    raise SeveralForOne(
        f'strategy "{strategy}" is one process, but {place.size} ranks were started; start one, or take strategy "horovod"'
    )
