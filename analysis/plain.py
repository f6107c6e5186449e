"""The conclusions as tables of text: the same rows in HTML, Markdown and on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis import words
from analysis.assemble import Part, Report
from analysis.epochs import EpochsGroup
from analysis.recommendation import Recommendation
from analysis.sentences import duration
from analysis.stability import Stability
from analysis.way import Way

_NONE = "-"
#: Why a way has no time, by its `missing`.
_NO_TIME = {
    "epochs": "epochs not counted",
    "time": "no time of an epoch",
    "throughput": "no throughput",
    "target": "no time to the target",
}


@dataclass(frozen=True)
class Sheet:
    """One table: a heading, column names, rows of text, and a sentence below."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: str = ""


def number(value: float | None) -> str:
    """A plain number with about three significant digits: `0.0412`, `0.420`, `1.25`, `81.2`, `1,216`; "-" for none."""
    if value is None or not math.isfinite(value):
        return _NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if abs(value) >= 0.995:
        return f"{value:.2f}"
    return f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def predictions(report: Report, part: Part) -> Sheet | None:
    """What the group would measure at more ranks."""
    rows = report.insights.predictions.get(part.group.key, [])
    fit = report.insights.fits.get(part.group.key)
    if fit is None or not rows:
        return None
    texts = []
    for row in rows:
        said = {
            "ok": "supported",
            "insufficient_data": "a guess: too few sizes",
            "refused": "not supported by the data",
        }
        texts.append(
            [
                str(row["n_gpus"]),
                number(row["value"]),
                f"{number(row['low'])} to {number(row['high'])}",
                said[row["status"]],
            ]
        )
    if all(text[1] == _NONE and text[2].startswith(_NONE) for text in texts):
        return None
    laws = ", ".join(f"{name} {weight:.0%}" for name, weight in sorted(fit.weights.items(), key=lambda item: -item[1]))
    held = {"batch per rank": "The batch per rank is held (weak scaling of a step, strong of an epoch). ",
            "global batch": "The global batch is held (strong scaling). "}.get(fit.data.held, "")  # fmt: skip
    reason = f" {fit.reason.capitalize()}." if fit.reason else ""
    unit = f"{fit.data.metric} ({fit.data.unit})"
    return Sheet(
        "Predictions", ["ranks", unit, "90 % interval", "status"], texts, f"{held}Weight of each law: {laws}.{reason}"
    )


def stability(report: Report, part: Part) -> Sheet | None:
    """Epochs to stability of each number of ranks, from curves."""
    found = report.insights.stability.get(part.group.key)
    if not found:
        return None
    rows = [
        [
            str(ranks), _epoch(one), _span(one), one.status, _percent(one.plateau), _percent(one.band), number(one.half_tolerance),
            number(one.twice_tolerance),
        ]
        for ranks, one in found.items()
    ]  # fmt: skip
    notices = list(dict.fromkeys(f"{ranks} ranks: {notice}." for ranks, one in found.items() for notice in one.notices))
    columns = [
        "ranks",
        "stable from epoch",
        "90 % interval",
        "status",
        "plateau",
        "band",
        "at half the tolerance",
        "at twice",
    ]
    return Sheet("Epochs to stability", columns, rows, " ".join(notices))


def phases(report: Report, part: Part) -> Sheet | None:
    """Seconds of an epoch in each phase, and what limits."""
    found = report.insights.phases.get(part.group.key)
    if not found:
        return None
    names = list(dict.fromkeys(name for seconds in found.values() for name in seconds))
    limits = report.insights.limits[part.group.key]
    rows = [
        [str(n), *(number(seconds.get(name)) for name in names), f"{limits[n].replace(' or ', '- or ')}-bound"]
        for n, seconds in found.items()
    ]
    shown = [{"val": "validation", "other": "not recorded"}.get(name, name) for name in names]
    return Sheet("Seconds of an epoch", ["ranks", *shown, "limited by"], rows)


def splits(report: Report, part: Part) -> Sheet | None:
    """Hardware times statistical efficiency."""
    own = [split for split in report.insights.splits if split.key == part.group.key]
    if not own or all(split.statistical is None for split in own):
        return None
    rows = [[str(one.n_gpus), _percent(one.hardware), _percent(one.statistical), _percent(one.total)] for one in own]
    below = (
        f"Against {own[0].base}: hardware is speed per rank, statistical the epochs needed; "
        "their product is what shortens the way."
    )
    return Sheet("Efficiency taken apart", ["ranks", "hardware", "statistical", "both"], rows, below)


