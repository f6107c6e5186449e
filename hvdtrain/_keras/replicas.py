"""Checksums of every parameter, compared over the ranks after the first step and every so often."""

from __future__ import annotations

import zlib
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from hvdtrain._keras.start import gather_objects, world
from hvdtrain.replicas import compare

_ROW = 1024


def digest(value: NDArray[Any]) -> int:
    """A checksum of the bits of an array. Any single change shows, and so do values that changed places.

    Of large arrays it is the checksum of sums over rows and over columns of 64-bit words, which wrap around: several times as fast
    as a checksum of all bytes.
    """
    octets = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    whole = octets.size // (8 * _ROW) * 8 * _ROW
    result = zlib.crc32(octets[whole:].data)
    if whole:
        words = octets[:whole].view(np.uint64).reshape(-1, _ROW)
        for axis in (0, 1):
            result = zlib.crc32(words.sum(axis).data, result)
    return result


def check(variables: list[Any], step: int) -> None:
    """Compare with all other ranks. All ranks must call it after the same step.

    Raises:
        ReplicasDiffer: see `hvdtrain.replicas`.
    """
    if world().size > 1:
        own = [digest(keras.ops.convert_to_numpy(each)) for each in variables]
        compare(gather_objects(own), [each.path for each in variables], step)
