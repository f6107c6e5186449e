"""Make an optimizer step on gradients averaged over all ranks.

Horovod's own wrapper replaces the optimizer's class, and with it loses state, fires step hooks twice, refuses
`zero_grad(set_to_none=...)` and never reduces parameters added later. Here the optimizer stays itself: a hook on each
parameter starts the reduction as soon as its gradient is complete, during the backward pass, and a hook before the
step waits for all of them.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import weakref
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hvdtrain import lr as rates
from hvdtrain import record
from hvdtrain._torch.clock import Clock
from hvdtrain._torch.exchange import COMPRESSIONS, Exchange, sparse_parameters
from hvdtrain._torch.pace import Pace
from hvdtrain._torch.start import broadcast_tensors, from_rank_zero, strategy, world
from hvdtrain._torch.synchronizer import Synchronizer
from hvdtrain.errors import UserError

#: Steps between two comparisons of the replicas.
CHECK_EVERY = 200
#: Numbers the calls of `distribute`: all ranks make the same.
_calls = itertools.count(1)
#: What `distribute` has wrapped, by the id of the plain model, which the wrapper keeps alive.
_wrappers: weakref.WeakValueDictionary[int, DistributedDataParallel] = weakref.WeakValueDictionary()

Model = TypeVar("Model", bound=nn.Module)
SomeOptimizer = TypeVar("SomeOptimizer", bound=Optimizer)


def distribute(
    model: Model,
    optimizer: SomeOptimizer,
    *,
    lr_rule: str = rates.AUTO,
    warmup_epochs: float = 0.0,
    warmup_steps: int = 0,
    steps_per_epoch: int | None = None,
    compression: str = "none",
    check_replicas_every: int = CHECK_EVERY,
) -> tuple[Model, SomeOptimizer]:
    """Start every rank from rank 0's state, and make `optimizer.step()` use gradients averaged over all ranks.

    Call it once for each optimizer, in the same order on all ranks. A parameter is averaged for the one that got it last: so the
    second phase of a fine-tuning may begin with a new optimizer, and an earlier one that still holds it makes no further step.

    Args:
        model: on this rank's device; parameters and buffers are overwritten with rank 0's.
        optimizer: of the model's parameters, with the learning rate for one rank; its state is overwritten with rank 0's.
        lr_rule: how its rates grow with the number of ranks: "none", "linear", "sqrt", "adascale" (see `hvdtrain.lr`), or
            "auto", which is linear for SGD and sqrt for Adam and its kin.
        warmup_epochs: epochs in which they rise from the given rates to the scaled ones.
        warmup_steps: the same in optimizer steps; give one of the two.
        steps_per_epoch: for a warm-up in a loop of your own; `fit` knows it.
        compression: "fp16" sends gradients as half precision (bfloat16 ones as single).
        check_replicas_every: after the first step and every so many, all ranks compare a digest of their parameters, and training
            stops when they differ; 0 for never.

    Returns:
        The same two objects; with strategy "ddp" the model is wrapped.

    Raises:
        UserError: an optimizer that cannot be synchronised, or one that is wrapped already.
    """
    plain = _plain(model)
    _refuse(plain, optimizer)
    _refuse_options(warmup_epochs, warmup_steps, compression, check_replicas_every)
    place = world()
    name = type(optimizer).__name__
    try:
        rule = rates.resolve(lr_rule, name)
    except ValueError as error:
        raise UserError(str(error).replace("learning-rate rule ", "lr_rule=")) from None
    if rule == "adascale":
        _refuse_adascale(name)
    base_rates = [float(group["lr"]) for group in optimizer.param_groups]
    if place.rank == 0 and (warning := rates.check(name, max(base_rates), place.size)):
        print(f"warning: {warning}", file=sys.stderr)
    names = _names(plain, optimizer)
    if place.size > 1:
        _broadcast(plain, optimizer, names)
    scaling = rates.scale(rule, place.size)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * scaling
    ddp = _wrapped(plain) if strategy() == "ddp" and place.size > 1 else None
    synchronizer = Synchronizer(
        optimizer,
        Exchange(names, sparse_parameters(plain, optimizer), f"optimizer {next(_calls)}", compression),
        Pace(optimizer, rule, base_rates, scaling, warmup_epochs, warmup_steps, steps_per_epoch),
        ddp,
        check_replicas_every,
        clock=Clock(place.device),
        adascale=rates.AdaScale(place.size) if rule == "adascale" else None,
    )
    synchronizer.attach()
    optimizer.hvdtrain = synchronizer  # type: ignore[attr-defined]
    if place.rank == 0:
        warmup = {"warmup_steps": warmup_steps} if warmup_steps else {"warmup_epochs": warmup_epochs}
        record.note(lr_rule=rule, lr=base_rates[0] * scaling, compression=compression, **warmup)
    return (plain if ddp is None else ddp), optimizer  # type: ignore[return-value]


def synchronize(optimizer: Optimizer) -> None:
    """Wait until the gradients are averaged over all ranks: before clipping or unscaling them. All ranks must call it.

    `optimizer.step()` does it by itself otherwise.
    """
    synchronizer_of(optimizer).synchronize()


def no_sync(optimizer: Optimizer) -> AbstractContextManager[None]:
    """For gradient accumulation: put all backward passes of a step but the last under `with no_sync(optimizer):`.

    They add to this rank's gradients; the last one sends the sum. Divide each loss by the number of passes.
    """
    return synchronizer_of(optimizer).no_sync()


def synchronizer_of(optimizer: Optimizer) -> Synchronizer:
    found: Synchronizer | None = getattr(optimizer, "hvdtrain", None)
    if found is None:
        raise UserError(
            "this needs the optimizer from hvdtrain.torch.distribute(): a plain one trains each rank by itself"
        )
    return found


def _refuse(model: nn.Module, optimizer: Optimizer) -> None:
    if hasattr(optimizer, "hvdtrain"):
        raise UserError("this optimizer was given to distribute() before; its gradients would be averaged twice")
    if hasattr(optimizer, "_allreduce_delay"):
        raise UserError("this optimizer is wrapped by hvd.DistributedOptimizer; give distribute() the plain one")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise UserError(
            f"the model is wrapped by {type(model).__name__}; give distribute() the plain model (model.module)"
        )
    lazy = [name for name, parameter in model.named_parameters() if nn.parameter.is_lazy(parameter)]
    if lazy:
        raise UserError(
            f"{lazy[0]} has no shape yet (a lazy module): pass one batch through the model before distribute(), and make the "
            "optimizer after that"
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


def _refuse_options(warmup_epochs: float, warmup_steps: int, compression: str, check_every: int) -> None:
    for name, value in (("warmup_epochs", warmup_epochs), ("warmup_steps", warmup_steps)):
        if value < 0:
            raise UserError(f"{name}={value} is negative")
    if warmup_epochs and warmup_steps:
        raise UserError(f"warmup_epochs={warmup_epochs} and warmup_steps={warmup_steps}: give one of the two")
    if check_every < 0:
        raise UserError(f"check_replicas_every={check_every} is negative; 0 turns the check off")
    if compression == "bf16":
        raise UserError(
            'compression="bf16": Horovod cannot add numbers in bfloat16, and as half precision they would overflow; take "fp16" '
            'with gradients in range, or "none"'
        )
    if compression not in COMPRESSIONS:
        raise UserError(f'compression="{compression}" is not one of {", ".join(COMPRESSIONS)}')
    if compression != "none" and strategy() == "ddp":
        raise UserError(
            f'compression="{compression}" is for strategy "horovod"; with "ddp" register a DDP communication hook'
        )


def _refuse_adascale(optimizer_name: str) -> None:
    if rates.default_rule(optimizer_name) != "linear":
        raise UserError(
            f'lr_rule="adascale" is for SGD: its gain follows from steps proportional to gradients, which those of '
            f'{optimizer_name} are not; take "sqrt"'
        )
    if strategy() == "ddp" and world().size > 1:
        raise UserError(
            'lr_rule="adascale" needs each rank\'s own gradients, which DDP does not show; take strategy "horovod"'
        )


def _plain(model: nn.Module) -> nn.Module:
    """Without what an earlier call has wrapped around it."""
    if isinstance(model, DistributedDataParallel) and _wrappers.get(id(model.module)) is model:
        inner: nn.Module = model.module
        return inner
    return model


def _names(model: nn.Module, optimizer: Optimizer) -> dict[nn.Parameter, str]:
    """Of all parameters, the same on every rank; the optimizer may have some that are not the model's."""
    # torch.compile puts a word of its own before every name.
    names = {parameter: key.replace("_orig_mod.", "") for key, parameter in model.named_parameters()}
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = [parameter for parameter in own if parameter not in names]
    if strangers and strategy() == "ddp":
        raise UserError(
            f"{len(strangers)} of {len(own)} parameters of the optimizer are not the model's, and DDP averages those of the model: "
            'give distribute() a model that holds all of them, or take strategy "horovod"'
        )
    return names | {parameter: f"unnamed.{number}" for number, parameter in enumerate(strangers)}


