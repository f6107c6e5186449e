"""Begin: the world, Horovod for torch, and sums over all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from hvdtrain import launch, machine
from hvdtrain import world as worlds
from hvdtrain._torch.collectives import Collectives, Horovod
from hvdtrain.errors import UserError, nearest
from hvdtrain.launch.session import Session
from hvdtrain.objects import PIECE
from hvdtrain.starting import record_start, refuse_several
from hvdtrain.together import first_of_node
from hvdtrain.world import World

STRATEGIES = ("horovod", "ddp", "single")


def init(strategy: str = "horovod") -> World:
    """Join the world that the launcher started, and return this rank's place in it.

    Every check happens before Horovod starts. A process that nothing launched is a world of one, and needs no Horovod.
    Calling it again returns the same world.

    Args:
        strategy: what averages gradients: "horovod"; "ddp", torch's DistributedDataParallel, to compare with; "single" for one
            process, which refuses to run as one of several.

    Raises:
        UserError: what keeps the world from starting, and what to do.
    """
    global _strategy, _collectives
    if strategy not in STRATEGIES:
        raise UserError(f'strategy="{strategy}" is not one of {", ".join(STRATEGIES)}{nearest(strategy, STRATEGIES)}')
    if launch.active is not None:
        if strategy != _strategy:
            raise UserError(f'init(strategy="{strategy}") after init(strategy="{_strategy}"): a process has one world')
        return launch.active.world
    _strategy = strategy
    place = worlds.detect()
    machine.keep_own_slice(place, os.environ)
    seen = torch.cuda.device_count()
    machine.refuse_unseen_gpus("torch", seen, os.environ)
    place = place.on(worlds.choose_device(seen, place))
    session = launch.active = Session(place, "torch", strategy)
    try:
        if strategy == "single":
            refuse_several(place, strategy)
        session.prepare()
        if place.device != "cpu":
            torch.cuda.set_device(torch.device(place.device))
        else:
            machine.keep_freed_memory()
        if place.size > 1:
            _collectives = _start(session, strategy)
    except UserError:
        launch.active = session if session.world.size > 1 else None
        raise
    record_start(
        place,
        torch.cuda.get_device_name(place.device) if place.device != "cpu" else "cpu",
        ("torch", "horovod", "numpy"),
        gather_objects,
        controller=_controller(place),
        strategy=_strategy,
        threads=torch.get_num_threads(),
    )
    return place


def _start(session: Session, strategy: str) -> Collectives:
    import horovod.torch as hvd

    session.start(hvd)
    if strategy == "horovod":
        return Horovod()
    from hvdtrain._torch import process_group

    process_group.start(session.world, Horovod())
    hvd.shutdown()
    return process_group.ProcessGroup(session.world)


_strategy = "horovod"
_collectives: Collectives | None = None


def strategy() -> str:
    """What `init` was given."""
    return _strategy


def collectives() -> Collectives:
    """How this rank talks to the others; only in a world of several."""
    if _collectives is None:
        raise UserError("call hvdtrain.torch.init() first: it finds this rank's place and starts Horovod")
    return _collectives


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
    with session().waiting():
        flight = collectives().start_allreduce(
            torch.tensor(values, dtype=torch.float64), "sum over ranks", average=False
        )
        total = collectives().wait(flight)
    return [float(value) for value in total.tolist()]


def gather_objects(value: Any) -> list[Any]:
    """`value` of every rank, in order of ranks; on every rank."""
    if world().size == 1:
        return [value]
    with session().waiting():
        return collectives().gather_objects(value, "gathered")


def from_rank_zero(value: Any) -> Any:
    """Rank 0's `value`, on every rank."""
    if world().size == 1:
        return value
    with session().waiting():
        return collectives().broadcast_object(value, "from rank 0")


def broadcast_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """Overwrite tensors with rank 0's, bit by bit: as bytes, since Horovod does not know every type (bfloat16)."""
    with torch.no_grad(), session().waiting():
        flights = []
        for name, tensor in tensors.items():
            dense = tensor.detach().contiguous()
            pieces = dense.reshape(-1).view(torch.uint8).split(PIECE)
            under_way = [
                collectives().start_broadcast(piece, f"state.{name}.{number}") for number, piece in enumerate(pieces)
            ]
            flights.append((under_way, tensor, dense))
        for under_way, tensor, dense in flights:
            for flight in under_way:
                collectives().wait(flight)
            if dense.data_ptr() != tensor.data_ptr():
                tensor.copy_(dense)


def _controller(place: World) -> str | None:
    if place.size == 1:
        return None
    if _strategy == "ddp":
        return "gloo" if place.device == "cpu" else "nccl"
    import horovod.torch as hvd

    return "mpi" if hvd.mpi_enabled() else "gloo"


def rank_zero_first() -> AbstractContextManager[None]:
    """One rank of each node runs the body, then the others do: for downloads and caches. All ranks must enter it.

    When the body fails on any rank, every rank ends with that failure's message. It must end within the stall timeout.

        with ht.rank_zero_first():
            data = torchvision.datasets.MNIST(folder, download=True)

    Raises:
        hvdtrain.together.FailedElsewhere: the body failed on some rank.
    """
    return first_of_node(world(), gather_objects)
