"""Gradients averaged over all ranks, by hooks on an optimizer that stays itself.

A hook on each parameter starts the average as soon as its gradient is complete, during the backward pass; a hook before the
step waits for all of them. What is between (clipping, unscaling) must wait first: `synchronize`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hvdtrain import lr as rates
from hvdtrain._torch.start import session, world
from hvdtrain.errors import UserError

# What Horovod cannot put on the wire goes as single precision, and comes back as what it was.
_WIRE_TYPES = (torch.float32, torch.float64, torch.float16)


@dataclass
class _InFlight:
    """One gradient on its way: `wire` is the gradient itself, or a copy in a form that can travel.

    Horovod writes the average into memory behind torch's back, so a `version` that has changed means that somebody else wrote
    there too.
    """

    handle: int
    gradient: torch.Tensor
    wire: torch.Tensor
    version: int


@dataclass
class Synchronizer:
    """What `distribute` adds to an optimizer; found again as `optimizer.hvdtrain`.

    Attributes:
        names: of the parameters, the same on every rank.
        scaling: what the learning rates were multiplied with for this world.
        steps_per_epoch: optimizer steps in an epoch, for the warm-up; `fit` sets it.
        steps: optimizer steps made so far.
        last_rate: learning rate of the first group in the last step, warm-up included.
        seconds_allreduce: waiting for other ranks before steps, since it was last set to 0.
        seconds_optimizer: in the optimizer's own step, likewise.
    """

    optimizer: Optimizer
    names: dict[nn.Parameter, str]
    scaling: float
    warmup_epochs: float
    steps_per_epoch: int | None
    steps: int = 0
    last_rate: float = float("nan")
    seconds_allreduce: float = 0.0
    seconds_optimizer: float = 0.0
    _synchronized: bool = False
    _local_only: bool = False
    _in_flight: dict[nn.Parameter, _InFlight] = field(default_factory=dict)
    _hooked: set[nn.Parameter] = field(default_factory=set)
    _scheduled_rates: list[Any] = field(default_factory=list)
    _step_began: float = 0.0

    def attach(self) -> None:
        """Register the hooks."""
        for parameter in self._parameters():
            self._hook(parameter)
        self.optimizer.register_step_pre_hook(self._before_step)
        self.optimizer.register_step_post_hook(self._after_step)

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]

    def _hook(self, parameter: nn.Parameter) -> None:
        if world().size > 1:
            parameter.register_post_accumulate_grad_hook(self._ready)
        self._hooked.add(parameter)
        self.names.setdefault(parameter, f"unnamed.{len(self.names)}")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add to this rank's gradients; the next one outside sends the sum."""
        self._local_only = True
        try:
            yield
        finally:
            self._local_only = False

    def synchronize(self) -> None:
        """Wait until every gradient is the average over all ranks, whichever ranks computed it. All ranks must call it."""
        began = time.perf_counter()
        if world().size > 1 and not self._synchronized:
            self._adopt_later_ones()
            self._finish()
        self._synchronized = True
        self.seconds_allreduce += time.perf_counter() - began

    def _ready(self, parameter: torch.Tensor) -> None:
        """The gradient of `parameter` is complete."""
        if self._local_only:
            return
        assert isinstance(parameter, nn.Parameter)
        # What was averaged before is the same on every rank, so averaging it again with what is added now does no harm.
        self._synchronized = False
        if parameter in self._in_flight:
            raise UserError(
                f"the gradient of {self.names[parameter]} was computed twice before optimizer.step(), and its average over the "
                "ranks was already under way. To accumulate gradients, put all but the last backward() under "
                "hvdtrain.torch.no_sync(optimizer); several losses: add them up and call backward() once"
            )
        self._send(parameter)

    def _send(self, parameter: nn.Parameter) -> None:
        """Start averaging the gradient of `parameter` over all ranks."""
        import horovod.torch as hvd

        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
        gradient = parameter.grad
        wire = gradient if gradient.dtype in _WIRE_TYPES else gradient.float()
        wire = wire.contiguous()
        handle = hvd.allreduce_async_(wire, name=f"gradient.{self.names[parameter]}", op=hvd.Average)
        self._in_flight[parameter] = _InFlight(handle, gradient, wire, gradient._version)

    def _adopt_later_ones(self) -> None:
        """Parameters added after `distribute`, on every rank alike: agree on their values, then treat them as the others."""
        for parameter in self._parameters():
            if parameter not in self._hooked:
                self._hook(parameter)
                broadcast_tensors({self.names[parameter]: parameter})

    def _finish(self) -> None:
        import horovod.torch as hvd

        parameters = self._parameters()
        # A rank whose loss did not use a parameter sends zeros, or the others would wait for it for ever. Ranks also
        # say who had a gradient: where nobody had, it stays None as in one process (weight decay must not act on it).
        present = torch.ones(len(parameters))
        missing = False
        for index, parameter in enumerate(parameters):
            if parameter not in self._in_flight:
                if parameter.grad is None:
                    missing = True
                    present[index] = 0.0
                    parameter.grad = torch.zeros_like(parameter)
                self._send(parameter)
        counted = hvd.allreduce_async_(present, name="gradients present", op=hvd.Sum)
        with session().waiting():
            for parameter, flight in self._in_flight.items():
                hvd.synchronize(flight.handle)
                self._land(parameter, flight)
            hvd.synchronize(counted)
        self._in_flight.clear()
        if missing:
            for index, parameter in enumerate(parameters):
                if present[index] == 0.0:
                    parameter.grad = None

    def _land(self, parameter: nn.Parameter, flight: _InFlight) -> None:
        if parameter.grad is not flight.gradient or flight.gradient._version != flight.version:
            raise UserError(
                f"the gradient of {self.names[parameter]} was changed between backward() and step(), while its average over the "
                "ranks was under way (clipping, unscaling, zero_grad?). Call hvdtrain.torch.synchronize(optimizer) after "
                "backward() and before you change gradients"
            )
        if flight.wire is not flight.gradient:
            flight.gradient.copy_(flight.wire)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The first of args is the optimizer itself.
        if kwargs.get("closure") or any(argument is not None for argument in args[1:]):
            raise UserError(
                "optimizer.step(closure) cannot be synchronised: the closure would compute gradients inside the step, a "
                "different number of times on each rank. Call backward() first, then step() without an argument"
            )
        self.synchronize()
        self._synchronized = False
        self._step_began = time.perf_counter()
        self._warm_up()

    def _warm_up(self) -> None:
        """Lower the rates for this step only, so that schedulers, which set them between steps, never notice."""
        factor = 1.0
        if self.warmup_epochs > 0 and self.scaling != 1.0:
            if self.steps_per_epoch is None:
                raise UserError(
                    "warmup_epochs needs to know how many steps an epoch has: give distribute(..., steps_per_epoch=len(train))"
                )
            factor = rates.warmup_factor(self.steps / self.steps_per_epoch, self.warmup_epochs, self.scaling)
        self._scheduled_rates = [group["lr"] for group in self.optimizer.param_groups]
        if factor != 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.last_rate = float(self.optimizer.param_groups[0]["lr"])
        for group, rate in zip(self.optimizer.param_groups, self._scheduled_rates, strict=True):
            group["lr"] = rate
        self.steps += 1
        self.seconds_optimizer += time.perf_counter() - self._step_began
        session().progress("training", self.steps)


def broadcast_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """Overwrite tensors with rank 0's, bit by bit: as bytes, since Horovod does not know every type (bfloat16)."""
    import horovod.torch as hvd

    with torch.no_grad(), session().waiting():
        flights = []
        for name, tensor in tensors.items():
            dense = tensor.detach().contiguous()
            handle = hvd.broadcast_async_(dense.reshape(-1).view(torch.uint8), 0, name=f"state.{name}")
            flights.append((handle, tensor, dense))
        for handle, tensor, dense in flights:
            hvd.synchronize(handle)
            if dense.data_ptr() != tensor.data_ptr():
                tensor.copy_(dense)
