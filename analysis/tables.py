"""Reading: study folders and CSV files in, one tidy table out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis.cells import read_runs, told_apart
from analysis.csv_files import Row, read_csv
from analysis.logs import is_curve, is_events, read_curves, read_events
from analysis.runs import Run, rows, under_each_rule
from analysis.sacct import is_sacct, read_sacct
from analysis.schema import COLUMNS, WORDS
from hvdtrain import record
from hvdtrain.errors import UserError, nearest

if TYPE_CHECKING:
    PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Inputs:
    """What was read: the table, and the runs behind it, unfinished ones included."""

    table: pd.DataFrame
    runs: tuple[Run, ...]
    paths: tuple[Path, ...]


def read(*paths: PathLike) -> pd.DataFrame:
    """Measurements from study folders, tables and logs, in one tidy table.

    From a study come the finished cells only, each with four measurements: `throughput` (samples/s of training,
    validation not counted) and `epoch_time` (s, with validation) as medians over the epochs without the first, which
    holds warm-up; `total_time` (s, the sum over all epochs, where each from the first on was timed); `val_acc` after the
    last epoch that was validated, where it was finite. A run of one epoch is measured by that one, and says so by
    `epochs` being 1. The replicate is the seed. A setting that the grid varies besides the columns below is part of the
    workload's name: `digits, width=64`; so are arguments after `--` and variables of `--env` that are not the same in all
    cells: `digits, --width 64`. A run of one rank stands once for each learning-rate rule of its study, because all are the
    same there.

    Args:
        paths: folders that `hvdtrain.submit` wrote, half-finished ones too; tables in CSV, long (with these columns) or
            wide (a column per metric, `images/s per GPU` and the like); training logs (Keras CSVLogger, Lightning
            `metrics.csv`, TensorBoard events or their CSV export), of one run each unless columns tell ranks or seeds
            apart; dumps of `sacct -P`. In a long CSV file only `n_gpus`, `metric` and `value` are needed; a value that is
            missing, N/A or NaN is left out; a time may be written as `98.5 min`, `43:14` or `8m17s`
            (`analysis.parse_duration`), an accuracy as `68.9 %`.

    Returns:
        One row per measurement. Columns: source, workload, gpu_type, n_gpus (ranks), n_nodes, per_gpu_batch and
        global_batch (samples), lr_rule, precision, device ("cpu" or "gpu"), replicate, epochs, metric, value, unit.
        Times are in s, accuracies fractions of one. What is not known is NA.

    Raises:
        UserError: a path is neither, nothing in any of the studies has finished, or something in a file cannot be read.

    >>> import analysis
    >>> analysis.read("runs/digits", "lab.csv")  # doctest: +SKIP
    """
    return read_inputs([Path(path) for path in paths]).table


def read_inputs(paths: Sequence[Path]) -> Inputs:
    """As `read`, keeping the runs behind the table.

    Raises:
        UserError: as `read`.
    """
    if not paths:
        raise UserError("nothing to read: give a study folder or a CSV file")
    seen: dict[Path, Path] = {}
    read_of: list[tuple[list[Run], list[Row]]] = []
    unfinished = []
    for path in paths:
        if path.resolve() in seen:
            raise UserError(f"{path} is given twice, and each measurement of it would count twice")
        seen[path.resolve()] = path
        if is_study(path):
            found = read_runs(path)
            if not any(run.measured for run in found):
                states = "; ".join(f"{run.name}: {run.status}, {run.reason or 'no reason recorded'}" for run in found)
                unfinished.append(f"no cell of study {path} has finished, so there is nothing to report: {states}")
            read_of.append((found, []))
        else:
            read_of.append(_read_file(path))
    runs = told_apart([run for found, _ in read_of for run in found])
    named = iter(runs)
    everything: list[Row] = []
    for found, own in read_of:
        measured = [run for run in islice(named, len(found)) if run.measured]
        everything.extend(row for run in under_each_rule(measured) for row in rows(run))
        everything.extend(own)
    if unfinished and not everything:
        raise UserError("; ".join(unfinished))
    table = frame(everything)
    # Totals of run folders are the sums of their own epochs: they cannot contradict them.
    table.attrs["all_from_runs"] = bool(runs) and {run.source for run in runs} >= set(table["source"])
    table.attrs["gpus_per_node"] = _gpus_per_node(runs)
    return Inputs(table, tuple(runs), tuple(paths))


def _gpus_per_node(runs: Sequence[Run]) -> dict[str | None, int]:
    """By GPU type, as runs on several nodes show it that ran or are to run: those that have not are in no table."""
    found: dict[str | None, int] = {}
    for run in runs:
        if run.n_nodes is not None and run.n_nodes > 1:
            found[run.gpu_type] = max(found.get(run.gpu_type, 0), math.ceil(run.n_gpus / run.n_nodes))
    return found


def _read_file(path: Path) -> tuple[list[Run], list[Row]]:
    """What is no study: curves of runs, or the rows of a table or a dump of sacct, told apart by the first line."""
    if is_events(path):
        return read_events(path), []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return [], read_csv(path)  # which says what is wrong with it
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if is_sacct(first.replace("|", ",").split(",")):
        return [], read_sacct(path, text)
    if is_curve(first.split(",")):
        return read_curves(path), []
    return [], read_csv(path)


def is_study(path: Path) -> bool:
    """Whether `path` is a study folder; False for a file.

    Raises:
        UserError: it is a folder and no study, or does not exist; says which studies or files are near.
    """
    if is_events(path):
        return False
    if path.is_dir():
        if record.is_study(path):
            return True
        if (path / "cell.json").is_file():
            raise UserError(f"{path} is one cell; give its study: {path.parent}")
        inside = sorted(str(entry.parent) for entry in path.glob("*/study.json"))
        hint = f"; it holds the studies {', '.join(inside)}" if inside else "; give a study folder or a CSV file"
        raise UserError(f"{path} is not a study: it has no study.json{hint}")
    if not path.exists():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path} does not exist (in {path.parent.resolve()}){nearest(path.name, beside)}")
    return False


def frame(everything: Sequence[Row]) -> pd.DataFrame:
    """Rows as the tidy table, with the types of its columns."""
    columns: dict[str, pd.Series] = {}
    for name in COLUMNS:
        values = [row[name] for row in everything]
        if name == "value":
            columns[name] = pd.Series(values, dtype="float64")
        elif name in WORDS:
            columns[name] = pd.Series(values, dtype="string")
        else:
            columns[name] = pd.Series(values, dtype="Int64")
    return pd.DataFrame(columns)
