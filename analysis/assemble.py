"""Everything a report says, before it is text, JSON or a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis import words
from analysis.curves import Curve, accuracy_curves
from analysis.insights import Asked, Insights, gather
from analysis.notes import notes, runs_of
from analysis.runs import Run
from analysis.scaling import Group, scaling
from analysis.tables import Inputs
from hvdtrain.errors import printable

#: What to do about a log that does not say on how many ranks it was made.
NAME_RANKS = "name them in the path (run-4gpu/metrics.csv, log_n4.csv) or in a column n_gpus"
#: Why a finished run is in no table.
_NOTHING = "its accuracy was not finite at the end, or not recorded, and neither was a time"
#: More groups in one figure than colours would have to share one.
MOST_GROUPS = 6


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
    """All groups, the cells that are in none because they have not completed or do not say their ranks, and what is concluded.

    `reference` is a published table that is laid under the figures; it takes part in no conclusion.
    """

    inputs: tuple[str, ...]
    parts: tuple[Part, ...]
    left_out: tuple[Run, ...]
    table: pd.DataFrame
    runs: tuple[Run, ...]
    insights: Insights
    reference: pd.DataFrame | None = None

    @property
    def caption(self) -> str:
        """What the figure shows, in one line."""
        drawn = [part.title for part in self.parts[:MOST_GROUPS]]
        more = f" (first {len(drawn)} of {len(self.parts)} groups)" if len(drawn) < len(self.parts) else ""
        return f"Speed, efficiency and validation accuracy: {'; '.join(drawn)}{more}"


def assemble(inputs: Inputs, asked: Asked | None = None, reference: pd.DataFrame | None = None) -> Report:
    """The report of what was read.

    Raises:
        UserError: what was asked for is not legal.
    """
    parts = []
    for group in scaling(inputs.table):
        runs = runs_of(group, inputs.runs)
        parts.append(Part(group, title(group), machine(runs), tuple(notes(group, runs)), accuracy_curves(runs)))
    told = set(inputs.table["source"])
    return Report(
        inputs=tuple(printable(str(path)) for path in inputs.paths),
        parts=tuple(parts),
        left_out=tuple(
            _left_out(run) for run in inputs.runs if not (run.measured and run.n_gpus and run.source in told)
        ),
        table=inputs.table,
        runs=inputs.runs,
        insights=gather(inputs.table, inputs.runs, asked),
        reference=reference,
    )


def _left_out(run: Run) -> Run:
    """A run that is in no table, with the reason: that of its end, or what a finished one does not tell."""
    if not run.measured:
        return run
    return replace(run, reason=_NOTHING if run.n_gpus else f"nothing says on how many ranks it ran; {NAME_RANKS}")


def title(group: Group) -> str:
    """ "digits on CPU ranks, batch 32 per rank, linear learning-rate rule, float32", as far as it is known."""
    workload = group.workload or "workload not named"
    return ", ".join([f"{workload} on {words.where(group.device, group.gpu_type)}", *details(group)])


def details(group: Group) -> list[str]:
    """What a title says after workload and device."""
    unit = "GPU" if group.device == "gpu" else "rank"
    found = [] if group.per_gpu_batch is None else [f"batch {group.per_gpu_batch} per {unit}"]
    found += [] if group.global_batch is None else [f"global batch {group.global_batch}"]
    if group.lr_rule is not None:
        found.append(words.rule(group.lr_rule))
    return found if group.precision is None else [*found, group.precision]


def label(part: Part, parts: Sequence[Part]) -> str:
    """What tells one of the groups of a figure from the others; where nothing does, the device."""
    common = set.intersection(*({*details(other.group)} for other in parts))
    found = [word for word in details(part.group) if word not in common]
    devices = {words.where(other.group.device, other.group.gpu_type) for other in parts}
    if len(devices) > 1 or not found:
        found.insert(0, words.where(part.group.device, part.group.gpu_type))
    return ", ".join(found)


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
