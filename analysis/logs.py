"""Curves that other tools wrote: Keras CSVLogger, TensorBoard, Lightning."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.log_lines import FIELDS, NAMES, Part, bare, epochs_of, is_test, number, parts, whole
from analysis.rank_words import ranks_in, workload_in
from analysis.runs import Run
from hvdtrain import record
from hvdtrain.errors import UserError, printable
from hvdtrain.record import Epoch


def is_curve(fields: Sequence[str]) -> bool:
    """Whether these are the column names of a training log, not of a table of measurements."""
    names = {bare(field) for field in fields}
    if {"walltime", "step", "value"} <= names:
        return True
    return "epoch" in names and "metric" not in names and bool(names & NAMES.keys())


def is_events(path: Path) -> bool:
    """Whether this is a TensorBoard event file, or a folder with some (and nothing of this suite's)."""
    if path.is_dir():
        own = record.is_study(path) or (path / "cell.json").is_file() or any(path.glob("*/study.json"))
        return not own and any(path.glob("**/events.out.tfevents.*"))
    return path.name.startswith("events.out.tfevents.")


def read_curves(path: Path) -> list[Run]:
    """The runs of a training log in CSV: one, unless columns tell several apart.

    Keras CSVLogger (epochs from 0), Lightning `metrics.csv` (a line per logging step, most fields empty) and
    TensorBoard's CSV export (Wall time, Step, Value: taken for validation accuracy where it lies within 0 and 1). The
    number of ranks is taken from a column (n_gpus, gpus, ranks, workers) or else from the file's path where it says so
    (`run-4gpu/metrics.csv`, `log_n8.csv`), and is not known otherwise. Lines that differ in ranks or seed (run, trial) are
    different runs.

    Raises:
        UserError: names the column or line that cannot be read, or the epoch that several runs seem to share.
    """
    text = path.read_text(encoding="utf-8-sig")
    lines = [line for line in io.StringIO(text) if line.strip() and not line.lstrip().startswith("#")]
    rows = list(csv.DictReader(lines))
    if not rows:
        raise UserError(f"{path} holds no epochs")
    names = {bare(name): name for name in rows[0] if name}
    if {"walltime", "step", "value"} <= names.keys():
        points = [(step, number(row, names["value"], path), number(row, names["walltime"], path))
                  for row in rows if (step := whole(row, names["step"], path)) is not None]  # fmt: skip
        return [_run(path, _exported(points, path))]
    numbered = [row for row in rows if whole(row, names["epoch"], path) is not None]
    if not numbered:
        raise UserError(f"{path} holds no epochs")
    runs = parts(numbered, names["epoch"], path)
    counts, in_path = {part.n_gpus for part in runs if part.n_gpus}, ranks_in(path)
    if in_path and len(counts) == 1 and counts != {in_path}:
        raise UserError(
            f"{path}: its path says {in_path} ranks, and a column of it {counts.pop()}: rename the one that is wrong"
        )
    found = [(part, epochs_of(part.lines, names["epoch"], path)) for part in runs]
    # One logger wrote them all: a run that never passes 1 % is in percent where the others are.
    percent = _in_percent([epoch for _, own in found for epoch in own])
    return [_run(path, _fractions(own) if percent else own, part) for part, own in found]


def read_events(path: Path) -> list[Run]:
    """One run per folder of TensorBoard event files below `path`; needs the package `tensorboard`.

    Scalars are matched by name (`val_acc`, `epoch_accuracy` under a folder `validation`, ...), also those that Keras and
    TensorFlow 2 write as tensors; a step is an epoch.

    Raises:
        UserError: the package is missing, or no scalar is an accuracy.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise UserError(f"{path} is a TensorBoard log: reading it needs `pip install tensorboard`; "
                        "or export the scalar as CSV and give that") from None  # fmt: skip
    files = sorted(path.glob("**/events.out.tfevents.*")) if path.is_dir() else [path]
    runs = []
    for folder in dict.fromkeys(file.parent for file in files):
        events = EventAccumulator(str(folder if path.is_dir() else path), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        tensors = [tag for tag in events.Tags()["tensors"] if _is_scalar(events, tag)]
        # A test at the end is read only where no other scalar is an accuracy.
        for tag in sorted((*events.Tags()["scalars"], *tensors), key=lambda tag: is_test(tag.split("/")[-1])):
            short = bare(tag.split("/")[-1])
            validation = "val" in folder.name.lower() and short in ("epochaccuracy", "accuracy", "acc")
            if validation or NAMES.get(short) == "val_acc" or NAMES.get(bare(tag)) == "val_acc":
                if tag in tensors:
                    points = [
                        (event.step, float(make_ndarray(event.tensor_proto).item()), event.wall_time)
                        for event in events.Tensors(tag)
                    ]
                else:
                    points = [(event.step, float(event.value), event.wall_time) for event in events.Scalars(tag)]
                # Keras counts from 0, and validates in the epochs that it is told to.
                runs.append(_run(folder, _exported(points, folder, validation and short == "epochaccuracy")))
                break
    if not runs:
        raise UserError(
            f"{path}: no scalar is a validation accuracy (looked for {', '.join(FIELDS['val_acc'][:4])}, ...)"
        )
    return runs


def _is_scalar(events: Any, tag: str) -> bool:
    """Whether the tensors of a tag are scalars, by the plugin that they are written for."""
    return str(events.SummaryMetadata(tag).plugin_data.plugin_name) == "scalars"


def _exported(
    points: Sequence[tuple[int, float | None, float | None]], path: Path, from_zero: bool = False
) -> list[Epoch]:
    """`points` (step, value, wall time) as epochs; `from_zero` where steps are known to be epochs, the first of them 0."""
    values = [value for _, value, _ in points if value is not None and math.isfinite(value)]
    if values and not (min(values) >= 0 and max(values) <= 100):
        raise UserError(
            f"{path}: values from {min(values):g} to {max(values):g} are no accuracies (0 to 1, or percent)"
        )
    # Steps that are optimizer steps (500, 1000, ...) are numbered as the epochs they ended.
    apart = sorted({step for step, _, _ in points})
    by_epoch = from_zero or len(apart) < 2 or apart[1] - apart[0] == 1
    first = 1 if from_zero or apart[:1] == [0] else 0
    took, latest = _took(points, by_epoch)
    epochs = [
        Epoch(step + first if by_epoch else place + 1, val_acc=latest[step], seconds=took.get(step))
        for place, step in enumerate(apart)
    ]
    return _fractions(epochs) if _in_percent(epochs) else epochs


def _took(
    points: Sequence[tuple[int, float | None, float | None]], by_epoch: bool
) -> tuple[dict[int, float | None], dict[int, float | None]]:
    """Seconds since the step before, and the value, by step: the last point of each counts, because a restart repeats steps.

    The first point after a step back comes after the wait for the restart: how long its epoch took is not known. Nor is it where
    steps are epochs and some are left out between two points.
    """
    took: dict[int, float | None] = {}
    latest: dict[int, float | None] = {}
    repeated = len({step for step, _, _ in points}) < len(points)
    before: tuple[int, float | None] | None = None
    for step, value, wall in points if repeated else sorted(points, key=lambda point: point[0]):
        follows = before is not None and (before[0] == step - 1 if by_epoch else before[0] < step)
        since = before[1] if before is not None and follows else None
        took[step] = None if wall is None or since is None or wall <= since else wall - since
        latest[step] = value
        before = step, wall
    return took, latest


def _in_percent(epochs: Sequence[Epoch]) -> bool:
    """A curve that passes 1 is in percent."""
    return any(epoch.val_acc is not None and math.isfinite(epoch.val_acc) and epoch.val_acc > 1.0 for epoch in epochs)


def _fractions(epochs: Sequence[Epoch]) -> list[Epoch]:
    return [
        dataclasses.replace(epoch, val_acc=None if epoch.val_acc is None else epoch.val_acc / 100) for epoch in epochs
    ]


def _run(path: Path, epochs: Sequence[Epoch], part: Part | None = None) -> Run:
    if not epochs:
        raise UserError(f"{path} holds no epochs")
    ranks = (part.n_gpus if part else None) or ranks_in(path)
    workload = workload_in(path)
    name = f"{path.name} ({part.name})" if part and part.name else path.name
    return Run(
        study=printable(str(path.parent)), name=printable(name), status="completed", reason="",
        workload=printable(path.stem) if not ranks else workload and printable(workload),
        gpu_type=None, device=None, asked=ranks, n_gpus=ranks, n_nodes=None, per_gpu_batch=None, lr_rule=None,
        precision=None, seed=part.seed if part else None, launcher=None, controller=None, hosts=(), gpu_models=(), cores=None,
        epochs=tuple(epochs),
    )  # fmt: skip
