"""Begin: the world, Horovod for the backend that Keras runs on, and sums over all ranks."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import hvdtrain
from hvdtrain import launch, record
from hvdtrain import world as worlds
from hvdtrain._keras.backends import backend
from hvdtrain.errors import UserError
from hvdtrain.launch.session import Session
from hvdtrain.world import World


def init() -> World:
    """Join the world that the launcher started, and return this rank's place in it.

    Every check happens before Horovod starts. A process that nothing launched is a world of one, and needs no Horovod.
    From here on `model.fit` refuses an optimizer that would train each rank by itself. Calling it again returns the same world.

    Raises:
        UserError: what keeps the world from starting, and what to do; or a backend of Keras that Horovod does not know.
    """
    if launch.active is not None:
        return launch.active.world
    place = worlds.detect()
    own = backend()
    place = place.on(worlds.choose_device(own.visible_gpus(), place))
    session = launch.active = Session(place, own.framework)
    try:
        session.prepare()
        own.use(place)
        if place.size > 1:
            hvd = own.horovod()
            hvd.init()
            session.started(hvd.size(), hvd.rank(), lambda address: hvd.broadcast_object(address, 0, name="control"))
    except UserError:
        launch.active = session if session.world.size > 1 else None
        raise
    _record_start(place)
    from hvdtrain._keras.fitting import guard_fit

    guard_fit()
    return place


def world() -> World:
    """This rank's world.

    Raises:
        UserError: `init()` was not called.
    """
    if launch.active is None:
        raise UserError("call hvdtrain.keras.init() first: it finds this rank's place and starts Horovod")
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
    if world().size == 1 or not values:
        return list(values)
    with session().waiting():
        return backend().sum(values)


def gather_objects(value: Any) -> list[Any]:
    """`value` of every rank, in order of ranks; on every rank."""
    if world().size == 1:
        return [value]
    with session().waiting():
        gathered: list[Any] = backend().horovod().allgather_object(value)
    return gathered


def from_rank_zero(value: Any, what: str) -> Any:
    """`value` of rank 0, on every rank. `what` names it, the same on every rank."""
    if world().size == 1:
        return value
    with session().waiting():
        return backend().horovod().broadcast_object(value, root_rank=0, name=what)


def _record_start(place: World) -> None:
    """Rank 0 notes who takes part: the report must be able to say what the numbers were measured on."""
    members = gather_objects((place.node, backend().device_name(place)))
    cores = {(node, core) for node, bound in gather_objects((place.node, os.sched_getaffinity(0))) for core in bound}
    folder = record.run_dir()
    if place.rank != 0 or folder is None:
        return
    models = sorted({model for _, model in members if model != "cpu"})
    own = backend()
    mpi = place.size > 1 and own.horovod().mpi_enabled()
    record.begin(
        folder,
        {
            "device": "gpu" if models else "cpu",
            "hosts": list(dict.fromkeys(node for node, _ in members)),
            "gpu_models": models,
            "mixed": len({model for _, model in members}) > 1,
            "launcher": place.launcher,
            "controller": None if place.size == 1 else "mpi" if mpi else "gloo",
            "world_size": place.size,
            "cores": len(cores),
            "threads": own.threads(),
            "versions": {
                "python": platform.python_version(),
                "hvdtrain": hvdtrain.__version__,
                **_versions(own.package),
            },
        },
    )


def _versions(backend_package: str) -> dict[str, str]:
    found = {}
    for name in ("keras", backend_package, "horovod", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
