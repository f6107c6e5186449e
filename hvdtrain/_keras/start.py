"""Begin: the world, Horovod for the backend that Keras runs on, and sums over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvdtrain import launch
from hvdtrain import world as worlds
from hvdtrain._keras.backends import backend
from hvdtrain.errors import UserError
from hvdtrain.launch.session import Session
from hvdtrain.starting import record_start
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
    controller = None if place.size == 1 else "mpi" if own.horovod().mpi_enabled() else "gloo"
    packages = ("keras", own.package, "horovod", "numpy")
    facts = {"controller": controller, "strategy": "horovod", "threads": own.threads()}
    record_start(place, own.device_name(place), packages, gather_objects, **facts)
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
