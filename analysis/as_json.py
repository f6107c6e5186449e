"""report.json: every number of a report, and nothing that is not JSON. Fields are described in docs/read-a-report.md."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from analysis.assemble import Part, Report
from analysis.epochs import EpochsGroup
from analysis.fitting import GroupFit
from analysis.recommendation import Recommendation
from analysis.way import Way
from hvdtrain import __version__

#: Raised when a field changes its meaning or goes; new fields do not raise it.
SCHEMA_VERSION = 1


def as_json(report: Report) -> dict[str, Any]:
    """Numbers, strings, lists and objects; what is not known or not finite is None."""
    insights = report.insights
    found = {
        "version": SCHEMA_VERSION,
        "hvdtrain": __version__,
        "inputs": list(report.inputs),
        "groups": [_group(report, part) for part in report.parts],
        "findings": [dataclasses.asdict(finding) for finding in insights.findings],
        "epochs_against_batch": [
            {
                "workload": group.workload,
                "lr_rule": group.lr_rule,
                "metric": group.metric,
                "status": group.status,
                "batches": group.batches.tolist(),
                "epochs": group.epochs.tolist(),
                "emin": group.emin,
                "bcrit": group.bcrit,
                "bcrit_low": group.bcrit_low,
                "bcrit_high": group.bcrit_high,
                "bcrit_noise": group.bcrit_noise,
                "not_settled_by": [{"batch": batch, "epochs": epochs} for batch, epochs in group.bounds],
                "next_batch": _next_batch(group),
            }
            for group in insights.epochs.groups
        ],
        "efficiency": [
            {**split.fields, "global_batch": split.global_batch, "base": split.base, "n_gpus": split.n_gpus,
             "hardware": split.hardware, "statistical": split.statistical, "total": split.total}
            for split in insights.splits
        ],
        "recommendations": [_answer(answer) for answer in insights.answers],
        "unanswered": insights.unanswered or None,
        "left_out": [
            {"source": run.source, "n_gpus": run.asked or None, "device": run.device, "status": run.status, "reason": run.reason,
             "epochs": len(run.epochs)}
            for run in report.left_out
        ],
    }  # fmt: skip
    clean: dict[str, Any] = _finite(found)
    return clean


def _next_batch(group: EpochsGroup) -> Any:
    twice = 2 * float(group.batches[-1])
    return None if len(group.batches) < 2 or not group.expects(twice) else _interval(group.interval(twice))


def _group(report: Report, part: Part) -> dict[str, Any]:
    key = part.group.key
    fields = dataclasses.asdict(part.group)
    for point in fields["points"]:
        curve = part.curves.get(point["n_gpus"], {})
        point["val_acc_by_epoch"] = [{"epoch": epoch, **dataclasses.asdict(spread)} for epoch, spread in curve.items()]
        stable = report.insights.stability.get(key, {}).get(point["n_gpus"])
        point["stability"] = None if stable is None else dataclasses.asdict(stable)
        point["phases"] = report.insights.phases.get(key, {}).get(point["n_gpus"])
        point["bound"] = report.insights.limits.get(key, {}).get(point["n_gpus"])
    fit = report.insights.fits.get(key)
    return {
        "title": part.title,
        "machine": part.machine,
        **fields,
        "notes": list(part.notes),
        "fit": None if fit is None else _fit(fit),
        "predictions": report.insights.predictions.get(key, []),
    }


def _fit(fit: GroupFit) -> dict[str, Any]:
    return {
        "status": fit.status,
        "reason": fit.reason,
        "metric": fit.data.metric,
        "held": fit.data.held,
        "outlier": fit.outlier,
        "weights": fit.weights,
        "karp_flatt": [{"n_gpus": n, "serial_fraction": value} for n, value in fit.karp_flatt],
        "models": {
            name: {
                "formula": model.model.formula,
                "parameters": dict(zip(model.model.parameters, model.values, strict=True)),
                "residual": model.residual,
            }
            for name, model in fit.models.items()
        },
    }


def _answer(answer: Recommendation) -> dict[str, Any]:
    return {
        "workload": answer.workload,
        "target": answer.target,
        "basis": answer.basis,
        "fastest": None if answer.fastest is None else _way(answer.fastest),
        "fastest_rivals": [way.name for way in answer.fastest_rivals],
        "cheapest": None if answer.cheapest is None else _way(answer.cheapest),
        "cheapest_rivals": [way.name for way in answer.cheapest_rivals],
        "within_limits": None if answer.best is None else _way(answer.best),
        "ways": [_way(way) for way in answer.ways],
        "unreached": [_way(way) for way in answer.unreached],
        "uncounted": [_way(way) for way in answer.uncounted],
        "forecasts": [_way(way) for way in answer.forecasts],
        "next_run": answer.next_run,
        "sentences": list(answer.sentences),
    }


def _way(way: Way) -> dict[str, Any]:
    return {
        "name": way.name, **way.fields, "n_gpus": way.n_gpus, "epochs": way.epochs, "seconds": way.seconds, "low": way.low,
        "high": way.high, "gpu_hours": way.gpu_hours, "cost": way.cost, "energy": way.energy, "val_acc": way.val_acc,
        "reached": way.reached, "replicates": way.replicates, "diverged": way.diverged, "missed": way.missed,
        "missing": way.missing or None, "measured": way.measured,
    }  # fmt: skip


def _interval(ends: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("low", "value", "high"), ends, strict=True))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(own) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(own) for own in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value
