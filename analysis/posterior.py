"""What a handful of sizes says about others: an average over laws of scaling, with an honest width.

Every law of `analysis.models` with one parameter is laid on a grid of that parameter (and, from five sizes on, the
universal scalability law on a grid of its two). Given a law and a parameter, log costs are a Gaussian process around it:
measurement noise, a random walk in log2 n for what no law describes, a term for the first step from one node to several and
another random walk over nodes. The common scale of all these is unknown and integrated out (inverse gamma prior), which
makes predictions Student t. A prediction is the average of all laws, weighted by how well each explains the sizes that
were measured (Bayesian model averaging; Hoeting et al. 1999). So few sizes give wide intervals, far sizes give wider
ones, and where the laws part ways the interval holds them all.

The prior's numbers are round. On published tables (`bench/backtest.py`) halving or doubling any one of them moves the median
error by a point at most: they state an order of magnitude. Coverage depends on them more, by up to 11 points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from analysis.models import MODELS

Floats = NDArray[np.float64]

#: Overheads that are tried, per unit of each law: none, then geometric from a thousandth; a few negative for superlinear.
_POSITIVE = np.concatenate([[0.0], np.geomspace(1e-3, 4.0, 18)])
GRID = np.concatenate([-_POSITIVE[1:9][::-1], _POSITIVE])
#: What one unit of the grid means for each law, so that one prior serves all: about the same cost at 2 to 4 ranks.
_UNITS = {"power": 0.7 / np.log(2.0), "log2": 1.0, "amdahl": 0.5, "ring": 1.0}
_USL_SIZES = 5
_USL_SHARES = np.geomspace(1e-3, 0.3, 7)
_USL_CROSSTALK = np.geomspace(1e-5, 3e-2, 6)
#: Flat on the level: its variance, in units of the common scale.
_LEVEL = 400.0
#: What going from one node to several may cost, as a factor, for groups that never measured it: nothing (a fast fabric), to
#: three times (data-centre Ethernet under PCIe GPUs). Its median is a tenth.
_JUMPS = np.log(np.array([1.0, 1.05, 1.15, 1.35, 1.8, 2.7]))
_JUMP_WEIGHTS = np.array([0.25, 0.2, 0.2, 0.15, 0.12, 0.08])


@dataclass(frozen=True)
class Prior:
    """Deviations are in logs before the common scale multiplies them; it is about a half where 2 % is usual.

    Attributes:
        overhead: half-width at half-maximum of the prior on a law's overhead, in shares of a rank's time.
        negative: weight of an overhead below zero against the same above: superlinear groups are rare.
        walk, node_walk: standard deviation per doubling of ranks, and of nodes, of what no law describes.
        first_node_walk: `node_walk` while at most one number of nodes above one was measured. Many sizes on the same two nodes say
            nothing of a third: in Pollux' placements (`docs/scaling-analysis.md`) a GPU costs a quarter more on two than on three.
        noise: standard deviation of one measurement.
        boundary: standard deviation of the step from one node to several.
        shape, expected: of the inverse gamma on the common scale: `expected` is the usual noise in logs, and a shape below a
            half leaves it nearly open (tails of less than one degree of freedom before any data).
        weights: of the laws, in the order of `_UNITS`. An overhead in log2 n is met more often than Amdahl's, which keeps
            growing with the ranks.
    """

    overhead: float = 0.15
    negative: float = 0.02
    walk: float = 0.08
    node_walk: float = 0.1
    first_node_walk: float = 0.2
    noise: float = 0.04
    boundary: float = 0.25
    shape: float = 0.35
    expected: float = 0.02
    weights: tuple[float, ...] = (1.0, 2.0, 0.5, 1.0)


PRIOR = Prior()


@dataclass(frozen=True)
class Prediction:
    """Quantiles of log cost: 5 %, 50 % and 95 %, each of shape (asked sizes,)."""

    low: Floats
    middle: Floats
    high: Floats


@dataclass(frozen=True)
class Posterior:
    """The sizes of one group, their laws' weights and what is needed to predict others."""

    n: Floats
    nodes: Floats
    log_cost: Floats
    replicates: Floats
    prior: Prior
    weights: Floats
    names: tuple[str, ...]

    @classmethod
    def of(cls, n: Floats, nodes: Floats, log_cost: Floats, replicates: Floats, prior: Prior = PRIOR) -> Posterior:
        """Weigh the laws by the sizes of one group.

        Args:
            n: ranks, ascending, shape (sizes,); two or more.
            nodes: nodes of each size.
            log_cost: log of rank-seconds per unit of work: the median of the replicates.
            replicates: how many measurements each median is of.
        """
        if len(np.unique(nodes[nodes > 1])) < 2:
            prior = replace(prior, node_walk=prior.first_node_walk)
        laws, prior_weights, names = _laws(n, len(n), prior)
        residuals = (log_cost - log_cost[0])[:, None] - (laws - laws[0])
        solved = np.linalg.solve(_covariance(n, nodes, replicates, prior), residuals)
        misfit = np.einsum("sk,sk->k", residuals, solved)
        shape, rate = _inverse_gamma(prior)
        log_weights = np.log(prior_weights) - (shape + (len(n) - 1) / 2) * np.log(rate + misfit / 2)
        weights = np.exp(log_weights - log_weights.max())
        return cls(n, nodes, log_cost, replicates, prior, weights / weights.sum(), names)

    def predict(self, n: Floats, nodes: Floats) -> Prediction:
        """Quantiles of the log cost of a new measurement at each of `n` ranks on `nodes` nodes."""
        return Prediction(
            *np.array([self._one(float(a), float(b)) for a, b in zip(n, nodes, strict=True)]).reshape(-1, 3).T
        )

    def law_weights(self) -> dict[str, float]:
        """Probability of each law, summed over its parameters."""
        return {name: float(sum(w for w, own in zip(self.weights, self.names, strict=True) if own == name))
                for name in dict.fromkeys(self.names)}  # fmt: skip

    def left_out(self) -> Floats:
        """How far each size lies from what the others say (log cost, leave-one-out), averaged over the laws."""
        laws, _, _ = _laws(self.n, len(self.n), self.prior)
        inverse = np.linalg.inv(_covariance(self.n, self.nodes, self.replicates, self.prior))
        residuals = (self.log_cost - self.log_cost[0])[:, None] - (laws - laws[0])
        # The leave-one-out residual of a Gaussian process (Rasmussen and Williams 2006, equation 5.12).
        return np.asarray(((inverse @ residuals) / np.diag(inverse)[:, None]) @ self.weights)

    def _one(self, n: float, nodes: float) -> tuple[float, float, float]:
        sizes = len(self.n)
        every, every_node = np.append(self.n, n), np.append(self.nodes, nodes)
        covariance = _covariance(every, every_node, np.append(self.replicates, 1.0), self.prior)
        keep = self.weights > 2e-3 * self.weights.max()
        laws = _laws(every, sizes, self.prior)[0][:, keep]
        laws = laws - laws[0]
        residuals = (self.log_cost - self.log_cost[0])[:, None] - laws[:sizes]
        across = covariance[sizes, :sizes]
        solved = np.linalg.solve(covariance[:sizes, :sizes], np.column_stack([residuals, across]))
        misfit = np.einsum("sk,sk->k", residuals, solved[:, :-1])
        shape, rate = _inverse_gamma(self.prior)
        freedom = 2 * shape + sizes - 1
        spread = max(float(covariance[sizes, sizes] - across @ solved[:, -1]), 1e-12)
        scale = np.sqrt((2 * rate + misfit) / freedom * spread)
        middle = laws[sizes] + across @ solved[:, :-1] + self.log_cost[0]
        own = self.weights[keep]
        weights = own / own.sum()
        if nodes > 1 and self.nodes.max() == 1:
            middle = (middle[:, None] + _JUMPS).ravel()
            weights = (weights[:, None] * _JUMP_WEIGHTS).ravel()
            scale = np.repeat(scale, len(_JUMPS))
        return quantiles(middle, scale, weights, freedom)


