"""Checksums of every parameter, compared over the ranks after the first step and every so often."""

from __future__ import annotations

import zlib
from typing import Any

import keras
import numpy as np

from hvdtrain._keras.start import gather_objects, world
from hvdtrain.replicas import compare


def check(variables: list[Any], step: int) -> None:
    """Compare with all other ranks. All ranks must call it after the same step.

    Raises:
        ReplicasDiffer: see `hvdtrain.replicas`.
    """
    if world().size > 1:
        own = [zlib.crc32(np.ascontiguousarray(keras.ops.convert_to_numpy(each)).data) for each in variables]
        compare(gather_objects(own), [each.path for each in variables], step)
