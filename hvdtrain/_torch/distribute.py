"""Make an optimizer step on gradients averaged over all ranks.

Horovod's own wrapper replaces the optimizer's class, and with it loses state, fires step hooks twice, refuses
`zero_grad(set_to_none=...)` and never reduces parameters added later. Here the optimizer stays itself: a hook on each
parameter starts the reduction as soon as its gradient is complete, during the backward pass, and a hook before the
step waits for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from hvdtrain import lr as rates
from hvdtrain import record
from hvdtrain._torch.start import session, world
from hvdtrain.errors import UserError

Model = TypeVar("Model", bound=nn.Module)
SomeOptimizer = TypeVar("SomeOptimizer", bound=Optimizer)

# What Horovod cannot put on the wire goes as single precision, and comes back as what it was.
_WIRE_TYPES = (torch.float32, torch.float64, torch.float16)


@dataclass
class _InFlight:
    """One gradient on its way: `wire` is the gradient itself, or a copy in a form that can travel."""

    handle: int
    wire: torch.Tensor


@dataclass
class Synchronizer:
    """What `distribute` adds to an optimizer; found again as `optimizer.hvdtrain`.

    Attributes:
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
            parameter.register_post_accumulate_grad_hook(self._send)
        self._hooked.add(parameter)
        self.names.setdefault(parameter, f"unnamed.{len(self.names)}")

    def _send(self, parameter: torch.Tensor) -> None:
        """Start averaging the gradient of `parameter` over all ranks."""
        import horovod.torch as hvd

        assert isinstance(parameter, nn.Parameter) and parameter.grad is not None
        if parameter in self._in_flight:
            raise UserError(
                f"the gradient of {self.names[parameter]} was computed twice before optimizer.step(): its average over the ranks "
                "is already under way. Call step() after each backward(); several losses: add them up first"
            )
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
        wire = parameter.grad
        if wire.dtype not in _WIRE_TYPES:
            wire = wire.float()
        wire = wire.contiguous()
        handle = hvd.allreduce_async_(wire, name=f"gradient.{self.names[parameter]}", op=hvd.Average)
        self._in_flight[parameter] = _InFlight(handle, wire)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The first of args is the optimizer itself.
        if kwargs.get("closure") or any(argument is not None for argument in args[1:]):
            raise UserError(
                "optimizer.step(closure) cannot be synchronised: the closure would compute gradients inside the step, a "
                "different number of times on each rank. Call backward() first, then step() without an argument"
            )
        began = time.perf_counter()
        if world().size > 1:
            self._finish()
        self._step_began = time.perf_counter()
        self.seconds_allreduce += self._step_began - began
        self._warm_up()

    def _finish(self) -> None:
        """Wait until every gradient is the average over all ranks, whichever ranks computed it."""
        import horovod.torch as hvd

        parameters = self._parameters()
        for parameter in parameters:
            if parameter not in self._hooked:
                # Added after `distribute`, on every rank alike: agree on its value, then treat it as the others.
                self._hook(parameter)
                _broadcast_tensors({self.names[parameter]: parameter})
                if parameter.grad is not None:
                    self._send(parameter)
        # A rank whose loss did not use a parameter sends zeros, or the others would wait for it for ever. Ranks also
        # say who had a gradient: where nobody had, it stays None as in one process (weight decay must not act on it).
        missing = [parameter for parameter in parameters if parameter not in self._in_flight]
        present = torch.ones(len(parameters))
        for index, parameter in enumerate(parameters):
            if parameter not in self._in_flight:
                present[index] = 0.0
                parameter.grad = torch.zeros_like(parameter)
                self._send(parameter)
        counted = hvd.allreduce_async_(present, name="gradients present", op=hvd.Sum)
        with session().waiting():
            for parameter, flight in self._in_flight.items():
                hvd.synchronize(flight.handle)
                assert parameter.grad is not None
                if flight.wire is not parameter.grad:
                    parameter.grad.copy_(flight.wire)
            hvd.synchronize(counted)
        self._in_flight.clear()
        if missing:
            for index, parameter in enumerate(parameters):
                if present[index] == 0.0:
                    parameter.grad = None

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


def distribute(
    model: Model,
    optimizer: SomeOptimizer,
    *,
    lr_rule: str = "linear",
    warmup_epochs: float = 0.0,
    steps_per_epoch: int | None = None,
) -> tuple[Model, SomeOptimizer]:
    """Start every rank from rank 0's state, and make `optimizer.step()` use gradients averaged over all ranks.

    Args:
        model: on this rank's device; parameters and buffers are overwritten with rank 0's.
        optimizer: of the model's parameters, with the learning rate for one rank; its state is overwritten with rank 0's.
        lr_rule: how its rates grow with the number of ranks: "none", "linear" or "sqrt" (see `hvdtrain.lr`).
        warmup_epochs: epochs in which they rise from the given rates to the scaled ones.
        steps_per_epoch: for a warm-up in a loop of your own; `fit` knows it.

    Returns:
        The same two objects.

    Raises:
        UserError: an optimizer that cannot be synchronised, or one that is wrapped already.
    """
    _refuse(model, optimizer)
    if lr_rule not in rates.RULES:
        raise UserError(f'lr_rule="{lr_rule}" is not one of {", ".join(rates.RULES)}')
    if warmup_epochs < 0:
        raise UserError(f"warmup_epochs={warmup_epochs} is negative")
    if world().size > 1:
        _broadcast(model, optimizer)
    scaling = rates.scale(lr_rule, world().size)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * scaling
    names = {parameter: name for name, parameter in model.named_parameters()}
    synchronizer = Synchronizer(optimizer, names, scaling, warmup_epochs, steps_per_epoch)
    synchronizer.attach()
    optimizer.hvdtrain = synchronizer  # type: ignore[attr-defined]
    if world().rank == 0:
        record.note(lr_rule=lr_rule, warmup_epochs=warmup_epochs, lr=float(optimizer.param_groups[0]["lr"]))
    return model, optimizer


def _refuse(model: nn.Module, optimizer: Optimizer) -> None:
    if hasattr(optimizer, "hvdtrain"):
        raise UserError("this optimizer was given to distribute() before; its gradients would be averaged twice")
    if hasattr(optimizer, "_allreduce_delay"):
        raise UserError("this optimizer is wrapped by hvd.DistributedOptimizer; give distribute() the plain one")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise UserError(
            f"the model is wrapped by {type(model).__name__}; give distribute() the plain model (model.module)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError(
            "LBFGS evaluates the loss a different number of times on each rank, so it cannot be synchronised"
        )
    schedulers = [group for group in optimizer.param_groups if "initial_lr" in group]
    if schedulers:
        raise UserError(
            "create the learning-rate scheduler after distribute(): it has already stored the rate of one rank"
        )


def _broadcast(model: nn.Module, optimizer: Optimizer) -> None:
    """Overwrite the state of every rank with rank 0's.

    The optimizer's state goes as one object: Horovod's `broadcast_optimizer_state` would take a real step to create
    it, which moves weights, and would skip the learning rate of a stateless SGD.
    """
    import horovod.torch as hvd

    _broadcast_tensors({**dict(model.named_parameters()), **dict(model.named_buffers())})
    with session().waiting():
        own = optimizer.state_dict() if world().rank == 0 else None
        # Named, because Horovod would name it after its type, which is another on rank 0.
        state = hvd.broadcast_object(own, root_rank=0, name="optimizer state")
    if world().rank != 0:
        optimizer.load_state_dict(state)


def _broadcast_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
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
