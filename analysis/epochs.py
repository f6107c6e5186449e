"""How many epochs a target takes, as the global batch grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.complete import completed
from analysis.finding import known
from analysis.posterior import Floats, quantiles
from hvdtrain.errors import UserError

#: Epochs that are known not to be enough, by global batch, by workload and learning-rate rule: what runs say that have not settled.
Bounds = Mapping[tuple[str | None, str | None], Mapping[int, float]]
#: Epochs depend on what is trained and how the learning rate follows the batch, not on which GPU does it.
EPOCH_GROUP = ("workload", "lr_rule")
#: Measurements of epochs, best first.
METRICS_OF_EPOCHS = ("epochs_to_stability", "epochs_to_target")
FURTHEST = 4
#: Noise of one count of epochs, and what no law describes per doubling of the batch: standard deviations in logs.
#: `bench/backtest.py` measures the coverage that follows.
NOISE, _WALK = 0.04, 0.03
#: Half the degrees of freedom of the common scale's prior: three published counts would say as much.
_SHAPE = 1.5
#: Batches are measured around the critical one: far below it nothing grows, far above it nobody trains. Standard deviation of
#: log (Bcrit / largest batch) in the prior, within a factor of e. It keeps three nearly equal counts, or three noisy ones, from
#: meaning that epochs never grow, or explode: without it the median error at 2 to 3 times the largest batch is half again as
#: large on the MLPerf reference points.
_AROUND = 1.0
#: The default law and the two beside it.
LAWS = ("hyperbolic", "power", "log2")
#: What intervals are made of, with prior weights. Beyond the critical batch some tasks grow faster than the hyperbola
#: (BERT, Mask R-CNN in the MLPerf reference points): E = Emin (1 + (B / Bcrit)^2) stands for these, in the interval only.
_MIXTURE = {"hyperbolic": 1.0, "accelerating": 0.25}


@dataclass(frozen=True)
class EpochsGroup:
    """Epochs against batch of one workload and learning-rate rule.

    Attributes:
        batches: global batches, ascending; `epochs`: their medians at each; `counts`: measurements at each.
        emin, bcrit: of E = emin (1 + B / bcrit); `bcrit` is infinite where epochs do not grow.
        bcrit_low, bcrit_high: 90 % interval of bcrit under that law.
        bcrit_noise: the simple noise scale (samples) of the same runs, a second estimate of bcrit; None unless recorded.
        status: `ok`, or `insufficient_data` with fewer than three batches.
        bounds: further global batches that were trained, and as many epochs as were not enough there.
    """

    workload: str | None
    lr_rule: str | None
    metric: str
    batches: Floats
    epochs: Floats
    counts: Floats
    emin: float
    bcrit: float
    bcrit_low: float
    bcrit_high: float
    bcrit_noise: float | None
    status: str
    bounds: tuple[tuple[float, float], ...] = ()

    def bound(self, batch: float) -> float:
        """As many epochs as are known not to be enough at `batch`, since they were not there or at a smaller one; else 0.

        Of smaller ones below the largest that is counted the counts above say more.
        """
        return max((epochs for own, epochs in self._bounds_to(batch)), default=0.0)

    def expects(self, batch: float) -> bool:
        """Whether the laws say something of `batch`: not where runs that have not settled contradict them, there or below."""
        bounds = self._bounds_to(batch)
        refuted = any(epochs >= self._laws(own)[2] for own, epochs in bounds)
        return not bounds or (not refuted and self.bound(batch) < self._laws(batch)[1])

    def _bounds_to(self, batch: float) -> list[tuple[float, float]]:
        return [(own, epochs) for own, epochs in self.bounds if own == batch or self.batches[-1] < own <= batch]

    def predict_law(self, law: str, batch: Floats) -> Floats:
        """Epochs at `batch` by one law of `LAWS`, least squares in logs."""
        level, slope = best_fit(law, self.batches, self.epochs, self.counts)
        return np.asarray(np.exp(level + _curve(law, batch, np.array([slope]), self.batches[0])[0]))

    def interval(self, batch: float) -> tuple[float, float, float]:
        """Low end, default law and high end for a new count of epochs at `batch`, 90 %: holds what every law says.

        Above what is known not to be enough (`bound`), and where that contradicts the laws (`expects`) nothing else: the default
        law's is NaN, the high end infinite.
        """
        low, middle, high = self._laws(batch)
        low = max(low, self.bound(batch))
        return (low, middle, high) if self.expects(batch) else (low, float("nan"), float("inf"))

    def _laws(self, batch: float) -> tuple[float, float, float]:
        by_law = [float(self.predict_law(law, np.array([batch]))[0]) for law in LAWS]
        low, high = self._quantiles(batch)
        return min(low, *by_law), by_law[0], max(high, *by_law)

    def _quantiles(self, batch: float) -> tuple[float, float]:
        """5 and 95 %: `_MIXTURE`'s laws over all slopes, each a Gaussian process around its curve with a random walk in
        log2 B, the common scale integrated out (Student t); weighted by how well each explains the counts."""
        every_batch = np.append(self.batches, batch)
        x, size = np.log2(every_batch / self.batches[0]), len(self.batches)
        counts = np.append(np.minimum(self.counts, 4), 1.0)
        covariance = 100.0 + _WALK**2 * np.minimum.outer(x, x) + np.diag(NOISE**2 / np.sqrt(counts))
        inverse = np.linalg.inv(covariance[:size, :size])
        across = covariance[size, :size] @ inverse
        spread = covariance[size, size] - across @ covariance[:size, size]
        freedom = 2 * _SHAPE + size - 1
        middles, weights, scales = [], [], []
        for law, weight in _MIXTURE.items():
            slopes = _slopes(law, self.batches)
            curves = _curve(law, every_batch, slopes, self.batches[0])
            residuals = np.log(self.epochs) - curves[:, :size]
            misfit = np.einsum("ks,st,kt->k", residuals, inverse, residuals)
            prior = np.exp(-0.5 * _surprise(slopes, self.batches))
            middles.append(curves[:, size] + residuals @ across)
            weights.append(weight * prior / prior.sum() * (2 * _SHAPE + misfit) ** (-freedom / 2))
            scales.append(np.sqrt((2 * _SHAPE + misfit) / freedom * spread))
        weight_of = np.concatenate(weights)
        found = quantiles(np.concatenate(middles), np.concatenate(scales), weight_of / weight_of.sum(), freedom)
        return float(np.exp(found[0])), float(np.exp(found[2]))


@dataclass(frozen=True)
class EpochsFit:
    """The fits of all groups of a table."""

    groups: tuple[EpochsGroup, ...]

    def predict(self, batches: int | Sequence[int]) -> pd.DataFrame:
        """Epochs at other global batches, with 90 % intervals over all laws.

        Returns:
            One row per group and batch: workload, lr_rule, global_batch, value (by E = Emin (1 + B / Bcrit)), low,
            high, status, and `by_power` and `by_log2`, the other two laws. Beyond 4 times the largest batch `refused`,
            without a value; nor is there one where runs that have not settled contradict the laws.

        Raises:
            UserError: a batch is not a whole number of one or more.
        """
        asked = [batches] if isinstance(batches, (int, np.integer)) else list(batches)
        for batch in asked:
            if isinstance(batch, bool) or int(batch) != batch or batch < 1:
                raise UserError(f"a global batch of {batch!r} cannot be predicted; give whole numbers of 1 or more")
        rows = [predict_one(group, int(batch)) for group in self.groups for batch in asked]
        columns = [*EPOCH_GROUP, "global_batch", "value", "low", "high", "status", "by_power", "by_log2"]
        return pd.DataFrame(rows, columns=columns)


def predict_one(group: EpochsGroup, batch: int) -> dict[str, Any]:
    row: dict[str, Any] = {"workload": group.workload, "lr_rule": group.lr_rule, "global_batch": batch}
    if len(group.batches) < 2:
        nothing = dict.fromkeys(("value", "low", "high", "by_power", "by_log2"), float("nan"))
        return {**row, **nothing, "status": group.status}
    low, value, high = group.interval(float(batch))
    power, log2 = (float(group.predict_law(law, np.array([float(batch)]))[0]) for law in ("power", "log2"))
    refused = batch > FURTHEST * group.batches.max()
    if not group.expects(float(batch)):
        power = log2 = float("nan")
    return {
        **row,
        "value": float("nan") if refused else value,
        "low": low,
        "high": high,
        "status": "refused" if refused else group.status,
        "by_power": power,
        "by_log2": log2,
    }


def fit_epochs(table: pd.DataFrame, bounds: Bounds | None = None) -> EpochsFit:
    """Fit epochs against global batch, per workload and learning-rate rule.

    The default law is E = Emin (1 + B / Bcrit): epochs and steps to a target trade off as a hyperbola (McCandlish et al.
    2018, equation 2.11, with B E = const steps). A power law and one in log2 of the batch stand beside it.

    Args:
        table: rows of metric epochs_to_stability (or epochs_to_target) with a global_batch; rows of metric noise_scale
            (samples) give a second estimate of Bcrit.
        bounds: of runs that have not settled, `analysis.settled.lower_bounds`: no prediction contradicts them.
    """
    table = completed(table)
    chosen = table[table["metric"].isin((*METRICS_OF_EPOCHS, "noise_scale")) & (table["value"] > 0)]
    groups = []
    for key, rows in chosen.groupby(list(EPOCH_GROUP), dropna=False, sort=False):
        own = [rows[(rows["metric"] == metric) & rows["global_batch"].notna()] for metric in METRICS_OF_EPOCHS]
        metric, counted = max(
            zip(METRICS_OF_EPOCHS, own, strict=True), key=lambda pair: pair[1]["global_batch"].nunique()
        )
        noise = rows.loc[rows["metric"] == "noise_scale", "value"]
        if len(counted):
            workload, lr_rule = (known(value) for value in key)
            by = counted.groupby("global_batch")["value"].agg(["median", "size"]).sort_index()
            groups.append(fit_batches(
                by.index.to_numpy(dtype=float), by["median"].to_numpy(dtype=float), by["size"].to_numpy(dtype=float),
                workload, lr_rule, metric, float(noise.median()) if len(noise) else None,
                (bounds or {}).get((workload, lr_rule), {}) if metric == METRICS_OF_EPOCHS[0] else {},
            ))  # fmt: skip
    return EpochsFit(tuple(groups))


def fit_batches(
    batches: Floats, epochs: Floats, counts: Floats, workload: str | None = None, lr_rule: str | None = None,
    metric: str = METRICS_OF_EPOCHS[0], bcrit_noise: float | None = None, bounds: Mapping[int, float] | None = None,
) -> EpochsGroup:  # fmt: skip
    """Fit one group: ascending global batches, median epochs at each, and how many measurements each is of."""
    emin, bcrit, low, high = float("nan"), float("nan"), float("nan"), float("nan")
    if len(batches) > 1:
        level, slope = best_fit("hyperbolic", batches, epochs, counts)
        emin, bcrit = float(np.exp(level)), float(1 / slope) if slope > 0 else float("inf")
        slopes = _slopes("hyperbolic", batches)
        misfit = _levels(_curve("hyperbolic", batches, slopes, batches[0]), np.log(epochs), counts)[1]
        weights = (2 * _SHAPE + misfit / NOISE**2) ** (-(_SHAPE + (len(batches) - 1) / 2))
        weights = weights * np.exp(-0.5 * _surprise(slopes, batches))
        shares = np.cumsum(weights) / weights.sum()
        ends = [float(slopes[min(int(np.searchsorted(shares, share)), len(slopes) - 1)]) for share in (0.95, 0.05)]
        low, high = (1 / end if end > 0 else float("inf") for end in ends)
        # The best slope knows the noise, the interval does not: of epochs that no hyperbola follows they may part ways.
        low, high = min(low, bcrit), max(high, bcrit)
    status = "ok" if len(batches) > 2 else "insufficient_data"
    below = tuple((float(batch), least) for batch, least in sorted((bounds or {}).items()))
    return EpochsGroup(
        workload, lr_rule, metric, batches, epochs, counts, emin, bcrit, low, high, bcrit_noise, status, below
    )


def best_fit(law: str, batches: Floats, epochs: Floats, counts: Floats) -> tuple[float, float]:
    """Level (log epochs as the batch goes to zero, or at the smallest for power and log2) and slope of one law.

    Least squares in logs; of the default law the most probable slope, with the prior `_AROUND`.
    """
    slopes = _slopes(law, batches)
    for _ in range(3):
        levels, misfit = _levels(_curve(law, batches, slopes, batches[0]), np.log(epochs), counts)
        if law == "hyperbolic":
            misfit = misfit / NOISE**2 + _surprise(slopes, batches)
        at = int(misfit.argmin())
        best = float(levels[at]), float(slopes[at])
        # The best slope lies between the neighbours of the best one tried.
        slopes = np.linspace(slopes[max(at - 1, 0)], slopes[min(at + 1, len(slopes) - 1)], 41)
    return best


def _surprise(slopes: Floats, batches: Floats) -> Floats:
    """Minus twice the log prior of slopes 1 / Bcrit; no growth at all counts as a critical batch 1000 times the largest."""
    return np.asarray((np.log(np.maximum(slopes * batches.max(), 1e-3)) / _AROUND) ** 2)


def _slopes(law: str, batches: Floats) -> Floats:
    """Slopes that are tried: 1 / Bcrit, the exponent, or the relative growth per doubling."""
    if law in ("hyperbolic", "accelerating"):
        return np.asarray(np.concatenate([[0.0], np.geomspace(1e-3, 100.0, 160)]) / batches.max())
    if law == "power":
        return np.linspace(0.0, 1.0, 101)
    return np.asarray(np.concatenate([[0.0], np.geomspace(1e-3, 10.0, 100)]))


def _curve(law: str, batches: Floats, slopes: Floats, smallest: float) -> Floats:
    """log epochs without the level, shape (slopes, batches)."""
    slope, batch = slopes[:, None], batches[None, :] / smallest
    if law == "hyperbolic":
        return np.asarray(np.log1p(slope * smallest * batch))
    if law == "accelerating":
        return np.asarray(np.log1p((slope * smallest * batch) ** 2))
    if law == "power":
        return np.asarray(slope * np.log(batch))
    return np.asarray(np.log(np.maximum(1 + slope * np.log2(batch), 0.1)))


def _levels(curves: Floats, log_epochs: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Weighted least squares of the level for every curve, and the sum of squares that is left."""
    weights = np.sqrt(np.minimum(counts, 4))
    weights = weights / weights.mean()
    residuals = log_epochs - curves
    level = (residuals * weights).sum(axis=1) / weights.sum()
    misfit: Floats = (weights * (residuals - level[:, None]) ** 2).sum(axis=1)
    return level, misfit
