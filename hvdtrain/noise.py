"""Gradient noise scale: how many samples a batch may have before more of them bring little.

B_simple = tr(S) / |G|^2 of McCandlish et al., "An Empirical Model of Large-Batch Training", 2018 (arXiv:1812.06162), estimated as
in their appendix A.1 from gradients of a small and a big batch:

    |G|^2 ~ (B_big |g_big|^2 - B_small |g_small|^2) / (B_big - B_small)
    tr(S) ~ (|g_small|^2 - |g_big|^2) / (1 / B_small - 1 / B_big)

The small batch is a rank's, the big one the world's; with one rank, one backward pass of several that are accumulated. Both
estimates are without bias, their ratio is not, so each is averaged over the epoch first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class NoiseScale:
    """Averages of one epoch."""

    measured: int = 0
    _trace: float = 0.0
    _square: float = 0.0

    def add(self, small_square: float, big_square: float, small: float, big: float) -> None:
        """One step.

        Args:
            small_square: mean square norm of the gradients of batches of `small` samples.
            big_square: square norm of the gradient of all `big` samples.
        """
        if big <= small or not (math.isfinite(small_square) and math.isfinite(big_square)):
            return
        self._square += (big * big_square - small * small_square) / (big - small)
        self._trace += (small_square - big_square) / (1 / small - 1 / big)
        self.measured += 1

    def value(self) -> float | None:
        """In samples; None when nothing was measured or the noise hides the gradient altogether."""
        if self.measured == 0 or self._square <= 0:
            return None
        return max(0.0, self._trace) / self._square
