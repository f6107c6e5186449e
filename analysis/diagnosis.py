"""What is odd in a table of measurements, what probably caused it, and what to measure next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from analysis.runs import Run

CODES = (
    "implausible", "inconsistent_total", "per_worker_suspected", "weak_scaling", "superlinear", "retrograde", "input_bound",
    "node_boundary", "outlier", "mixed_gpu_types", "batch_changed", "epochs_differ", "horizon", "insufficient_data",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that a reader must know.

    Attributes:
        code: of `CODES`.
        message: what was seen, with the numbers that triggered it.
        rows: index labels of the rows of the table that it is about.
        group: what it is about, in words.
        likely: the likely reason.
        next: the measurement that would tell.
        numbers: what triggered it, for programs.
    """

    code: str
    message: str
    rows: tuple[int, ...] = ()
    group: str = ""
    likely: str = ""
    next: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


def diagnose(table: pd.DataFrame, runs: Sequence[Run] = ()) -> list[Finding]:
    """All findings of a table, the gravest first.

    Args:
        table: as `analysis.read` gives it.
        runs: the runs behind it, whose phases and curves tell more; `analysis.tables.read_inputs` gives both.

    >>> import analysis
    >>> sorted({finding.code for finding in analysis.diagnose(analysis.reference("caltech256_lab"))})
    ['horizon', 'inconsistent_total', 'input_bound', 'insufficient_data', 'superlinear']
    """
    from analysis.checks import records, scaling_checks
    from analysis.checks_runs import run_checks

    found = [*scaling_checks(table), *records(table), *run_checks(runs)]
    return sorted(found, key=lambda finding: CODES.index(finding.code))
