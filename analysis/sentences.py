"""What a recommendation says in words."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.way import Way, priced_as
from analysis.words import amount

#: What a way's seconds are for, by its basis.
WHAT = {
    "target": "to the target",
    "stable": "to stable accuracy",
    "whole run": "for its whole run",
    "epoch": "for one epoch",
    "million samples": "for a million samples",
    "recorded target": "to the target that was recorded",
}
#: What is not known of a way without seconds, by its `missing`.
_MISSING = {"epochs": "epochs {}", "time": "time of an epoch", "throughput": "throughput", "target": "time {}"}


def wish(target: float | None, deadline: float | None, budget: float | None, unit: str = "") -> str:
    """What was asked for in words, "" where nothing was; `unit` is that of the budget, with a space before it."""
    found = [] if target is None else [f"a target of {target:g}"]
    found += [] if deadline is None else [f"a deadline of {duration(deadline)}"]
    return " and ".join([*found, *([] if budget is None else [f"a budget of {budget:,.10g}{unit}"])])


def unseen(target: float | None, basis: str, timed: Sequence[Way]) -> list[str]:
    """That nobody knows whether a target that was asked for is reached, where no accuracy was recorded."""
    unknown = [way for way in timed if way.reached is None]
    if target is None or basis == "target" or not unknown:
        return []
    names = "" if len(unknown) == len(timed) else f" of {', '.join(way.name for way in unknown)}"
    return [
        f"No accuracy{names} was recorded, so whether {target:.4g} is reached is not known: times are those {WHAT[basis]}."
    ]


def without_price(ways: Sequence[Way], others: Sequence[Way]) -> list[str]:
    """Which ways are not judged by cost, and what would change that: prices of these, and of the `others` that have none."""
    if not ways:
        return []
    names = ", ".join(way.name for way in ways)
    kinds = dict.fromkeys(kind for way in (*ways, *others) if (kind := priced_as(way.fields)) is not None)
    options = " ".join(f'--price "{kind}=RATE"' if " " in kind else f"--price {kind}=RATE" for kind in kinds)
    hint = f"give {options}" if options else "their GPU type is not recorded"
    return [f"Without a price, and so not judged by cost: {names}; {hint}."]


def nothing_learnt(goal: float | None, every: Sequence[Way]) -> list[str]:
    """That times lead to no accuracy, where accuracies were recorded and none is above 0."""
    ended = [way.val_acc for way in every if way.val_acc is not None]
    if goal is not None or not ended:
        return []
    return [
        f"No configuration has learnt anything (accuracies up to {max(ended):.3g}): times here lead to no accuracy."
    ]


def best_ways(
    basis: str, goal: float | None, fastest: Way | None, fast_rivals: Sequence[Way], cheapest: Way | None,
    cheap_rivals: Sequence[Way], unreached: Sequence[Way],
) -> list[str]:  # fmt: skip
    what = {**WHAT, "target": f"to {100 * (goal or 0):.1f} % accuracy"}
    found = []
    if fastest is not None:
        found.append(
            f"Fastest {what[basis]}: {fastest.name}, {duration(fastest.seconds)} "
            f"({duration(fastest.low)} to {duration(fastest.high)}), {amount(fastest.gpu_hours)} {fastest.hours_unit}"
            + rivals_of(fast_rivals, "seconds")
        )
    if cheapest is not None:
        cost = (
            f"a cost of {amount(cheapest.cost)}"
            if cheapest.cost is not None
            else f"{amount(cheapest.gpu_hours)} {cheapest.hours_unit}"
        )
        found.append(
            f"Cheapest: {cheapest.name}, {cost}, {duration(cheapest.seconds)}" + rivals_of(cheap_rivals, "cost")
        )
    best = [way for way in (fastest, cheapest) if way is not None and (way.diverged or way.missed)]
    found += [f"Of {name} {said}." for name, said in {way.name: _lost(way) for way in best}.items()]
    if unreached:
        named = ", ".join(f"{way.name} ({_ended(way)})" for way in unreached)
        at = f"{goal:.4g}" if goal is not None else "a stable accuracy"
        found.append(f"Not seen to reach {at}, and not extrapolated: {named}.")
    return found


def uncounted_ways(basis: str, ways: Sequence[Way]) -> list[str]:
    """Which ways have no time, and what would have to be known for one."""
    found = []
    for missing in dict.fromkeys(way.missing for way in ways):
        own = [way for way in ways if way.missing == missing]
        named = ", ".join(way.name if way.val_acc is None else f"{way.name} ({way.val_acc:.4g})" for way in own)
        what = _MISSING[missing].format("to stability" if basis == "stable" else WHAT[basis])
        are, so = ("are" if missing == "epochs" else "is"), ("it is" if len(own) == 1 else "they are")
        found.append(f"No {what} {are} known of {named}, so {so} not ranked.")
    return found


def _ended(way: Way) -> str:
    """How the runs of a way ended that does not reach the target."""
    if way.diverged:
        return _diverged(way) if way.replicates else "diverged"
    return "no answer" if way.val_acc is None else f"{way.val_acc:.4g}"


def _diverged(way: Way) -> str:
    return f"{way.diverged} of {way.diverged + way.replicates} runs diverged"


def _lost(way: Way) -> str:
    """How many runs its numbers are not of."""
    found = [_diverged(way)] if way.diverged else []
    found += [f"{way.missed} of {way.diverged + way.replicates} runs did not reach it"] if way.missed else []
    return " and ".join(found)


def rivals_of(rivals: Sequence[Way], by: str) -> str:
    """The end of a sentence about the best: from whom it is not told apart."""
    if not rivals:
        return ". No other interval reaches into this one."
    unit = "" if rivals[0].price is not None else f" {rivals[0].hours_unit}"
    values = [(way.name, way.worth(by)[1]) for way in rivals]
    spans = [f"{name} ({duration(value) if by == 'seconds' else f'{amount(value)}{unit}'})" for name, value in values]
    return f"; not told apart from {', '.join(spans)}."


def duration(seconds: float) -> str:
    """ "19 min 27 s", "2 h 05 min", "8.3 s"."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 5400:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"
