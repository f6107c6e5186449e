"""Make an optimizer step on gradients averaged over all ranks.

Horovod's own wrapper replaces the optimizer's class, and with it loses state, fires step hooks twice, refuses
`zero_grad(set_to_none=...)` and never reduces parameters added later. Here the optimizer stays itself: a hook on each
parameter starts the reduction as soon as its gradient is complete, during the backward pass, and a hook before the
step waits for all of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from hvdtrain import lr as rates
from hvdtrain import record
from hvdtrain._torch.start import session, world
from hvdtrain._torch.synchronizer import Synchronizer, broadcast_tensors
from hvdtrain.errors import UserError

Model = TypeVar("Model", bound=nn.Module)
SomeOptimizer = TypeVar("SomeOptimizer", bound=Optimizer)


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


def synchronize(optimizer: Optimizer) -> None:
    """Wait until the gradients are averaged over all ranks: before clipping or unscaling them. All ranks must call it.

    `optimizer.step()` does it by itself otherwise.
    """
    _synchronizer(optimizer).synchronize()


def no_sync(optimizer: Optimizer) -> AbstractContextManager[None]:
    """For gradient accumulation: put all backward passes of a step but the last under `with no_sync(optimizer):`.

    They add to this rank's gradients; the last one sends the sum. Divide each loss by the number of passes.
    """
    return _synchronizer(optimizer).no_sync()


def _synchronizer(optimizer: Optimizer) -> Synchronizer:
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

    broadcast_tensors({**dict(model.named_parameters()), **dict(model.named_buffers())})
    with session().waiting():
        own = optimizer.state_dict() if world().rank == 0 else None
        # Named, because Horovod would name it after its type, which is another on rank 0.
        state = hvd.broadcast_object(own, root_rank=0, name="optimizer state")
    if world().rank != 0:
        optimizer.load_state_dict(state)
