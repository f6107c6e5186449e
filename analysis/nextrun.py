"""Which single run would tell most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import words
from analysis.checks_speed import missing_size
from analysis.fitting import GroupFit, fit_scaling, impossible
from analysis.posterior import Posterior
from analysis.way import Way, differing, qualified


def next_run(table: pd.DataFrame, fastest: Way | None, rivals: Sequence[Way]) -> str:
    """In words: the repeat that would rank the best two, or of sizes that cannot be; else what narrows the next forecast most.

    For the latter every candidate (a missing smaller size, one between, the next doubling, a repeat of the largest) is
    added at its own predicted value, and the width of the 90 % interval at twice the largest size compared before and after.
    """
    if fastest is not None and rivals:
        fewest = min((fastest, *rivals[:1]), key=lambda way: way.replicates)
        return (
            f"Repeat {fewest.name} with another seed: it has {fewest.replicates} run{'' if fewest.replicates == 1 else 's'}, and "
            f"{fastest.name} and {rivals[0].name} cannot be told apart."
        )
    every = fit_scaling(table).groups
    if not every:
        return "Record samples/s or the time of an epoch too: times to a target alone do not say how speed grows with the ranks."
    fits = [fit for fit in every if fit.posterior is not None]
    of_fastest = [fit for fit in every if fastest is not None and fit.data.holds(fastest.fields, fastest.global_batch)]
    apart = differing([_named(fit) for fit in every])
    # Another group's sizes say nothing about one that has a single size, or sizes that cannot be.
    alone = next((fit for fit in of_fastest or (() if fits else every) if fit.posterior is None), None)
    if alone is not None:
        told, data = _of(qualified(_named(alone), apart)), alone.data
        if len(data.n) == 1:
            return f"Measure a second number of ranks{told}: one says nothing about others."
        if data.unknown_steps:
            return f"Record the batch per rank or samples/s too{told}: {alone.reason}."
        pair = impossible(data.n, data.log_cost(data.values, data.n)) or ()
        sizes = " and ".join(f"{data.n[place]:g}" for place in pair)
        return f"Measure {sizes} {words.rank_noun(alone.fields['device'])} again{told}: {alone.reason}."
    chosen = next((fit for fit in of_fastest if fit.posterior is not None), fits[0])
    return _narrowing(chosen, _of(qualified(_named(chosen), apart)))


def _named(fit: GroupFit) -> dict[str, Any]:
    return {**fit.fields, "global_batch": fit.data.global_batch}


def _of(told: Sequence[str]) -> str:
    return f" ({', '.join(told)})" if told else ""


def _narrowing(fit: GroupFit, of: str) -> str:
    data = fit.data
    goal = 2 * float(data.n[-1])
    before = _width(fit, goal, None)
    between = float(2 ** round(float(np.log2(data.n[0] * data.n[-1])) / 2))
    candidates = {float(missing_size(data.n)), between, float(data.n[-1]), goal} - {0.0}
    widths = {size: _width(fit, goal, size) for size in sorted(candidates) if size <= goal}
    there, smaller = widths.pop(goal), min(widths, key=lambda size: widths[size])
    device = fit.fields["device"]
    again = "again" if smaller in data.n else "once"
    said = (
        f"Measure {words.ranks(int(goal), device)} once{of}: the interval there would narrow by about {1 - there / before:.0%}, "
        "more than from any other single run."
    )
    gain = f"{1 - widths[smaller] / before:.0%}"
    if gain.startswith("-") or gain == "0%":
        return f"{said} No smaller run would narrow it."
    return f"{said} Of smaller runs {words.ranks(int(smaller), device)} {again} would tell most: {gain}."


def _width(fit: GroupFit, goal: float, added: float | None) -> float:
    """Width of the interval in logs at `goal`, with one more measurement at `added`, at its predicted value."""
    own = fit.posterior
    if own is None:
        return float("inf")
    at = np.array([goal])
    if added is not None:
        size = np.array([added])
        nodes = fit.data.nodes_of(size)
        same = own.n == added
        if same.any():
            own = Posterior.of(own.n, own.nodes, own.log_cost, own.replicates + same)
        else:
            middle = own.predict(size, nodes).middle
            order = np.argsort(np.append(own.n, added))
            own = Posterior.of(
                np.append(own.n, added)[order], np.append(own.nodes, nodes)[order],
                np.append(own.log_cost, middle)[order], np.append(own.replicates, 1.0)[order],
            )  # fmt: skip
    found = own.predict(at, fit.data.nodes_of(at))
    return float(found.high[0] - found.low[0])
