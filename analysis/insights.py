"""Everything that is concluded from what was read: fits, findings, stability, phases, the way to the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.checks_runs import stability_of
from analysis.complete import completed
from analysis.diagnosis import diagnose
from analysis.efficiency import Split, splits
from analysis.epochs import EpochsFit, fit_epochs
from analysis.finding import Finding
from analysis.fitting import FURTHEST, GroupFit, fit_scaling
from analysis.phases import bound, by_size, phases_by_size
from analysis.recommendation import Recommendation, recommend
from analysis.runs import Run
from analysis.sentences import wish
from analysis.settled import BATCH, lower_bounds, settled
from analysis.stability import Stability
from hvdtrain.errors import UserError

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Asked:
    """What a user asks for besides the measurements. `deadline` in s, `budget` in the currency of `prices` or GPU-hours."""

    target: float | None = None
    deadline: float | None = None
    budget: float | None = None
    prices: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Insights:
    """The conclusions. Dictionaries are by a group's key, as `analysis.scaling.Group.key`.

    Attributes:
        fits: scaling fits; `predictions`: one row per group and size beyond, as `ScalingFit.predict`, plus `metric`.
        stability: by number of ranks; `phases`: seconds of an epoch by number of ranks; `limits`: what limits there.
        answers: a recommendation for every workload that has times.
        unanswered: why nothing follows for what was asked for; "" where something does, or nothing was asked.
    """

    findings: tuple[Finding, ...]
    fits: dict[Key, GroupFit]
    predictions: dict[Key, list[dict[str, Any]]]
    epochs: EpochsFit
    stability: dict[Key, dict[int, Stability]]
    phases: dict[Key, dict[int, dict[str, float]]]
    limits: dict[Key, dict[int, str]]
    answers: tuple[Recommendation, ...]
    splits: tuple[Split, ...]
    unanswered: str = ""


def gather(table: pd.DataFrame, runs: Sequence[Run], asked: Asked | None = None) -> Insights:
    """Conclude.

    Raises:
        UserError: what was asked for is not legal.
    """
    wanted = asked or Asked()
    fits = {fit.key: fit for fit in fit_scaling(table).groups}
    by_group = by_size(completed(table), runs)
    groups = {key: [run for several in sizes.values() for run in several] for key, sizes in by_group.items()}
    phases = {key: found for key, own in groups.items() if (found := phases_by_size(own))}
    answers = _answers(table, runs, wanted)
    ways = [way for answer in answers for way in (*answer.ways, *answer.unreached, *answer.uncounted)]
    return Insights(
        findings=tuple(diagnose(table, runs)),
        fits=fits,
        predictions={key: _beyond(fit) for key, fit in fits.items()},
        epochs=fit_epochs(settled(table, runs, BATCH), lower_bounds(runs)),
        stability={key: curves for key, own in groups.items() if (curves := stability_of(own))},
        phases=phases,
        limits={key: {n: bound(seconds, n) for n, seconds in sizes.items()} for key, sizes in phases.items()},
        answers=answers,
        splits=tuple(splits(table, ways)),
        unanswered="" if answers else _unanswered(wanted),
    )


def _answers(table: pd.DataFrame, runs: Sequence[Run], asked: Asked) -> tuple[Recommendation, ...]:
    try:
        first = recommend(
            table, asked.target, deadline=asked.deadline, budget=asked.budget, prices=asked.prices, runs=runs
        )
    except UserError as error:
        if "nothing to recommend" in str(error):
            return ()
        raise
    return (first, *first.others)


def _unanswered(asked: Asked) -> str:
    said = wish(asked.target, asked.deadline, asked.budget)
    if not said:
        return ""
    return (
        f"{said[0].upper()}{said[1:]}: not answered, because no throughput, no time of an epoch and no total time of a known "
        "number of epochs was measured on a known number of ranks."
    )


def _beyond(fit: GroupFit) -> list[dict[str, Any]]:
    """The next two doublings, and the first that is refused."""
    largest = int(fit.data.n[-1])
    rows = fit.predict([largest * 2, largest * FURTHEST, largest * 2 * FURTHEST])
    return [{**row, "metric": fit.data.metric, "unit": fit.data.unit} for row in rows]
