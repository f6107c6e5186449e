"""`strategy="ddp"`: torch.distributed instead of Horovod, to compare the two with the same script.

The ranks meet as for Horovod, rank 0 then tells them where its TCPStore listens, and Horovod leaves: its thread would take time
from what it is compared with.
"""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from hvdtrain._torch.collectives import Collectives, Flight
from hvdtrain.launch import network
from hvdtrain.world import World

_TIMEOUT = timedelta(seconds=1800)


def start(world: World, horovod: Collectives) -> None:
    """Start torch.distributed among the ranks that Horovod has brought together: NCCL between GPUs, else Gloo."""
    store, listening = None, None
    if world.rank == 0:
        host = network.own_address(world)
        store = TCPStore(host, 0, world.size, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)
        listening = (host, store.port)
    host, port = horovod.broadcast_object(listening, "process group")
    if store is None:
        store = TCPStore(host, port, world.size, is_master=False, timeout=_TIMEOUT)
    backend = "gloo" if world.device == "cpu" else "nccl"
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=_TIMEOUT)
    # Before the interpreter ends: a thread of the group that still gives back the last tensor would wait for an interpreter
    # that is gone, and abort the process.
    atexit.register(dist.destroy_process_group)


class ProcessGroup:
    """torch.distributed's operations, in a group of their own: DDP's buckets are under way in the other one."""

    def __init__(self, world: World) -> None:
        self._size = world.size
        self._rank = world.rank
        self._group = dist.new_group(backend="gloo")
        # Gloo moves memory of the CPU only; what is on a GPU goes by NCCL.
        self._on_gpu = dist.new_group(backend="nccl") if world.device != "cpu" else None

    def _for(self, tensor: torch.Tensor) -> Any:
        return self._on_gpu if tensor.is_cuda else self._group

    def start_allreduce(self, tensor: torch.Tensor, name: str, average: bool) -> Flight:
        handle = dist.all_reduce(tensor, group=self._for(tensor), async_op=True)
        return Flight(handle, tensor, self._size if average else 1)

    def start_allgather(self, tensor: torch.Tensor, name: str) -> Flight:
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        dist.all_gather(lengths, torch.tensor([len(tensor)]), group=self._group)
        longest = max(int(length) for length in lengths)
        padded = tensor.new_zeros((longest, *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in range(self._size)]
        if longest:
            dist.all_gather(parts, padded, group=self._for(tensor))
        return Flight(None, torch.cat([part[: int(length)] for part, length in zip(parts, lengths, strict=True)]))

    def start_broadcast(self, tensor: torch.Tensor, name: str) -> Flight:
        return Flight(dist.broadcast(tensor, 0, group=self._for(tensor), async_op=True), tensor)

    def wait(self, flight: Flight) -> torch.Tensor:
        if flight.handle is not None:
            flight.handle.wait()
        assert flight.tensor is not None
        if flight.divide_by != 1:
            flight.tensor.div_(flight.divide_by)
        return flight.tensor

    def broadcast_object(self, value: Any, name: str) -> Any:
        values = [value]
        dist.broadcast_object_list(values, 0, group=self._group)
        return values[0]

    def gather_objects(self, value: Any, name: str) -> list[Any]:
        gathered: list[Any] = [None] * self._size
        dist.all_gather_object(gathered, value, group=self._group)
        return gathered
