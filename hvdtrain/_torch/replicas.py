"""Are the ranks' models still the same? A digest of every parameter is compared after the first step and every so often.

What makes them differ is a mistake that no loss curve shows: a parameter changed on one rank only, a rate of its own, memory that
flipped. Average gradients then act on different weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import nn

from hvdtrain._torch.start import collectives, session, world
from hvdtrain.errors import UserError

_CHUNK = 1 << 18


class ReplicasDiffer(UserError):
    """Ranks hold different parameters; found in what all ranks were told, so all raise it."""

    agreed = True


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Two 64-bit sums over the bits of `tensor`, shape (2,): plain, and weighted by position. Any single change shows."""
    octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if octets.storage_offset() % 8:
        octets = octets.clone()
    whole = octets.numel() // 8 * 8
    result = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for part in (*octets[:whole].view(torch.int64).split(_CHUNK), octets[whole:].long()):
        # 64-bit sums of whole numbers wrap around: the same bits give the same sums in whatever order they are added.
        places = _places(tensor.device)[: part.numel()]
        result[0] += part.sum()
        # One pass on a CPU; GPUs have no dot product of whole numbers.
        result[1] = result[1] * 1_000_003 + (torch.dot(part, places) if not part.is_cuda else (part * places).sum())
    return result


_cached_places: dict[torch.device, torch.Tensor] = {}


def _places(device: torch.device) -> torch.Tensor:
    if device not in _cached_places:
        # Odd factors keep every bit of a word.
        _cached_places[device] = torch.arange(1, 2 * _CHUNK, 2, dtype=torch.int64, device=device)
    return _cached_places[device]


def check(parameters: Mapping[str, torch.Tensor | nn.Parameter], step: int) -> None:
    """Compare with all other ranks. All ranks must call it after the same step.

    Raises:
        ReplicasDiffer: names the ranks that deviate from the majority (from rank 0, when there is none) and a parameter.
    """
    if world().size == 1 or not parameters:
        return
    own = torch.stack([digest(parameter) for parameter in parameters.values()]).cpu()
    with session().waiting():
        flight = collectives().start_allgather(own.reshape(1, -1), "replicas")
        every = collectives().wait(flight).reshape(world().size, len(parameters), 2)
    if bool((every == every[0]).all()):
        return
    kinds = [tuple(each.reshape(-1).tolist()) for each in every]
    most_common, count = Counter(kinds).most_common(1)[0]
    common = most_common if count > world().size / 2 else kinds[0]
    deviating = [rank for rank, kind in enumerate(kinds) if kind != common]
    right = every[kinds.index(common)]
    names = [name for index, name in enumerate(parameters) if bool((every[deviating[0], index] != right[index]).any())]
    ranks = f"rank {deviating[0]} holds" if len(deviating) == 1 else f"ranks {', '.join(map(str, deviating))} hold"
    other = "the other ranks" if count > world().size / 2 else "rank 0"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    raise ReplicasDiffer(
        f"after step {step} {ranks} other parameters than {other} ({names[0]}{more}): training is no longer in step. Something "
        "changed them on some ranks only: look for what depends on the rank between optimizer.step() and the next backward()"
    )
