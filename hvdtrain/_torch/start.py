"""Begin: the world, Horovod for torch, and sums over all ranks."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch

import hvdtrain
from hvdtrain import launch, record
from hvdtrain import world as worlds
from hvdtrain.errors import UserError
from hvdtrain.launch.session import Session
from hvdtrain.world import World


def init() -> World:
    """Join the world that the launcher started, and return this rank's place in it.

    Every check happens before Horovod starts. A process that nothing launched is a world of one, and needs no Horovod.
    Calling it again returns the same world.

    Raises:
        UserError: what keeps the world from starting, and what to do.
    """
    if launch.active is not None:
        return launch.active.world
    place = worlds.detect()
    place = place.on(worlds.choose_device(torch.cuda.device_count(), place))
    session = launch.active = Session(place, "torch")
    try:
        session.prepare()
        if place.device != "cpu":
            torch.cuda.set_device(torch.device(place.device))
        if place.size > 1:
            _start_horovod(session)
    except UserError:
        launch.active = session if session.world.size > 1 else None
        raise
    _record_start(place)
    return place


def _start_horovod(session: Session) -> None:
    import horovod.torch as hvd

    hvd.init()
    session.started(hvd.size(), hvd.rank(), lambda address: hvd.broadcast_object(address, 0, name="control"))


def world() -> World:
    """This rank's world.

    Raises:
        UserError: `init()` was not called.
    """
    if launch.active is None:
        raise UserError("call hvdtrain.torch.init() first: it finds this rank's place and starts Horovod")
    return launch.active.world


def session() -> Session:
    """This rank's session; like `world`, it needs `init()`."""
    world()
    assert launch.active is not None
    return launch.active


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Element-wise sum of `values` over all ranks, in double precision: for counts and sums of losses.

    All ranks must call it with the same number of values, shape (n,).
    """
    if world().size == 1:
        return list(values)
    import horovod.torch as hvd

    with session().waiting():
        total: torch.Tensor = hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Sum)
    return [float(value) for value in total.tolist()]


def gather_objects(value: Any) -> list[Any]:
    """`value` of every rank, in order of ranks; on every rank."""
    if world().size == 1:
        return [value]
    import horovod.torch as hvd

    with session().waiting():
        gathered: list[Any] = hvd.allgather_object(value)
    return gathered


def _record_start(place: World) -> None:
    """Rank 0 notes who takes part: the report must be able to say what the numbers were measured on."""
    device = torch.cuda.get_device_name(place.device) if place.device != "cpu" else "cpu"
    members = gather_objects((place.node, device))
    # A rank may be bound to some cores only: those of a node are the union over its ranks.
    cores = {(node, core) for node, bound in gather_objects((place.node, os.sched_getaffinity(0))) for core in bound}
    folder = record.run_dir()
    if place.rank != 0 or folder is None:
        return
    models = sorted({model for _, model in members if model != "cpu"})
    record.begin(
        folder,
        {
            "device": "gpu" if models else "cpu",
            "hosts": list(dict.fromkeys(node for node, _ in members)),
            "gpu_models": models,
            "mixed": len({model for _, model in members}) > 1,
            "launcher": place.launcher,
            "controller": _controller(place),
            "world_size": place.size,
            "cores": len(cores),
            "threads": torch.get_num_threads(),
            "versions": {"python": platform.python_version(), "hvdtrain": hvdtrain.__version__, **_versions()},
        },
    )


def _controller(place: World) -> str | None:
    if place.size == 1:
        return None
    import horovod.torch as hvd

    return "mpi" if hvd.mpi_enabled() else "gloo"


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "horovod", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
