"""Efficiency taken apart: what the machine loses, and what the larger batch loses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.way import COUNTED, Way, of_each_rule


@dataclass(frozen=True)
class Split:
    """One size of a group against its smallest.

    Attributes:
        global_batch: what is held in a group of strong scaling; else None.
        hardware: speed per rank against the smallest size's (epochs per rank-second).
        statistical: epochs that the smallest size needs, over the epochs that this one needs.
        total: their product: how much of the added ranks shortens the way to the target.
    """

    fields: Mapping[str, Any]
    base: int
    n_gpus: int
    hardware: float
    statistical: float | None
    global_batch: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """That of the group."""
        return (*self.fields.values(), self.global_batch)

    @property
    def total(self) -> float | None:
        """`hardware` times `statistical`; None where epochs were not counted."""
        return None if self.statistical is None else self.hardware * self.statistical


def splits(table: pd.DataFrame, counted: list[Way]) -> list[Split]:
    """The split of every size above the smallest of its group.

    Hardware efficiency comes from scaling fits' own measurements (speed), statistical efficiency from the epochs of
    `counted` (`analysis.target.ways`): the product of goodput in Qiao et al. 2021 (Pollux), section 3.
    """
    from analysis.fitting import fit_scaling

    answers = [way for way in of_each_rule(counted) if way.basis in COUNTED]
    found = []
    for fit in fit_scaling(table).groups:
        data = fit.data
        if fit.status == "refused" or len(data.n) < 2:
            continue
        cost = data.log_cost(data.values, data.n)
        base = int(data.n[0])
        epochs = {way.n_gpus: way.epochs for way in answers if data.holds(way.fields, way.global_batch)}
        first = epochs.get(base)
        for n, own in zip(data.n[1:], cost[1:], strict=True):
            then = epochs.get(int(n))
            statistical = first / then if first and then else None
            hardware = float(np.exp(cost[0] - own))
            found.append(Split(fit.fields, base, int(n), hardware, statistical, data.global_batch))
    return found
