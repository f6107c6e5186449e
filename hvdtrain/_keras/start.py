"""Begin: the world, Horovod for the backend that Keras runs on, and sums over all ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from hvdtrain import launch, machine
from hvdtrain import world as worlds
from hvdtrain._keras.backends import backend
from hvdtrain.errors import UserError, nearest
from hvdtrain.launch.session import Session
from hvdtrain.starting import record_start, refuse_several
from hvdtrain.together import first_of_node
from hvdtrain.world import World


def init(strategy: str = "horovod") -> World:
    """Join the world that the launcher started, and return this rank's place in it.

    Every check happens before Horovod starts. A process that nothing launched is a world of one, and needs no Horovod.
    From here on `model.fit` refuses an optimizer that would train each rank by itself. Calling it again returns the same world.

    Args:
        strategy: what averages gradients: "horovod", or to compare with it, on TensorFlow, "multiworker" (one process per device,
            as for Horovod), "mirrored" or "tpu" (one process drives all devices); "single" for one process and one device.

    Raises:
        UserError: what keeps the world from starting, and what to do; or a backend of Keras that Horovod does not know.
    """
    global _strategy
    own = backend()
    if strategy not in own.strategies:
        raise UserError(
            f'strategy="{strategy}" is not one of {", ".join(own.strategies)}{nearest(strategy, own.strategies)} '
            f"(Keras runs on {own.package})"
        )
    if launch.active is not None:
        if strategy != _strategy:
            raise UserError(f'init(strategy="{strategy}") after init(strategy="{_strategy}"): a process has one world')
        return launch.active.world
    _strategy = strategy
    place = worlds.detect()
    machine.keep_own_slice(place, os.environ)
    seen = own.visible_gpus()
    machine.refuse_unseen_gpus(own.package, seen, os.environ)
    place = place.on(worlds.choose_device(seen, place))
    session = launch.active = Session(place, own.framework, strategy)
    controller = None
    try:
        if strategy in ("single", "mirrored", "tpu"):
            refuse_several(place, strategy)
        session.prepare()
        if place.device == "cpu":
            machine.keep_freed_memory()
        own.use(place, strategy)
        if place.size > 1:
            controller = own.start(session, strategy)
    except UserError:
        launch.active = session if session.world.size > 1 else None
        raise
    packages = ("keras", own.package, "horovod", "numpy")
    facts = {"controller": controller, "strategy": strategy, "replicas": replicas(), "threads": own.threads()}
    record_start(place, own.device_name(place), packages, gather_objects, **facts)
    from hvdtrain._keras.fitting import guard_fit

    guard_fit()
    return place


_strategy = "horovod"


def strategy() -> str:
    """What `init` was given."""
    return _strategy


def in_process() -> int:
    """Devices that this process drives."""
    found = backend().replicas()
    return 1 if found is None else found.number


def replicas() -> int:
    """Devices that train alongside each other, each on its part of a step: what the learning rate is scaled with."""
    return world().size * in_process()


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
        return backend().ranks().add(values)


def gather_objects(value: Any) -> list[Any]:
    """`value` of every rank, in order of ranks; on every rank."""
    if world().size == 1:
        return [value]
    with session().waiting():
        return backend().ranks().gather_objects(value)


def from_rank_zero(value: Any, what: str) -> Any:
    """`value` of rank 0, on every rank. `what` names it, the same on every rank."""
    if world().size == 1:
        return value
    with session().waiting():
        return backend().ranks().broadcast_object(value, what)


def rank_zero_first() -> AbstractContextManager[None]:
    """One rank of each node runs the body, then the others do: for downloads and caches. All ranks must enter it.

    When the body fails on any rank, every rank ends with that failure's message. It must end within the stall timeout.

        with hk.rank_zero_first():
            data = keras.datasets.mnist.load_data()

    Raises:
        hvdtrain.together.FailedElsewhere: the body failed on some rank.
    """
    return first_of_node(world(), gather_objects)
