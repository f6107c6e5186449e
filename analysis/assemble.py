"""Everything a report says, before it is text, JSON or a figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis import words
from analysis.curves import Curve, accuracy_curves
from analysis.notes import notes, runs_of
from analysis.runs import Run
from analysis.scaling import Group, scaling
from analysis.tables import Inputs
from hvdtrain import __version__

#: Raised when a field of report.json changes its meaning or goes; new fields do not raise it.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Part:
    """One group with all that is said about it. `machine` is where it ran, in words; "" where nobody recorded it."""

    group: Group
    title: str
    machine: str
    notes: tuple[str, ...]
    curves: dict[int, Curve]


@dataclass(frozen=True)
class Report:
    """All groups, and the cells that are in none because they have not completed."""

    inputs: tuple[str, ...]
    parts: tuple[Part, ...]
    left_out: tuple[Run, ...]

    @property
    def caption(self) -> str:
        """What the figure shows, in one line."""
        return f"Speed, efficiency and validation accuracy: {'; '.join(part.title for part in self.parts)}"


def assemble(inputs: Inputs) -> Report:
    """The report of what was read."""
    parts = []
    for group in scaling(inputs.table):
        runs = runs_of(group, inputs.runs)
        parts.append(Part(group, title(group), machine(runs), tuple(notes(group, runs)), accuracy_curves(runs)))
    return Report(
        inputs=tuple(str(path) for path in inputs.paths),
        parts=tuple(parts),
        left_out=tuple(run for run in inputs.runs if not run.measured),
    )


def title(group: Group) -> str:
    """ "digits on CPU ranks, batch 32 per rank, linear learning-rate rule, float32", as far as it is known."""
    workload = group.workload or "workload not named"
    return ", ".join([f"{workload} on {words.where(group.device, group.gpu_type)}", *details(group)])


def details(group: Group) -> list[str]:
    """What a title says after workload and device."""
    unit = "GPU" if group.device == "gpu" else "rank"
    found = [] if group.per_gpu_batch is None else [f"batch {group.per_gpu_batch} per {unit}"]
    if group.lr_rule is not None:
        found.append("no learning-rate scaling" if group.lr_rule == "none" else f"{group.lr_rule} learning-rate rule")
    return found if group.precision is None else [*found, group.precision]


def machine(runs: Sequence[Run]) -> str:
    """Where the runs of a group ran: hosts, GPU models, cores."""
    hosts = sorted({host for run in runs for host in run.hosts})
    models = sorted({model for run in runs for model in run.gpu_models})
    cores = sorted({run.cores for run in runs if run.cores is not None})
    found = [words.listing(hosts)] if hosts else []
    found += models
    if cores:
        counts = " or ".join(str(count) for count in cores)
        found.append(f"{counts} core{'' if cores == [1] else 's'}{' per host' if len(hosts) > 1 else ''}")
    return ", ".join(found)


def as_json(report: Report) -> dict[str, Any]:
    """What report.json holds: numbers and strings only, no NaN. The fields are described in docs/read-a-report.md."""
    return {
        "version": SCHEMA_VERSION,
        "hvdtrain": __version__,
        "inputs": list(report.inputs),
        "groups": [_group(part) for part in report.parts],
        "left_out": [
            {
                "source": run.source,
                "n_gpus": run.asked,
                "device": run.device,
                "status": run.status,
                "reason": run.reason,
                "epochs": len(run.epochs),
            }
            for run in report.left_out
        ],
    }


def _group(part: Part) -> dict[str, Any]:
    fields = dataclasses.asdict(part.group)
    for point in fields["points"]:
        curve = part.curves.get(point["n_gpus"], {})
        point["val_acc_by_epoch"] = [{"epoch": epoch, **dataclasses.asdict(spread)} for epoch, spread in curve.items()]
    return {"title": part.title, "machine": part.machine, **fields, "notes": list(part.notes)}
