"""Scaling fits per group, and predictions that say when they are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.complete import completed
from analysis.measured import Floats, Measured, measured
from analysis.models import MODELS, Fitted, fit_model, karp_flatt
from analysis.posterior import Posterior
from analysis.schema import GROUP
from hvdtrain.errors import UserError

STATUSES = ("ok", "insufficient_data", "refused")
#: Further than this times the largest measured size nothing is predicted.
FURTHEST = 4
#: More than this times the ratio of ranks is no speed-up: caches explain 1.1, rarely 1.3.
IMPLAUSIBLE = 1.5
_ROBUST_FROM = 5
#: A size off by less than this (in logs) is noise. One further off is left out where the others, without it, lie this many
#: times nearer to each other.
_OUTLYING, _AGREEING = 0.12, 4.0


@dataclass(frozen=True)
class GroupFit:
    """What one group's sizes say.

    Attributes:
        data: the sizes that were measured.
        status: `ok`; `insufficient_data` with one or two sizes; `refused` where the measurements cannot be right.
        reason: why not `ok`, in words.
        outlier: ranks of the one size that was left out of the fit, or None.
        weights: probability of each law.
        karp_flatt: (ranks, experimentally determined serial fraction) of every size above the smallest.
    """

    data: Measured
    status: str
    reason: str
    outlier: int | None
    weights: dict[str, float]
    karp_flatt: tuple[tuple[int, float], ...]
    posterior: Posterior | None = field(repr=False)

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `analysis.schema.GROUP`, and the global batch where that is what is held, else None."""
        return self.data.key

    @cached_property
    def models(self) -> dict[str, Fitted]:
        """Each law that the number of sizes allows, fitted by itself, by name; empty where nothing is fitted."""
        if self.posterior is None:
            return {}
        own = self.posterior
        return {
            name: fit_model(model, own.n, own.log_cost, own.replicates)
            for name, model in MODELS.items()
            if len(own.n) >= model.needs
        }

    @property
    def fields(self) -> dict[str, Any]:
        """The values of `analysis.schema.GROUP` by name."""
        return self.data.fields

    def predict(self, sizes: Sequence[int], gpus_per_node: int | None = None) -> list[dict[str, Any]]:
        """As `ScalingFit.predict`, for this group alone."""
        n = np.asarray(sizes, dtype=float)
        nodes = self.data.nodes_of(n, gpus_per_node)
        common = {**self.fields, "global_batch": self.data.global_batch}
        if self.posterior is None or self.status == "refused":
            nothing = {"value": float("nan"), "low": float("nan"), "high": float("nan"), "status": self.status}
            return [{**common, "n_gpus": int(size), **nothing} for size in sizes]
        middle, low, high = self.quantiles(n, nodes)
        rows = []
        for place, size in enumerate(sizes):
            status = self.status if self.supported(size, float(nodes[place])) else "refused"
            value = float(middle[place]) if status != "refused" else float("nan")
            rows.append({**common, "n_gpus": int(size), "value": value, "low": float(low[place]),
                         "high": float(high[place]), "status": status})  # fmt: skip
        return rows

    def quantiles(self, n: Floats, nodes: Floats) -> tuple[Floats, Floats, Floats]:
        """Median, 5 % and 95 % of a new measurement, in the metric's unit, whether supported or not.

        Raises:
            ValueError: the group has one size only.
        """
        if self.posterior is None:
            raise ValueError("one size says nothing about others")
        found = self.posterior.predict(n, nodes)
        ends = [self.data.value(quantile, n) for quantile in (found.low, found.high)]
        low, high = np.minimum(*ends), np.maximum(*ends)
        if self.status == "insufficient_data":
            # Two sizes carry no evidence for more than ideal scaling beyond them.
            cost = self.data.log_cost(self.data.values, self.data.n)[-1]
            ideal = self.data.value(np.full_like(n, cost), n)
            beyond = n > self.data.n[-1]
            if self.data.is_time:
                low = np.where(beyond, np.minimum(np.maximum(low, ideal), high), low)
            else:
                high = np.where(beyond, np.maximum(np.minimum(high, ideal), low), high)
        return np.clip(self.data.value(found.middle, n), low, high), low, high

    def supported(self, n: int, nodes: float) -> bool:
        """Whether the measurements carry a prediction there: near enough, and not across a boundary never crossed."""
        return n <= FURTHEST * self.data.n.max() and not (nodes > 1 and self.data.nodes.max() == 1)


@dataclass(frozen=True)
class ScalingFit:
    """The fits of all groups of a table."""

    groups: tuple[GroupFit, ...]

    def predict(self, sizes: int | Sequence[int], gpus_per_node: int | None = None) -> pd.DataFrame:
        """What each group would measure at other numbers of ranks, with 90 % intervals.

        Args:
            sizes: ranks.
            gpus_per_node: GPUs of one node; default, what the measurements show, else 8. CPU ranks share one node.

        Returns:
            One row per group and size: the columns of `analysis.schema.GROUP`, n_gpus, value, low, high (in the unit of the
            group's metric), status, and global_batch where some group holds that. `refused` comes without a value: beyond 4
            times the largest size, or from one node to several without a measurement on several; its low and high are then a
            range that the measurements do not support. With two sizes the status is `insufficient_data` and the interval wide;
            with one, all is NaN.

        Raises:
            UserError: a size is not a whole number of one or more.
        """
        asked = [sizes] if isinstance(sizes, (int, np.integer)) else list(sizes)
        for size in [*asked, *([] if gpus_per_node is None else [gpus_per_node])]:
            if isinstance(size, bool) or int(size) != size or size < 1:
                raise UserError(f"{size!r} ranks cannot be predicted; give whole numbers of 1 or more")
        rows = [row for group in self.groups for row in group.predict(asked, gpus_per_node)]
        held = any(group.data.global_batch is not None for group in self.groups)
        columns = [*GROUP, "n_gpus", "value", "low", "high", "status", *(["global_batch"] if held else [])]
        return pd.DataFrame(rows, columns=columns)


