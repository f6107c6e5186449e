"""A digest of every parameter, compared over the ranks after the first step and every so often."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from hvdtrain._torch.start import collectives, session, world
from hvdtrain.replicas import compare

_CHUNK = 1 << 18


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
    if not bool((every == every[0]).all()):
        compare([[tuple(pair) for pair in each.tolist()] for each in every], list(parameters), step)
