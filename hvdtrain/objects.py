"""Python objects between ranks, as bytes in pieces: Horovod's own functions count bytes in 32 bits, and fail from 2 GB on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

#: Largest message in bytes; of a gathering, of all ranks together.
PIECE = 1 << 28

#: An array of uint8 or int64, shape (n,), and a name -> what Horovod makes of it on every rank.
Send = Callable[[np.ndarray, str], np.ndarray]


def broadcast(value: Any, rank: int, send: Send, name: str) -> Any:
    """Rank 0's `value`, of any type that can be pickled.

    Args:
        send: broadcasts rank 0's array; the others give one of the same shape.
    """
    own = _pickled(value) if rank == 0 else np.zeros(0, np.uint8)
    length = int(send(np.array([len(own)], np.int64), f"{name}.length")[0])
    if rank != 0:
        own = np.empty(length, np.uint8)
    for begin in range(0, length, PIECE):
        piece = send(own[begin : begin + PIECE], name)
        if rank != 0:
            own[begin : begin + PIECE] = piece
    return value if rank == 0 else pickle.loads(own.data)


def gather(value: Any, size: int, send: Send, name: str) -> list[Any]:
    """The values of all ranks, in their order.

    Args:
        send: gives the arrays of all ranks, one after the other; they may have different lengths.
    """
    own = _pickled(value)
    lengths = send(np.array([len(own)], np.int64), f"{name}.length")
    whole = [np.empty(length, np.uint8) for length in lengths]
    step = max(1, PIECE // size)
    for begin in range(0, int(lengths.max()), step):
        together = send(own[begin : begin + step], name)
        counts = np.clip(lengths - begin, 0, step)
        for part, piece in zip(whole, np.split(together, np.cumsum(counts)[:-1]), strict=True):
            part[begin : begin + step] = piece
    return [pickle.loads(part.data) for part in whole]


def _pickled(value: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(value, protocol=5), np.uint8)