def _wrapped(model: nn.Module) -> DistributedDataParallel:
    """In DDP as it is used by most; buffers stay each rank's own, as with Horovod. DDP looks once at what is to be trained."""
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    before = _wrappers.get(id(model))
    if before is not None and before.hvdtrain == trained:
        return before
    device = None if world().device == "cpu" else [torch.device(world().device)]
    parameters = inspect.signature(DistributedDataParallel).parameters
    # torch 2.12 gave it another name.
    flag = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    wrapper = DistributedDataParallel(model, device_ids=device, **{flag: False})  # type: ignore[arg-type]
    wrapper.hvdtrain = trained  # type: ignore[assignment]
    _wrappers[id(model)] = wrapper
    return wrapper


def _broadcast(model: nn.Module, optimizer: Optimizer, names: dict[nn.Parameter, str]) -> None:
    """Overwrite the state of every rank with rank 0's.

    The optimizer's state goes as one object: Horovod's `broadcast_optimizer_state` would take a real step to create
    it, which moves weights, and would skip the learning rate of a stateless SGD.
    """
    broadcast_tensors({**{name: tensor for tensor, name in names.items()}, **dict(model.named_buffers())})
    state = from_rank_zero(optimizer.state_dict() if world().rank == 0 else None)
    if world().rank != 0:
        optimizer.load_state_dict(state)
