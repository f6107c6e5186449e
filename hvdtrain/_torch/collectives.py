"""Messages between ranks: what the rest of the torch side asks for, and how Horovod does it.

Every call must be made by all ranks. What is named may be started in any order; a name is free again when its flight landed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hvdtrain import objects


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
        from horovod.common.exceptions import HorovodInternalError
        from horovod.torch import mpi_ops

        self._hvd, self._ops, self._error = hvd, mpi_ops, HorovodInternalError
        # Divisor and operation; as Horovod's Python has them, which on ROCm divides by itself.
        self._average = (hvd.size(), hvd.Sum) if hvd.rocm_built() else (1, hvd.Average)
        #: Horovod's compiled function by type of tensor and kind of device.
        self._allreduce: dict[tuple[torch.dtype, bool], Callable[..., int]] = {}

    def start_allreduce(self, tensor: torch.Tensor, name: str, average: bool) -> Flight:
        # In a step this is called for each gradient, and `hvd.allreduce_async_`, which puts the name of the compiled function
        # together each time, would take half as long again (`bench/calls.py`).
        kind = tensor.dtype, tensor.is_cuda
        if (start := self._allreduce.get(kind)) is None or not tensor.is_contiguous():
            # Refuses what cannot be sent.
            function = self._ops._check_function(self._ops._allreduce_function_factory, tensor)
            start = self._allreduce[kind] = getattr(self._ops.mpi_lib, function)
        divisor, operation = self._average if average else (1, self._hvd.Sum)
        try:
            handle = start(tensor, tensor, divisor, name.encode(), operation, 1.0, 1.0, 0)
        except RuntimeError as error:
            raise self._error(error) from None
        return Flight(handle, tensor)

    def start_allgather(self, tensor: torch.Tensor, name: str) -> Flight:
        return Flight(self._hvd.allgather_async(tensor, name=name))

    def start_broadcast(self, tensor: torch.Tensor, name: str) -> Flight:
        return Flight(self._hvd.broadcast_async_(tensor, 0, name=name))

    def wait(self, flight: Flight) -> torch.Tensor:
        if flight.tensor is None:
            return self._hvd.synchronize(flight.handle)  # type: ignore[no-any-return]
        try:
            self._ops.mpi_lib.horovod_torch_wait_and_clear(flight.handle)
        except RuntimeError as error:
            raise self._error(error) from None
        return flight.tensor

    def broadcast_object(self, value: Any, name: str) -> Any:
        def send(array: np.ndarray, label: str) -> np.ndarray:
            # Horovod writes into the memory of what it is given, and pickled bytes are read-only.
            tensor = torch.from_numpy(array.copy())
            return self._hvd.broadcast_(tensor, 0, name=label).numpy()  # type: ignore[no-any-return]

        return objects.broadcast(value, self._hvd.rank(), send, name)

    def gather_objects(self, value: Any, name: str) -> list[Any]:
        def send(array: np.ndarray, label: str) -> np.ndarray:
            return self._hvd.allgather(torch.from_numpy(array.copy()), name=label).numpy()  # type: ignore[no-any-return]

        return objects.gather(value, self._hvd.size(), send, name)
