"""What all ranks must have been given alike: else they train on other orders than each other, which no loss curve shows."""

from __future__ import annotations

from typing import Any

from hvdtrain._torch.start import gather_objects
from hvdtrain.errors import UserError, agreed


def refuse_unlike(facts: dict[str, Any]) -> None:
    """All ranks must call it, each with what it was given, by name.

    Raises:
        UserError: on all ranks; names what differs.
    """
    first, *others = gather_objects(facts)
    for name in first:
        for rank, other in enumerate(others, 1):
            if other.get(name) != first[name]:
                told = f"{name} is {first[name]} on rank 0 but {other.get(name)} on rank {rank}"
                raise agreed(
                    UserError(
                        f"{told}: the ranks would not share out one order, in as many steps. Give all ranks the same arguments and "
                        "data. Every iteration of a loader is an epoch, also one that is broken off: to look at a batch, let all "
                        "ranks do it"
                    )
                )
