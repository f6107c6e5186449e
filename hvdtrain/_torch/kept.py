"""What a checkpoint keeps, as it is kept: models without a wrapper, and optimizers that fit the state they are given."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hvdtrain._torch.distribute import synchronizer_of


class Stateful(Protocol):
    """A scheduler, a loss scaler, and whatever else has a state to keep."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Distributed:
    """A further optimizer from `distribute`, whose rates follow the number of ranks too."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.changed: list[float] = []

    @property
    def key(self) -> int:
        """Of the optimizer, by which schedulers know it."""
        return id(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        synchronizer = synchronizer_of(self.optimizer)
        return {"optimizer": self.optimizer.state_dict(), "synchronizer": synchronizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_optimizer(self.optimizer, state["optimizer"])
        self.changed = synchronizer_of(self.optimizer).resume(state["synchronizer"])


def as_kept(state: Stateful) -> Stateful:
    if isinstance(state, nn.Module):
        return plain(state)  # its names do not depend on the strategy
    if isinstance(state, Optimizer) and hasattr(state, "hvdtrain"):
        return Distributed(state)
    return state


def kind(state: Any) -> str:
    """Of an optimizer or a scheduler, whose states may fit into those of others that go on in another way; of anything else ""."""
    if isinstance(state, Distributed):
        state = state.optimizer
    if not isinstance(state, (Optimizer, LRScheduler)):
        return ""
    parts = [kind(part) for part in getattr(state, "_schedulers", ())]
    return type(state).__name__ + (f" of {', '.join(parts)}" if parts else "")


def refuse_another_kind(state: Any, then: str) -> None:
    """One that was saved by another.

    Args:
        then: `kind` of what was saved; "" where that is not known.

    Raises:
        ValueError: it is not that of `state`.
    """
    if then and (now := kind(state)) and now != then:
        raise ValueError(f"it was {then}, not {now}")


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load its state, of which torch itself only compares the shape of the parameter groups.

    Raises:
        ValueError: it is that of an optimizer of another shape or kind.
    """
    # Not all defaults: torch adds some while it loads, which many optimizers have in no group.
    expected = [optimizer.defaults.keys() & group.keys() for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for wanted, group in zip(expected, optimizer.param_groups, strict=True):
        missing = sorted(wanted - group.keys())
        if missing:
            raise ValueError(f"it has no {', '.join(missing)} for {type(optimizer).__name__}")


def plain(model: nn.Module) -> nn.Module:
    """The user's module, out of DDP and torch.compile."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    compiled_from = getattr(model, "_orig_mod", model)
    assert isinstance(compiled_from, nn.Module)
    return compiled_from
