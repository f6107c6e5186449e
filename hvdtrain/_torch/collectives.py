"""Messages between ranks: what the rest of the torch side asks for, and how Horovod does it.

Every call must be made by all ranks. What is named may be started in any order; a name is free again when its flight landed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class Flight:
    """A message under way: `handle` is the transport's own, `tensor` where the result will be (None: only `wait` knows)."""

    handle: Any
    tensor: torch.Tensor | None = None
    divide_by: int = 1


class Collectives(Protocol):
    """What a strategy must offer."""

    def start_allreduce(self, tensor: torch.Tensor, name: str, average: bool) -> Flight:
        """Sum or average over the ranks, in place."""

    def start_allgather(self, tensor: torch.Tensor, name: str) -> Flight:
        """All ranks' tensors, one after the other along the first dimension, which alone may differ."""

    def start_broadcast(self, tensor: torch.Tensor, name: str) -> Flight:
        """Rank 0's tensor, in place."""

    def wait(self, flight: Flight) -> torch.Tensor:
        """The result."""

    def broadcast_object(self, value: Any, name: str) -> Any:
        """Rank 0's value, of any type that can be pickled."""

    def gather_objects(self, value: Any, name: str) -> list[Any]:
        """The values of all ranks, in their order."""


class Horovod:
    """Horovod's own operations, by Gloo, MPI or NCCL as it was built and started."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd

    def start_allreduce(self, tensor: torch.Tensor, name: str, average: bool) -> Flight:
        op = self._hvd.Average if average else self._hvd.Sum
        return Flight(self._hvd.allreduce_async_(tensor, name=name, op=op), tensor)

    def start_allgather(self, tensor: torch.Tensor, name: str) -> Flight:
        return Flight(self._hvd.allgather_async(tensor, name=name))

    def start_broadcast(self, tensor: torch.Tensor, name: str) -> Flight:
        return Flight(self._hvd.broadcast_async_(tensor, 0, name=name), tensor)

    def wait(self, flight: Flight) -> torch.Tensor:
        result: torch.Tensor = self._hvd.synchronize(flight.handle)
        return result

    def broadcast_object(self, value: Any, name: str) -> Any:
        # Named, because Horovod would name it after its type, which may be another on rank 0.
        return self._hvd.broadcast_object(value, root_rank=0, name=name)

    def gather_objects(self, value: Any, name: str) -> list[Any]:
        gathered: list[Any] = self._hvd.allgather_object(value, name=name)
        return gathered
