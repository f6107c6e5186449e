"""Laws of scaling: how the cost of one unit of work grows with the number of ranks.

All of them are written for the relative cost c(n), the rank-seconds that one sample (or one fixed piece of work) takes on n
ranks, against one rank: c(n) = n T(n) / T(1). Ideal scaling is c = 1; efficiency is 1 / c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Below this a relative cost is not followed: a law with negative overhead would make it zero or less.
FLOOR = 0.3


@dataclass(frozen=True)
class Model:
    """A law. `log_cost(n, *parameters)` is log c(n); `parameters` name what is fitted besides the level."""

    name: str
    formula: str
    parameters: tuple[str, ...]
    log_cost: Callable[..., Floats]
    source: str

    @property
    def needs(self) -> int:
        """Fewest sizes: three for a law of two parameters (level and overhead), five for one of three."""
        return 1 + 2 * len(self.parameters)


@dataclass(frozen=True)
class Fitted:
    """One law fitted to a group: level (log cost at one rank), parameters, and residual standard deviation in logs."""

    model: Model
    level: float
    values: tuple[float, ...]
    residual: float

    def log_cost(self, n: Floats) -> Floats:
        """log cost at n ranks, in the unit of the data."""
        return self.level + self.model.log_cost(n, *self.values)


def _above_floor(cost: Floats) -> Floats:
    return np.log(np.maximum(cost, FLOOR))


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("power", "c = n^p", ("p",), lambda n, p: np.asarray(p * np.log(n)), "T = T1 n^(p - 1)"),
        Model(
            "log2", "c = 1 + a log2 n", ("a",), lambda n, a: _above_floor(1 + a * np.log2(n)),
            "tree collectives: Thakur, Rabenseifner, Gropp 2005, section 4",
        ),
        Model(
            "amdahl", "c = 1 + s (n - 1)", ("s",), lambda n, s: _above_floor(1 + s * (n - 1)),
            "Amdahl 1967; s is the serial share of one rank's time",
        ),
        Model(
            "ring", "c = 1 + b 2 (n - 1) / n", ("b",), lambda n, b: _above_floor(1 + 2 * b * (1 - 1 / n)),
            "bandwidth term of the ring allreduce, Patarasuk and Yuan 2009",
        ),
        Model(
            "usl", "c = 1 + s (n - 1) + k n (n - 1)", ("s", "k"),
            lambda n, s, k: _above_floor(1 + s * (n - 1) + k * n * (n - 1)),
            "universal scalability law, Gunther 2007, section 4.4",
        ),
    )
}  # fmt: skip


def fit_model(model: Model, n: Floats, log_cost: Floats, weights: Floats | None = None) -> Fitted:
    """Least squares in logs of one law.

    Args:
        n: ranks, shape (sizes,).
        log_cost: log of rank-seconds per unit of work, shape (sizes,).
        weights: of the sizes, default all alike.

    Returns:
        Parameters held at zero or more (slower than ideal), except the power law's.
    """
    # Only here: it takes 0.4 s to load, and reports do without.
    from scipy.optimize import least_squares

    root = np.sqrt(np.ones_like(n) if weights is None else weights)

    def residuals(parameters: Floats) -> Floats:
        return np.asarray(root * (parameters[0] + model.log_cost(n, *parameters[1:]) - log_cost))

    start = np.array([log_cost[0], *([0.01] * len(model.parameters))])
    lower = -np.inf if model.name == "power" else 0.0
    bounds = ([-np.inf, *([lower] * len(model.parameters))], [np.inf] * (1 + len(model.parameters)))
    found = least_squares(residuals, start, bounds=bounds, x_scale=np.maximum(np.abs(start), 0.01))
    freedom = max(len(n) - len(start), 1)
    deviation = float(np.sqrt(np.sum(found.fun**2) / freedom))
    return Fitted(model, float(found.x[0]), tuple(float(value) for value in found.x[1:]), deviation)


def karp_flatt(speedup: float, n: int) -> float | None:
    """The experimentally determined serial fraction, (1/S - 1/n) / (1 - 1/n) (Karp and Flatt 1990).

    Constant over n: a serial part limits. Growing: overhead (communication) does. None for one rank.
    """
    return None if n == 1 else (1 / speedup - 1 / n) / (1 - 1 / n)
