"""What to run: the fastest and the cheapest way to the common target, and where the measurements do not say which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.complete import completed
from analysis.finding import known
from analysis.forecast import forecasts
from analysis.nextrun import next_run
from analysis.runs import Run
from analysis.sentences import WHAT, best_ways, duration, nothing_learnt, uncounted_ways, unseen, wish, without_price
from analysis.settled import BATCH, lower_bounds, settled
from analysis.target import check_prices, check_target, common_target, ways
from analysis.way import Way, judged_by_cost, priced_as
from analysis.words import amount
from hvdtrain.errors import UserError

#: By which bases a way's seconds are the time of a whole job.
_WHOLE = ("target", "stable", "whole run", "recorded target")


@dataclass(frozen=True)
class Recommendation:
    """The answer for one workload.

    Attributes:
        workload: what is trained.
        target: the accuracy that times count to; None where none was recorded.
        basis: what a way's seconds count to, as `Way.basis`.
        fastest, cheapest: the best by time and by cost (GPU-hours where no price is known); None where nothing is timed.
        fastest_rivals, cheapest_rivals: ways whose intervals overlap with the best one's, so that they are not ranked.
        best: what the limits allow; None where there is no limit or nothing that meets it.
        ways: all measured ways that reach the target, by time.
        unreached: those that ended below it: not extrapolated.
        uncounted: those without a time, because nobody counted their epochs or measured what the others are compared by.
        forecasts: ways that nobody measured.
        next_run: the one run that would reduce the uncertainty most, in words.
        sentences: the answer in words.
        money: whether costs are in the currency of prices, for all workloads where a budget is; else in GPU-hours.
        others: the answers for the other workloads of the table.
    """

    workload: str | None
    target: float | None
    basis: str
    fastest: Way | None
    cheapest: Way | None
    fastest_rivals: tuple[Way, ...]
    cheapest_rivals: tuple[Way, ...]
    best: Way | None
    ways: tuple[Way, ...]
    unreached: tuple[Way, ...]
    uncounted: tuple[Way, ...]
    forecasts: tuple[Way, ...]
    next_run: str
    sentences: tuple[str, ...]
    money: bool = False
    others: tuple[Recommendation, ...] = ()


def recommend(
    table: pd.DataFrame,
    target: float | None = None,
    *,
    deadline: float | None = None,
    budget: float | None = None,
    prices: Mapping[str, float] | None = None,
    runs: Sequence[Run] = (),
) -> Recommendation:
    """The fastest and the cheapest measured way to a common accuracy.

    Times are whole jobs (`analysis.jobtime`), to epochs_to_stability or, where curves are known, to the first epoch at
    the target. Two ways are ranked only when their 90 % intervals do not overlap; those that do are named as rivals.

    Args:
        table: as `analysis.read` gives it.
        target: accuracy, a fraction of one; default: what all configurations got to that learnt anything.
        deadline: s; asks for the cheapest way that surely meets it.
        budget: in the currency of `prices`, or GPU-hours without; asks for the fastest way that surely keeps it.
        prices: per GPU-hour by GPU type (or "cpu"). Where some types of a workload have one (with a budget, of any workload),
            the others are not judged by cost; where none has one, CPU ranks are not beside GPUs.
        runs: the runs behind the table, for their curves; `analysis.tables.read_inputs` gives both.

    Returns:
        The answer for the workload with most configurations; `others` has the rest.

    Raises:
        UserError: the target, a price or a limit is not legal, or the table has no time and no throughput.

    >>> import analysis
    >>> best = analysis.recommend(analysis.reference("caltech256_lab"))
    >>> best.fastest.name, [way.name for way in best.fastest_rivals]
    ('8 x V100', [])
    """
    table = completed(table, ("n_gpus", "metric", "value"))
    check_target(target)
    rates = check_prices(prices)
    for name, limit in (("deadline", deadline), ("budget", budget)):
        if limit is not None and not limit > 0:
            raise UserError(f"{name} {limit!r} is not above zero")
    found = []
    for workload, rows in table.groupby("workload", dropna=False, sort=False):
        name = None if pd.isna(workload) else str(workload)
        own = [run for run in runs if run.workload == name]
        goal = common_target(rows, own) if target is None else target
        if every := ways(rows, goal, own, rates):
            found.append((name, rows, own, goal, every))
    # A budget is one sum: where any way of any workload has a price, were it one that does not reach the target, those without
    # are not judged by cost. Else workloads are not compared, and one without any price has its hours.
    anywhere = any(way.price is not None for *_, every in found for way in every)
    answers = []
    for name, rows, own, goal, every in found:
        money = any(way.price is not None for way in every) or (budget is not None and anywhere)
        answers.append(_one(name, rows, own, goal, every, target, deadline, budget, money))
    answers.sort(key=lambda answer: -len(answer.ways))
    if not answers:
        raise UserError("nothing to recommend from: no time and no throughput of a known number of ranks was measured")
    first = answers[0]
    said = (*first.sentences, *_of_nobody(prices or {}, answers))
    return Recommendation(**{**first.__dict__, "sentences": said, "others": tuple(answers[1:])})


def _one(
    workload: str | None, rows: pd.DataFrame, runs: Sequence[Run], goal: float | None, every: Sequence[Way],
    target: float | None, deadline: float | None, budget: float | None, money: bool,
) -> Recommendation:  # fmt: skip
    """The answer for one workload: `every` of its ways to `goal`, which is the `target` where one was asked for."""
    timed = sorted(
        (way for way in every if not math.isnan(way.seconds) and way.reached is not False), key=lambda way: way.seconds
    )
    unreached = tuple(way for way in every if way.reached is False)
    uncounted = tuple(way for way in every if way.reached is not False and math.isnan(way.seconds))
    fastest, fast_rivals = _first(timed, "seconds")
    judged = judged_by_cost(timed, money)
    cheapest, cheap_rivals = _first(judged, "cost")
    basis = every[0].basis
    best, limit = _within(timed, judged, money, deadline, budget, basis)
    # What diverged whenever it was tried has an answer.
    tried = [(dict(way.fields), way.n_gpus) for way in unreached]
    every_ahead = forecasts(settled(rows, runs, BATCH), timed, lower_bounds(runs))
    # Nor is one expected of more samples per step than did not get there.
    short = [(known(way.fields["lr_rule"]), batch) for way in unreached if (batch := way.global_batch) is not None]
    ahead = [
        way
        for way in every_ahead
        if (dict(way.fields), way.n_gpus) not in tried
        and not any(rule == known(way.fields["lr_rule"]) and batch <= (way.global_batch or 0) for rule, batch in short)
    ]
    run = next_run(rows, fastest, fast_rivals)
    sentences = [
        *best_ways(basis, goal, fastest, fast_rivals, cheapest, cheap_rivals, unreached),
        *uncounted_ways(basis, uncounted),
        *nothing_learnt(goal, every),
        *unseen(target, basis, timed),
        *without_price([way for way in timed if way not in judged], [] if money else judged),
        *limit,
    ]
    return Recommendation(
        workload, goal, basis, fastest, cheapest, fast_rivals, cheap_rivals, best, tuple(timed), unreached, uncounted,
        tuple(ahead), run, tuple(sentences), money,
    )  # fmt: skip


def _first(timed: Sequence[Way], by: str) -> tuple[Way | None, tuple[Way, ...]]:
    """The least by one measure, and those whose interval reaches into its own."""
    if not timed:
        return None, ()
    ordered = sorted(timed, key=lambda way: way.worth(by)[1])
    ends = ordered[0].worth(by)[2]
    return ordered[0], tuple(way for way in ordered[1:] if way.worth(by)[0] <= ends)


def _within(
    timed: Sequence[Way], judged: Sequence[Way], money: bool, deadline: float | None, budget: float | None, basis: str
) -> tuple[Way | None, list[str]]:
    """The best way whose whole interval keeps the limits: the cheapest by a deadline, the fastest by a budget.

    Of `timed` only those are asked that can be `judged` by cost; `money` says that costs are in the currency of prices. Only a
    `basis` that is a whole job can keep a limit.
    """
    if deadline is None and budget is None:
        return None, []
    limits = ([] if deadline is None else [("seconds", deadline)]) + ([] if budget is None else [("cost", budget)])
    said = wish(None, deadline, budget, f" {judged[0].hours_unit}" if judged and not money else "")
    if basis not in _WHOLE:
        return None, [
            f"What keeps {said} cannot be said: how many epochs are needed is not known, and the times are those "
            f"{WHAT[basis]}. Record epochs and accuracies, or total times of as many epochs each."
        ]
    surely = [way for way in judged if all(way.worth(by)[2] <= limit for by, limit in limits)]
    maybe = [way for way in judged if way not in surely and all(way.worth(by)[1] <= limit for by, limit in limits)]
    order = "cost" if budget is None else "seconds"
    best = min(surely, key=lambda way: way.worth(order)[1], default=None)
    if best is not None:
        how = "cheapest" if order == "cost" else "fastest"
        return best, [
            f"Within {said} the {how} is {best.name}: {duration(best.seconds)}, {amount(best.gpu_hours)} {best.hours_unit}."
        ]
    if maybe:
        names = ", ".join(way.name for way in maybe)
        return None, [f"Nothing surely keeps {said}; by its best guess {names} would, but the interval reaches beyond."]
    which = "was measured" if len(judged) == len(timed) else "has a price" if money else "ran on GPUs"
    return None, [f"Nothing that {which} keeps {said}."]


def _of_nobody(prices: Mapping[str, float], answers: Sequence[Recommendation]) -> list[str]:
    """Which prices are of types that were not measured: perhaps mistyped."""
    kinds = [
        priced_as(way.fields) for answer in answers for way in (*answer.ways, *answer.unreached, *answer.uncounted)
    ]
    measured = list(dict.fromkeys(kind for kind in kinds if kind is not None))
    strange = [kind for kind in prices if kind.lower() not in {own.lower() for own in measured}]
    if not strange:
        return []
    here = f"those measured are {', '.join(measured)}" if measured else "no GPU type is recorded"
    return [f"No configuration ran on {', '.join(strange)}, so its price changes nothing: {here}."]
