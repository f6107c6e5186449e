"""Learning-rate scaling rules and warm-up, as pure functions.

With N ranks the batch is N times larger, so a step may be larger too. `linear` (rate x N) is the rule for SGD of
Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 (arXiv:1706.02677), who also
warm up from the unscaled rate, because early in training the linear rule does not hold. `sqrt` (rate x sqrt(N))
keeps the variance of the update constant (Krizhevsky, "One weird trick", 2014, arXiv:1404.5997) and is the rule
that follows for adaptive optimizers such as Adam (Malladi et al., 2022, arXiv:2205.10287).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

RULES: Mapping[str, Callable[[int], float]] = {
    "none": lambda size: 1.0,
    "linear": lambda size: float(size),
    "sqrt": lambda size: math.sqrt(size),
}


def scale(rule: str, size: int) -> float:
    """By how much `rule` multiplies the rate of one rank for `size` ranks (1.0 when size is 1).

    Raises:
        ValueError: unknown rule, or size below 1.
    """
    if rule not in RULES:
        raise ValueError(f"learning-rate rule {rule!r} is not one of {', '.join(RULES)}")
    if size < 1:
        raise ValueError(f"a world has at least one rank, not {size}")
    return RULES[rule](size)


def warmup_factor(epoch: float, warmup_epochs: float, scaling: float) -> float:
    """What to multiply the scaled rate with after `epoch` epochs (fractions count).

    Rises linearly from `1 / scaling`, the rate of one rank, to 1 over `warmup_epochs`; 1 afterwards.
    """
    if warmup_epochs <= 0 or epoch >= warmup_epochs:
        return 1.0
    start = 1.0 / scaling
    return start + (1.0 - start) * epoch / warmup_epochs
