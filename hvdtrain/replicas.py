"""Are the ranks' models still the same? What a comparison of digests says; the frameworks compute and exchange them.

What makes replicas differ is a mistake that no loss curve shows: a parameter changed on one rank only, a rate of its own, memory
that flipped. Average gradients then act on different weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from hvdtrain.errors import UserError


class ReplicasDiffer(UserError):
    """Ranks hold different parameters; found in what all ranks were told, so all raise it."""

    agreed = True


def compare(digests: Sequence[Sequence[Hashable]], names: Sequence[str], step: int) -> None:
    """Nothing when all ranks hold the same.

    Args:
        digests: of every parameter, by rank.
        names: of the parameters.
        step: after which they were taken.

    Raises:
        ReplicasDiffer: names the ranks that deviate from the majority (from rank 0, when there is none) and a parameter.
    """
    kinds = [tuple(each) for each in digests]
    most_common, count = Counter(kinds).most_common(1)[0]
    if count == len(kinds):
        return
    majority = count > len(kinds) / 2
    common = most_common if majority else kinds[0]
    deviating = [rank for rank, kind in enumerate(kinds) if kind != common]
    differing = [name for name, own, right in zip(names, kinds[deviating[0]], common, strict=True) if own != right]
    ranks = f"rank {deviating[0]} holds" if len(deviating) == 1 else f"ranks {', '.join(map(str, deviating))} hold"
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    raise ReplicasDiffer(
        f"after step {step} {ranks} other parameters than {'the other ranks' if majority else 'rank 0'} ({differing[0]}{more}): "
        "training is no longer in step. Something changed them on some ranks only: look for what depends on the rank between "
        "one step and the next"
    )
