"""What one rank of a node does before the others."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hvdtrain._torch.start import gather_objects, world
from hvdtrain.errors import UserError


class FailedElsewhere(UserError):
    """What one rank did for the others failed; all raise it, with that rank's own message."""

    agreed = True


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """One rank of each node runs the body, then the others do: for downloads and caches.

    All ranks must enter it. When the body fails on any rank, every rank ends with that failure's message.

        with ht.rank_zero_first():
            dataset = torchvision.datasets.MNIST(folder, download=True)

    Raises:
        FailedElsewhere: the body failed on some rank.
    """
    if world().local_rank == 0:
        yield from _body()
        _agree(None)
    else:
        _agree(None)
        yield from _body()


def _body() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _agree(error)
        raise
    _agree(None)


def _agree(error: Exception | None) -> None:
    """Tell all ranks whether this one failed; raises when any did."""
    plain = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
    reason = str(error) if isinstance(error, UserError) else plain
    for rank, (node, failure) in enumerate(gather_objects((world().node, reason))):
        if failure:
            raise FailedElsewhere(f"rank {rank} on {node} failed in rank_zero_first(): {failure}") from error
