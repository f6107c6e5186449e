"""How many epochs a target takes, as the global batch grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.posterior import Floats, quantiles
from hvdtrain.errors import UserError

#: Epochs depend on what is trained and how the learning rate follows the batch, not on which GPU does it.
EPOCH_GROUP = ("workload", "lr_rule")
#: Measurements of epochs, best first.
METRICS_OF_EPOCHS = ("epochs_to_stability", "epochs_to_target")
FURTHEST = 4
#: Noise of one count of epochs, and what no law describes per doubling of the batch: standard deviations in logs.
#: `bench/backtest.py` measures the coverage that follows.
_NOISE, _WALK = 0.04, 0.06
_SHAPE = 1.5
#: Laws and their prior weight. The first is the default, for it is the one with a theory.
LAWS = {"hyperbolic": 2.0, "power": 1.0, "log2": 1.0}
#: Beyond the critical batch some tasks grow faster than the hyperbola: E = Emin (1 + (B / Bcrit)^2) widens the interval only.
_WIDENING = {**LAWS, "accelerating": 1.0}


@dataclass(frozen=True)
class EpochsGroup:
    """Epochs against batch of one workload and learning-rate rule.

    Attributes:
        batches: global batches, ascending; `epochs`: mean epochs at each; `counts`: measurements at each.
        emin, bcrit: of E = emin (1 + B / bcrit); `bcrit` is infinite where epochs do not grow.
        bcrit_low, bcrit_high: 90 % interval of bcrit under that law.
        bcrit_noise: the simple noise scale (samples) of the same runs, a second estimate of bcrit; None unless recorded.
        by_law: least-squares parameters (level, slope) of every law.
        status: `ok`, or `insufficient_data` with fewer than three batches.
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

    def predict_law(self, law: str, batch: Floats) -> Floats:
        """Epochs at `batch` by one law of `LAWS`, least squares in logs."""
        grid = _grid(law, self.batches)
        curves = _curve(law, self.batches, grid, self.batches[0])
        level, misfit = _levels(curves, np.log(self.epochs), self.counts)
        best = int(misfit.argmin())
        return np.asarray(np.exp(level[best] + _curve(law, batch, grid[best : best + 1], self.batches[0])[0]))

    def quantiles(self, batch: float) -> tuple[float, float, float]:
        """5, 50 and 95 % of a new count of epochs: an average of all laws, each weighted by how it explains the data."""
        middles, weights, spreads = [], [], []
        x = np.log2(np.append(self.batches, batch) / self.batches[0])
        size = len(self.batches)
        covariance = 100.0 + _WALK**2 * np.minimum.outer(x, x)
        covariance += np.diag(_NOISE**2 / np.sqrt(np.append(np.minimum(self.counts, 4), 1.0)))
        inverse = np.linalg.inv(covariance[:size, :size])
        across = covariance[size, :size] @ inverse
        spread = covariance[size, size] - across @ covariance[size, :size]
        for law, weight in _WIDENING.items():
            grid = _grid(law, self.batches)
            every = _curve(law, np.append(self.batches, batch), grid, self.batches[0])
            residuals = np.log(self.epochs) - every[:, :size]
            misfit = np.einsum("ks,st,kt->k", residuals, inverse, residuals)
            middles.append(every[:, size] + residuals @ across)
            weights.append(weight / len(grid) * (2 * _SHAPE + misfit) ** (-(_SHAPE + (size - 1) / 2)))
            spreads.append(np.sqrt((2 * _SHAPE + misfit) / (2 * _SHAPE + size - 1) * spread))
        weight_of = np.concatenate(weights)
        found = quantiles(np.concatenate(middles), np.concatenate(spreads), weight_of / weight_of.sum(), 2 * _SHAPE + size - 1)
        low, middle, high = np.exp(found)
        return float(low), float(middle), float(high)


@dataclass(frozen=True)
class EpochsFit:
    """The fits of all groups of a table."""

    groups: tuple[EpochsGroup, ...]

    def predict(self, batches: int | Sequence[int]) -> pd.DataFrame:
        """Epochs at other global batches, with 90 % intervals over all laws.

        Returns:
            One row per group and batch: workload, lr_rule, global_batch, value (by E = Emin (1 + B / Bcrit)), low,
            high, status, and `by_power` and `by_log2`, the other two laws. Beyond 4 times the largest batch `refused`, without a value.

        Raises:
            UserError: a batch is not a whole number of one or more.
        """
        asked = [batches] if isinstance(batches, (int, np.integer)) else list(batches)
        for batch in asked:
            if isinstance(batch, bool) or int(batch) != batch or batch < 1:
                raise UserError(f"a global batch of {batch!r} cannot be predicted; give whole numbers of 1 or more")
        rows = [_row(group, int(batch)) for group in self.groups for batch in asked]
        columns = [*EPOCH_GROUP, "global_batch", "value", "low", "high", "status", "by_power", "by_log2"]
        return pd.DataFrame(rows, columns=columns)