def fit_scaling(table: pd.DataFrame) -> ScalingFit:
    """Fit the scaling of every group of `analysis.read`'s table.

    Groups are never pooled. The metric is the first of throughput, steps_per_s, epoch_time, total_time that covers most
    sizes. Laws, uncertainty and their sources: `analysis.models`, `analysis.posterior`.

    Args:
        table: columns of `analysis.schema.COLUMNS`, one row per measurement; n_gpus, metric and value at least.

    Raises:
        UserError: a column is missing.

    >>> import analysis
    >>> analysis.fit_scaling(analysis.reference("caltech256_lab")).predict(16).status.unique().tolist()
    ['insufficient_data']
    """
    table = completed(table, ("n_gpus", "metric", "value"))
    return ScalingFit(tuple(fit_group(data) for data in measured(table)))


def fit_group(data: Measured) -> GroupFit:
    """Fit one group."""
    sizes = len(data.n)
    cost = data.log_cost(data.values, data.n)
    speedup = data.n / data.n[0] * np.exp(cost[0] - cost)
    serial = tuple(
        (int(n), value)
        for n, s in zip(data.n, speedup, strict=True)
        if (value := karp_flatt(float(s), int(n / data.n[0]) if (n / data.n[0]).is_integer() else n / data.n[0]))
        is not None
    )
    refusal = _refusal(data, cost)
    place = _slow_one(data.n, cost) if refusal else None
    if (refusal and place is None) or sizes == 1:
        status = "refused" if refusal else "insufficient_data"
        return GroupFit(data, status, refusal or "one size only", None, {}, serial, None)
    keep = np.ones(sizes, dtype=bool)
    if place is None:
        posterior = Posterior.of(data.n, data.nodes, cost, data.replicates)
        place = _outlier(posterior)
    if place is not None:
        keep[place] = False
    if not keep.all() or refusal:
        posterior = Posterior.of(data.n[keep], data.nodes[keep], cost[keep], data.replicates[keep])
    used = int(keep.sum())
    return GroupFit(
        data=data,
        status="ok" if used > 2 else "insufficient_data",
        reason="" if used > 2 else "two sizes only: any law of two parameters passes through both",
        outlier=None if place is None else int(data.n[place]),
        weights=posterior.law_weights(),
        karp_flatt=serial,
        posterior=posterior,
    )


def impossible(n: Floats, cost: Floats) -> tuple[int, int] | None:
    """The first two sizes whose speed-up cannot be, by their places in `n`; None where all can.

    `n` and `cost`, the log cost, are of shape (sizes,), by ascending ranks.
    """
    for place in range(1, len(n)):
        before = int(np.argmax(cost[:place]))
        if np.exp(cost[before] - cost[place]) > IMPLAUSIBLE:
            return before, place
    return None


def _refusal(data: Measured, cost: Floats) -> str:
    """Why the speed-ups of a group cannot be, "" where all can."""
    pair = impossible(data.n, cost)
    if pair is None:
        return ""
    if data.unknown_steps:
        return "steps/s rise with the ranks, and without a batch nobody knows how many samples a step is"
    before, place = pair
    gain = data.n[place] / data.n[before] * np.exp(cost[before] - cost[place])
    return (
        f"{data.n[place]:g} ranks measured {gain:.3g} times as fast as {data.n[before]:g}: "
        f"more than {IMPLAUSIBLE:g} times the ratio of ranks cannot be"
    )


def _slow_one(n: Floats, cost: Floats) -> int | None:
    """The one size without which all speed-ups are possible: where five or more were measured, a disturbed run.

    Not the largest: were it too fast, nothing above would speak for it.
    """
    if len(n) < _ROBUST_FROM:
        return None
    for place in range(len(n) - 1):
        if impossible(np.delete(n, place), np.delete(cost, place)) is None:
            return place
    return None


def _outlier(posterior: Posterior) -> int | None:
    """The one size that disagrees with all others while they agree with each other; never the last, only of five or more.

    What the largest size shows may be the first sign of a limit, and no size beyond it could say otherwise.
    """
    if len(posterior.n) < _ROBUST_FROM:
        return None
    off = np.abs(posterior.left_out())
    worst = int(np.argmax(off[:-1]))
    if off[worst] < _OUTLYING:
        return None
    keep = np.arange(len(off)) != worst
    rest = Posterior.of(posterior.n[keep], posterior.nodes[keep], posterior.log_cost[keep], posterior.replicates[keep])
    return worst if off[worst] > _AGREEING * float(np.abs(rest.left_out()).max()) else None
