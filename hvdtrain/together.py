"""What one rank of a node does before the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.world import World

#: Gives every rank what each rank passed to it.
Gather = Callable[[Any], list[Any]]


class FailedElsewhere(UserError):
    """What one rank did for the others failed; all raise it, with that rank's own message."""

    agreed = True


@contextmanager
def first_of_node(place: World, gather: Gather) -> Iterator[None]:
    """One rank of each node runs the body, then the others do. All ranks must enter it.

    Raises:
        FailedElsewhere: the body failed on some rank; every rank raises it, with that failure's message.
    """
    if place.local_rank == 0:
        yield from _body(place, gather)
        _agree(place, gather, None)
    else:
        _agree(place, gather, None)
        yield from _body(place, gather)


def _body(place: World, gather: Gather) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _agree(place, gather, error)
        raise
    _agree(place, gather, None)


def _agree(place: World, gather: Gather, error: Exception | None) -> None:
    """Tell all ranks whether this one failed; raises when any did."""
    plain = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
    reason = str(error) if isinstance(error, UserError) else plain
    for rank, (node, failure) in enumerate(gather((place.node, reason))):
        if failure:
            raise FailedElsewhere(f"rank {rank} on {node} failed in rank_zero_first(): {failure}") from error