def _row(group: EpochsGroup, batch: int) -> dict[str, Any]:
    row: dict[str, Any] = {"workload": group.workload, "lr_rule": group.lr_rule, "global_batch": batch}
    if len(group.batches) < 2:
        nothing = dict.fromkeys(("value", "low", "high", "by_power", "by_log2"), float("nan"))
        return {**row, **nothing, "status": group.status}
    at = np.array([float(batch)])
    by_law = {law: float(group.predict_law(law, at)[0]) for law in LAWS}
    low, _, high = group.quantiles(float(batch))
    refused = batch > FURTHEST * group.batches.max()
    value = float("nan") if refused else by_law["hyperbolic"]
    # The interval holds what every law says: none of them is known to be right.
    return {
        **row,
        "value": value,
        "low": min(low, *by_law.values()),
        "high": max(high, *by_law.values()),
        "status": "refused" if refused else group.status,
        "by_power": by_law["power"],
        "by_log2": by_law["log2"],
    }


def fit_epochs(table: pd.DataFrame) -> EpochsFit:
    """Fit epochs against global batch, per workload and learning-rate rule.

    The default law is E = Emin (1 + B / Bcrit): epochs and steps to a target trade off as a hyperbola (McCandlish et al.
    2018, equation 2.11, with B E = const steps). A power law and one in log2 of the batch stand beside it.

    Args:
        table: rows of metric epochs_to_stability (or epochs_to_target) with a global_batch; rows of metric noise_scale
            (samples) give a second estimate of Bcrit.
    """
    chosen = table[table["metric"].isin((*METRICS_OF_EPOCHS, "noise_scale")) & (table["value"] > 0)]
    groups = []
    for key, rows in chosen.groupby(list(EPOCH_GROUP), dropna=False, sort=False):
        own = [rows[(rows["metric"] == metric) & rows["global_batch"].notna()] for metric in METRICS_OF_EPOCHS]
        metric, counted = max(zip(METRICS_OF_EPOCHS, own, strict=True), key=lambda pair: pair[1]["global_batch"].nunique())
        noise = rows.loc[rows["metric"] == "noise_scale", "value"]
        if len(counted):
            workload, lr_rule = (None if pd.isna(value) else str(value) for value in key)
            by = counted.groupby("global_batch")["value"].agg(["mean", "size"]).sort_index()
            groups.append(fit_batches(
                by.index.to_numpy(dtype=float), by["mean"].to_numpy(dtype=float), by["size"].to_numpy(dtype=float),
                workload, lr_rule, metric, float(noise.median()) if len(noise) else None,
            ))  # fmt: skip
    return EpochsFit(tuple(groups))


def fit_batches(
    batches: Floats, epochs: Floats, counts: Floats, workload: str | None = None, lr_rule: str | None = None,
    metric: str = METRICS_OF_EPOCHS[0], bcrit_noise: float | None = None,
) -> EpochsGroup:  # fmt: skip
    """Fit one group: ascending global batches, mean epochs at each, and how many measurements each mean is of."""
    emin, bcrit, low, high = float("nan"), float("nan"), float("nan"), float("nan")
    if len(batches) > 1:
        grid = _grid("hyperbolic", batches)
        level, misfit = _levels(_curve("hyperbolic", batches, grid, batches[0]), np.log(epochs), counts)
        best = int(misfit.argmin())
        emin, bcrit = float(np.exp(level[best])), float(1 / grid[best]) if grid[best] > 0 else float("inf")
        weights = (2 * _SHAPE + misfit / _NOISE**2) ** (-(_SHAPE + (len(batches) - 1) / 2))
        below = np.cumsum(weights) / weights.sum()
        ends = [float(grid[min(int(np.searchsorted(below, share)), len(grid) - 1)]) for share in (0.95, 0.05)]
        low, high = (1 / end if end > 0 else float("inf") for end in ends)
    status = "ok" if len(batches) > 2 else "insufficient_data"
    return EpochsGroup(workload, lr_rule, metric, batches, epochs, counts, emin, bcrit, low, high, bcrit_noise, status)


def _grid(law: str, batches: Floats) -> Floats:
    """Slopes that are tried: 1 / Bcrit, the exponent, or the relative growth per doubling."""
    if law in ("hyperbolic", "accelerating"):
        return np.concatenate([[0.0], np.geomspace(1e-3, 100.0, 160)]) / batches.max()
    return np.linspace(0.0, 1.0, 101) if law == "power" else np.concatenate([[0.0], np.geomspace(1e-3, 10.0, 100)])


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
    return level, (weights * (residuals - level[:, None]) ** 2).sum(axis=1)