def ways(answer: Recommendation) -> Sheet:
    """Every way to the target, and the forecasts."""
    rows = [_way(way, "") for way in answer.ways] + [_way(way, "forecast, not measured") for way in answer.forecasts]
    rows += [_way(way, "does not reach the target") for way in answer.unreached]
    rows += [_way(way, _NO_TIME[way.missing]) for way in answer.uncounted]
    goal = _percent(answer.target)
    heading = {
        "target": f"Time to an accuracy of {goal}",
        "stable": "Time to stable accuracy" + _reaching(answer, goal),
        "whole run": "Time of a whole run",
        "epoch": "Time of one epoch",
        "recorded target": "Time to the target that was recorded",
    }.get(answer.basis, "Time of a million samples")
    units = {way.hours_unit for way in (*answer.ways, *answer.forecasts, *answer.unreached, *answer.uncounted)}
    hours = units.pop() if len(units) == 1 else "rank-hours"
    columns = ["configuration", "epochs", "time", "90 % interval", hours, "cost", "energy (kWh)", "accuracy", ""]
    if not any(way.price for way in answer.ways):
        columns, rows = _without(columns, rows, "cost")
    if not any(way.energy for way in answer.ways):
        columns, rows = _without(columns, rows, "energy (kWh)")
    if not any(row[-1] for row in rows):
        columns, rows = _without(columns, rows, "")
    return Sheet(heading, columns, rows, answer.next_run)


def _reaching(answer: Recommendation, goal: str) -> str:
    """What is known of the accuracy behind times to stability, in brackets."""
    if answer.target is None:
        return ""
    recorded = [way.reached is not None for way in (*answer.ways, *answer.uncounted)]
    if answer.unreached or not recorded:
        return f" (at least {goal})"
    if not any(recorded):
        return " (accuracy not recorded)"
    return f" (all reach {goal})" if all(recorded) else f" (all reach {goal} whose accuracy was recorded)"


def _way(way: Way, note: str) -> list[str]:
    epochs = _NONE if way.epochs is None else f"{way.epochs:.0f}"
    if math.isnan(way.seconds):
        return [_named(way), epochs, *[_NONE] * 5, _percent(way.val_acc), note]
    interval = f"{duration(way.low)} to {duration(way.high)}"
    energy = number(None if way.energy is None else way.energy / 3.6e6)
    spent = [number(way.gpu_hours), number(way.cost), energy]
    return [_named(way), epochs, duration(way.seconds), interval, *spent, _percent(way.val_acc), note]


def _named(way: Way) -> str:
    return way.named(("per_gpu_batch", "lr_rule", *(["precision"] if "precision" in way.apart else [])))


def _without(columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> tuple[list[str], list[list[str]]]:
    place = list(columns).index(name)
    cut = [[*row[:place], *row[place + 1 :]] for row in (columns, *rows)]
    return cut[0], cut[1:]


def epochs(group: EpochsGroup) -> Sheet | None:
    """Epochs against batch: the measured ones and the next doubling."""
    if len(group.batches) < 2:
        return None
    rows = [[f"{batch:,.0f}", number(own), "measured"] for batch, own in zip(group.batches, group.epochs, strict=True)]
    twice = 2 * float(group.batches[-1])
    low, middle, high = group.interval(twice)
    rows += [[f"{batch:,.0f}", f"> {epochs:g}", "measured, not settled"] for batch, epochs in group.bounds]
    if group.expects(twice):
        rows.append([f"{twice:,.0f}", f"{middle:.0f} ({low:.0f} to {high:.0f})", "expected"])
    noise = f" The noise scale of the runs says {number(group.bcrit_noise)}." if group.bcrit_noise else ""
    bcrit = "no critical batch in sight" if math.isinf(group.bcrit) else (
        f"critical batch {number(group.bcrit)} ({_bound(group.bcrit_low)} to {_bound(group.bcrit_high)})")  # fmt: skip
    of_rule = "" if group.lr_rule is None else f", {words.rule(group.lr_rule)}"
    heading = f"Epochs to {words.counted_to(group.metric)} against global batch{of_rule}"
    return Sheet(heading, ["global batch", "epochs", ""], rows,
                 f"E = {number(group.emin)} (1 + B / Bcrit), {bcrit}.{noise}")  # fmt: skip


def _bound(value: float) -> str:
    return "any" if math.isinf(value) else number(value)


def _epoch(one: Stability) -> str:
    if one.epoch is not None:
        return f"{one.epoch:g}"
    return f"> {one.longer_than:g}" if one.status == "censored" else _NONE


def _span(one: Stability) -> str:
    if one.low is None or one.epoch is None:
        return _NONE
    return f"{one.low:g} to {'later' if one.high is None or math.isinf(one.high) else f'{one.high:g}'}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f} %"
