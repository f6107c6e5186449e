"""Are the ranks' models still the same? Checksums of every parameter are compared after the first step and every so often."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import keras
import numpy as np

from hvdtrain._keras.start import gather_objects, world
from hvdtrain.errors import UserError


class ReplicasDiffer(UserError):
    """Ranks hold different parameters; found in what all ranks were told, so all raise it."""

    agreed = True


def check(variables: list[Any], step: int) -> None:
    """Compare with all other ranks. All ranks must call it after the same step.

    Raises:
        ReplicasDiffer: names the ranks that deviate from the majority (from rank 0, when there is none) and a variable.
    """
    if world().size == 1:
        return
    own = tuple(zlib.crc32(np.ascontiguousarray(keras.ops.convert_to_numpy(each)).data) for each in variables)
    every = gather_objects(own)
    if len(set(every)) == 1:
        return
    most_common, count = Counter(every).most_common(1)[0]
    majority = count > world().size / 2
    common = most_common if majority else every[0]
    deviating = [rank for rank, each in enumerate(every) if each != common]
    names = [v.path for i, v in enumerate(variables) if every[deviating[0]][i] != common[i]]
    ranks = f"rank {deviating[0]} holds" if len(deviating) == 1 else f"ranks {', '.join(map(str, deviating))} hold"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    raise ReplicasDiffer(
        f"after step {step} {ranks} other parameters than {'the other ranks' if majority else 'rank 0'} ({names[0]}{more}): "
        "training is no longer in step. Something changed them on some ranks only: look for code that depends on the rank"
    )
