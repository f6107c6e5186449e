"""Gradients averaged over all ranks, by hooks on an optimizer that stays itself.

A hook on each parameter starts the average as soon as its gradient is complete, during the backward pass; a hook before the
step waits for all of them. What is between (clipping, unscaling) must wait first: `synchronize`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hvdtrain import lr as rates
from hvdtrain._torch import replicas
from hvdtrain._torch.agreement import agree_to_stop, agreed_stop, own_stop
from hvdtrain._torch.clock import Clock
from hvdtrain._torch.exchange import Exchange, Message
from hvdtrain._torch.pace import Pace
from hvdtrain._torch.start import broadcast_tensors, session, sum_over_ranks, world
from hvdtrain.errors import UserError, agreed

#: Of all optimizers, so that a parameter is averaged for one of them only.
_attached: weakref.WeakSet[Synchronizer] = weakref.WeakSet()


@dataclass(eq=False)
class Synchronizer:
    """What `distribute` adds to an optimizer; found again as `optimizer.hvdtrain`.

    Attributes:
        exchange: how gradients travel.
        pace: steps, epochs and rates.
        ddp: the wrapped model, when torch's DDP averages the gradients.
        check_every: steps between two comparisons of the replicas; 0 for never.
        clock: seconds waiting for other ranks before steps, and in the optimizer's own step.
        not_finite: this rank's loss is no number; set before a step, it makes `diverged` True on all ranks after it.
        weight: of this rank's batches of the step, set before it; of all ranks' together after it.
        loss_scale: what gradients are multiplied with in this step.
        adascale: its gain, where the rule is "adascale".
        averaged: called once, as soon as the gradients of this step are: to look at them or change them.
    """

    optimizer: Optimizer
    exchange: Exchange
    pace: Pace
    ddp: DistributedDataParallel | None = None
    check_every: int = 0
    clock: Clock = field(default_factory=lambda: Clock("cpu"))
    not_finite: bool = False
    diverged: bool = False
    weight: float = 0.0
    loss_scale: float = 1.0
    adascale: rates.AdaScale | None = None
    averaged: Callable[[], None] | None = None
    _synchronized: bool = False
    _local_only: bool = False
    #: Parameters whose gradients are averaged for this optimizer, and what removes the hook.
    _hooked: dict[nn.Parameter, Any] = field(default_factory=dict)
    #: How many parameters there were when DDP was found to average all; None where one may have taken another's place since.
    _within_ddp: int | None = None
    _lost: set[nn.Parameter] = field(default_factory=set)

    def attach(self) -> None:
        """Register the hooks."""
        for parameter in self._parameters():
            self._hook(parameter)
        self.optimizer.register_step_pre_hook(self._before_step)
        self.optimizer.register_step_post_hook(self._after_step)
        self.exchange.measure = self.adascale is not None
        _attached.add(self)

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]

    def _hook(self, parameter: nn.Parameter) -> None:
        for other in list(_attached):
            if other is not self:
                other._let_go(parameter)
        message, hook = self.exchange.message(parameter), None
        if world().size > 1 and self.ddp is None:
            hook = parameter.register_post_accumulate_grad_hook(lambda _: self._ready(message))
        self._hooked[parameter] = hook

    def _let_go(self, parameter: nn.Parameter) -> None:
        """Another optimizer trains `parameter` from now on, as in the second phase of a fine-tuning."""
        if parameter not in self._hooked:
            return
        if self.exchange.message(parameter).flights:
            raise UserError(
                f"the average of the gradient of {self.exchange.names[parameter]} is under way for another optimizer: call "
                "distribute() before backward(), or after the step"
            )
        hook = self._hooked.pop(parameter)
        if hook is not None:
            hook.remove()
        self._lost.add(parameter)

    def _refuse_lost(self) -> None:
        lost = [self.exchange.names[parameter] for parameter in self._parameters() if parameter in self._lost]
        if lost:
            others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise UserError(
                f"{lost[0]}{others} of this {type(self.optimizer).__name__} were given to another optimizer, by a later "
                "distribute(): gradients are averaged for one optimizer only. Step the later one, or leave these out of it"
            )

    def _refuse_outside_ddp(self, ddp: DistributedDataParallel) -> None:
        """DDP looked at the model when it was wrapped, and averages nothing that is trained since."""
        parameters = self._parameters()
        if len(parameters) == self._within_ddp:
            return  # in each step: looking them all up takes several times as long
        averaged = cast("set[nn.Parameter]", ddp.hvdtrain)
        outside = [parameter for parameter in parameters if parameter not in averaged]
        if outside:
            name = self.exchange.message(outside[0]).name
            others = f" and {len(outside) - 1} more" if len(outside) > 1 else ""
            raise agreed(
                UserError(
                    f"{name}{others} of this {type(self.optimizer).__name__} came to be trained after distribute(), and DDP "
                    "averages only what was before. Call distribute() again, with a new optimizer of all that is trained now, "
                    'and go on with the model that it returns; or take strategy "horovod"'
                )
            )
        self._within_ddp = len(parameters)

    @property
    def stop_agreed(self) -> bool:
        """All ranks know by now that one of them was asked to stop."""
        return agreed_stop() != 0

    @contextmanager
    def driven(self, schedule: rates.Schedule | None) -> Iterator[None]:
        """By `fit`, which knows where in which epoch a step is. However it ends, after it steps tell, and no schedule is left."""
        self._within_ddp = None
        try:
            with self.pace.driven(schedule):
                yield
        finally:
            self.exchange.measure = self.adascale is not None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add to this rank's gradients; the next one outside sends the sum."""
        self._local_only = True
        try:
            with self.ddp.no_sync() if self.ddp is not None else nullcontext():
                yield
        finally:
            self._local_only = False
            session().progress("training")  # a step of many batches may take long

    def synchronize(self) -> None:
        """Wait until every gradient is the average over all ranks, whichever ranks computed it. All ranks must call it.

        Averaging what was averaged before does no harm, so every call does it: a rank that has no gradient in this step cannot
        tell whether the others have.
        """
        if self._lost:
            self._refuse_lost()
        if self.ddp is not None:
            self._refuse_outside_ddp(self.ddp)
        numbers = self._numbers()
        if world().size > 1:
            with self.clock.phase("allreduce"):
                known, later = ([], []) if self.ddp is not None else self._known_and_later_ones()
                numbers = self.exchange.finish(known, numbers)
                if later:
                    self._adopt(later)
        agree_to_stop(numbers[:3])
        self.diverged, self.weight = numbers[3] > 0, numbers[4]
        if self.exchange.measure and not self._synchronized:
            self._measured()
        self._synchronized = True
        if self.averaged is not None:
            call, self.averaged = self.averaged, None
            call()

    def forget(self) -> None:
        """Drop the gradients that a loop before has left, also where they are on their way. All ranks must call it.

        On some ranks they may be and on others not, so the ranks tell each other.
        """
        if self.ddp is None and sum_over_ranks([len(self.exchange.under_way)])[0]:
            self.exchange.discard(self._known_and_later_ones()[0], self._numbers())
        self.optimizer.zero_grad()
        self.begin_step()

    def square_norm(self) -> float:
        """Square norm of the gradients as they are now."""
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        values = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
        if not values:
            return 0.0
        return float(torch.stack(torch._foreach_norm(values)).double().square().sum())

    def _measured(self) -> None:
        """The ranks' own square norms are known: `exchange.local_square` is their sum."""
        if self.adascale is not None and world().size > 1:
            unscale = self.loss_scale**-2
            mean_of_squares = float(self.exchange.local_square) / world().size
            self.adascale.update(mean_of_squares * unscale, self.square_norm() * unscale)

    def _ready(self, message: Message) -> None:
        """The gradient of a parameter is complete."""
        if self._local_only:
            return
        if self._synchronized:
            # What was averaged before is the same on every rank, so averaging it again with what is added now does no harm.
            self.begin_step()
        if message.flights:
            raise UserError(
                f"the gradient of {message.name} was computed twice before optimizer.step(), and its average over the ranks was "
                "already under way. To accumulate gradients, put all but the last backward() under "
                "hvdtrain.torch.no_sync(optimizer); several losses: add them up and call backward() once"
            )
        last = len(self.exchange.under_way) + 1 == len(self._hooked) and self._hooked.keys() == set(self._parameters())
        self.exchange.start(message, self._numbers() if last else None)

    def _numbers(self) -> list[float]:
        """That all ranks learn the sums of in this step, shape (5,)."""
        return [*own_stop(), float(self.not_finite), self.weight]

    def begin_step(self) -> None:
        """Gradients from here on are not averaged yet."""
        self._synchronized = False
        self.exchange.local_square = 0.0

    def _known_and_later_ones(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters whose gradients come by hooks, and those that were added to the optimizer since.

        One that was taken out of it still has its hook, so that ranks that do not use it in this step must send zeros.
        """
        known = [parameter for parameter in self._hooked if parameter.requires_grad]
        return known, [parameter for parameter in self._parameters() if parameter not in self._hooked]

    def _adopt(self, later: list[nn.Parameter]) -> None:
        """Parameters added after `distribute`, on every rank alike: agree on their values, then treat them as the others.

        Their gradients of this step travel by themselves, for the others' may be under way already.
        """
        for parameter in later:
            self._hook(parameter)
            broadcast_tensors({self.exchange.names[parameter]: parameter})
        exchange = self.exchange
        measure, square = exchange.measure, exchange.local_square
        exchange.measure = False
        exchange.finish(later, ())
        exchange.measure, exchange.local_square = measure, square

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The first of args is the optimizer itself.
        if kwargs.get("closure") or any(argument is not None for argument in args[1:]):
            raise UserError(
                "optimizer.step(closure) cannot be synchronised: the closure would compute gradients inside the step, a "
                "different number of times on each rank. Call backward() first, then step() without an argument"
            )
        if not self._synchronized:
            self.synchronize()
        self.begin_step()
        self.clock.start("optimizer")
        self.pace.set_rates(self.adascale.gain if self.adascale is not None else 1.0)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.pace.count_step()
        self._release()
        self.clock.stop("optimizer")
        session().progress("training", self.pace.steps)
        if self.check_every and (self.pace.steps == 1 or self.pace.steps % self.check_every == 0):
            self._within_ddp = None
            replicas.check({self.exchange.names[p]: p for p in self._parameters()}, self.pace.steps)

    def _release(self) -> None:
        """Parameters that were taken out of the optimizer, on every rank alike, need not travel any more."""
        held = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if len(held) < len(self._hooked):
            for parameter in self._hooked.keys() - set(held):
                hook = self._hooked.pop(parameter)
                if hook is not None:
                    hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return self.pace.state_dict() | {"adascale": self.adascale.state_dict() if self.adascale is not None else None}

    def resume(self, state: dict[str, Any]) -> list[float]:
        """Go on from `state_dict()`; as `Pace.resume`."""
        if self.adascale is not None and state["adascale"] is not None:
            self.adascale.load_state_dict(state["adascale"])
        return self.pace.resume(state)
