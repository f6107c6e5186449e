"""What is odd in a table of measurements, what probably caused it, and what to measure next."""

from __future__ import annotations

from collections.abc import Sequence, Set

import pandas as pd

from analysis.checks_runs import run_checks
from analysis.checks_speed import speed_checks
from analysis.checks_table import table_checks
from analysis.complete import completed
from analysis.finding import CODES, Finding
from analysis.runs import Run
from analysis.settled import BATCH, lower_bounds, settled

__all__ = ["CODES", "Finding", "diagnose"]


def diagnose(table: pd.DataFrame, runs: Sequence[Run] = ()) -> list[Finding]:
    """All findings of a table, the gravest first.

    Args:
        table: as `analysis.read` gives it.
        runs: the runs behind it, whose phases and curves tell more; `analysis.tables.read_inputs` gives both.

    Raises:
        UserError: a column of the table is missing.

    >>> import analysis
    >>> found = analysis.diagnose(analysis.reference("caltech256_lab"))
    >>> [finding.code for finding in found][:3]
    ['inconsistent_total', 'superlinear', 'input_bound']
    """
    table = completed(table, ("n_gpus", "metric", "value"))
    sources = {run.source for run in runs}
    found = [
        *speed_checks(table, {run.source for run in runs if run.recorded}),
        *table_checks(settled(table, runs, BATCH), sources, lower_bounds(runs)),
        *run_checks(table, runs),
    ]
    return sorted(_once(found, table, sources), key=lambda finding: CODES.index(finding.code))


def _once(found: Sequence[Finding], table: pd.DataFrame, recorded: Set[str]) -> list[Finding]:
    """`found`, what is about the same runs of one rank once: they stand in the table under each learning-rate rule."""
    said = set()
    kept = []
    for finding in found:
        rows = table.loc[list(finding.rows)]
        mark = finding.code, finding.message, frozenset(rows["source"])
        if len(rows) and rows["n_gpus"].eq(1).all() and rows["source"].isin(list(recorded)).all():
            if mark in said:
                continue
            said.add(mark)
        kept.append(finding)
    return kept