def quantiles(middle: Floats, scale: Floats, weights: Floats, freedom: float) -> tuple[float, float, float]:
    """5, 50 and 95 % of a mixture of Student t distributions, by interpolation of its distribution function."""
    centre = float(weights @ middle)
    # Dense where the mass is, and far enough for the tails of few degrees of freedom.
    reach = np.sinh(np.linspace(-5.0, 5.0, 61)) / np.sinh(5.0)
    width = 40 * float(weights @ scale) + 6 * float(np.sqrt(weights @ (middle - centre) ** 2))
    points = centre + reach * width
    below = stdtr(freedom, (points[:, None] - middle) / scale) @ weights
    low, half, high = np.interp([0.05, 0.5, 0.95], below, points)
    return float(low), float(half), float(high)


def _laws(n: Floats, sizes: int, prior: Prior) -> tuple[Floats, Floats, tuple[str, ...]]:
    """log cost of every law and parameter at `n`, shape (n, laws); their prior weights; their names."""
    return _laws_at(tuple(n.tolist()), sizes, prior)


# Thousands of groups have the same few sets of sizes.
@lru_cache(maxsize=256)
def _laws_at(sizes_asked: tuple[float, ...], sizes: int, prior: Prior) -> tuple[Floats, Floats, tuple[str, ...]]:
    n = np.array(sizes_asked)
    spacing = np.gradient(GRID)
    density = np.where(GRID >= 0, 1.0, prior.negative) / (1 + (GRID / prior.overhead) ** 2) * spacing
    density /= density.sum()
    column = n[:, None]
    parts, weights, names = [], [], []
    for law, unit, weight in zip(_UNITS, _UNITS.values(), prior.weights, strict=True):
        parts.append(MODELS[law].log_cost(column, unit * GRID[None, :]))
        weights.append(weight * density)
        names += [law] * len(GRID)
    if sizes >= _USL_SIZES:
        shares, crosstalk = (grid.ravel() for grid in np.meshgrid(_USL_SHARES, _USL_CROSSTALK))
        parts.append(MODELS["usl"].log_cost(column, shares[None, :], crosstalk[None, :]))
        weights.append(np.full(len(shares), prior.weights[2] / len(shares)))
        names += ["usl"] * len(shares)
    every = np.concatenate(weights)
    return np.concatenate(parts, axis=1), every / every.sum(), tuple(names)


def _covariance(n: Floats, nodes: Floats, replicates: Floats, prior: Prior) -> Floats:
    """Of the log costs around a law, in units of the common scale."""
    doublings, node_doublings = np.log2(n / n[0]), np.log2(nodes)
    several = (nodes > 1).astype(float)
    return np.asarray(
        _LEVEL
        + prior.walk**2 * np.minimum.outer(doublings, doublings)
        + prior.node_walk**2 * np.minimum.outer(node_doublings, node_doublings)
        + prior.boundary**2 * np.outer(several, several)
        # Part of the noise is common to all replicates (the same hosts, the same day): it falls slower than 1/r.
        + np.diag(prior.noise**2 / np.sqrt(np.minimum(replicates, 4)))
    )


def _inverse_gamma(prior: Prior) -> tuple[float, float]:
    return prior.shape, prior.shape * (prior.expected / prior.noise) ** 2
