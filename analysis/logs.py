"""Curves that other tools wrote: Keras CSVLogger, TensorBoard, Lightning. One file is one run."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.headers import MISSING
from analysis.runs import Run
from hvdtrain.errors import UserError
from hvdtrain.record import Epoch

#: Field of `Epoch` -> what loggers call it, letters and digits only, lower case.
_FIELDS = {
    "val_acc": ("valacc", "valaccuracy", "valaccepoch", "valaccuracyepoch", "validationaccuracy", "valsparsecategoricalaccuracy",
                "valcategoricalaccuracy", "valbinaryaccuracy", "valtop1", "testacc", "testaccuracy", "epochvalaccuracy"),
    "val_loss": ("valloss", "vallossepoch", "validationloss", "testloss"),
    "train_acc": ("acc", "accuracy", "trainacc", "trainaccuracy", "trainaccepoch", "categoricalaccuracy",
                  "sparsecategoricalaccuracy", "binaryaccuracy"),
    "train_loss": ("loss", "trainloss", "trainlossepoch"),
    "lr": ("lr", "learningrate", "lrsgd", "lradam"),
    "seconds": ("seconds", "epochtime", "epochseconds"),
}  # fmt: skip
_WALL = ("walls", "walltime", "wallclock", "time")
_NAMES = {alias: field for field, aliases in _FIELDS.items() for alias in aliases}
_RANKS = re.compile(
    r"(?:^|[^a-z0-9])(?:n(\d+)|np(\d+)|(\d+)\s*x?[-_ ]?(?:gpus?|ranks?|workers?))(?:[^a-z0-9]|$)", re.IGNORECASE
)


def is_curve(fields: Sequence[str]) -> bool:
    """Whether these are the column names of a training log, not of a table of measurements."""
    names = {_bare(field) for field in fields}
    if {"walltime", "step", "value"} <= names:
        return True
    return "epoch" in names and not names & {"metric", "ngpus", "gpus", "ranks"} and bool(names & _NAMES.keys())


def is_events(path: Path) -> bool:
    """Whether this is a TensorBoard event file, or a folder with some (and no study)."""
    if path.is_dir():
        return not (path / "study.json").exists() and any(path.glob("**/events.out.tfevents.*"))
    return path.name.startswith("events.out.tfevents.")


def read_curve(path: Path) -> Run:
    """One run from a training log in CSV.

    Keras CSVLogger (epochs from 0), Lightning `metrics.csv` (a line per logging step, most fields empty) and
    TensorBoard's CSV export (Wall time, Step, Value: taken for validation accuracy where it lies within 0 and 1). The
    number of ranks is taken from the file's path where it says so (`run-4gpu/metrics.csv`, `log_n8.csv`), and is not
    known otherwise.

    Raises:
        UserError: names the column or line that cannot be read.
    """
    text = path.read_text(encoding="utf-8-sig")
    lines = [line for line in io.StringIO(text) if line.strip() and not line.lstrip().startswith("#")]
    rows = list(csv.DictReader(lines))
    if not rows:
        raise UserError(f"{path} holds no epochs")
    names = {_bare(name): name for name in rows[0] if name}
    if {"walltime", "step", "value"} <= names.keys():
        points = [(int(_number(row, names["step"], path) or 0), _number(row, names["value"], path),
                   _number(row, names["walltime"], path)) for row in rows]  # fmt: skip
        return _run(path, _exported(points, path))
    merged: dict[int, dict[str, float]] = {}
    for row in rows:
        epoch = _number(row, names["epoch"], path)
        if epoch is None:
            continue
        entry = merged.setdefault(int(epoch), {})
        for bare, name in names.items():
            field = _NAMES.get(bare) or ("wall" if bare in _WALL else None)
            value = _number(row, name, path) if field else None
            if field and value is not None:
                entry[field] = value
    # Loggers that count from 0 mean the first epoch by it.
    first = 1 - min(merged, default=1) if min(merged, default=1) == 0 else 0
    ordered = sorted(merged)
    epochs = []
    for place, number in enumerate(ordered):
        entry = merged[number]
        before = merged[ordered[place - 1]].get("wall") if place else 0.0
        if "wall" in entry and before is not None and "seconds" not in entry and entry["wall"] > before:
            entry["seconds"] = entry["wall"] - before
        entry.pop("wall", None)
        if entry:
            epochs.append(Epoch(number + first, **entry))  # type: ignore[arg-type]
    return _run(path, _percent(epochs))


def read_events(path: Path) -> list[Run]:
    """One run per folder of TensorBoard event files below `path`; needs the package `tensorboard`.

    Scalars are matched by name (`val_acc`, `epoch_accuracy` under a folder `validation`, ...); a step is an epoch.

    Raises:
        UserError: the package is missing, or no scalar is an accuracy.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise UserError(f"{path} is a TensorBoard log: reading it needs `pip install tensorboard`; "
                        "or export the scalar as CSV and give that") from None  # fmt: skip
    files = sorted(path.glob("**/events.out.tfevents.*")) if path.is_dir() else [path]
    runs = []
    for folder in dict.fromkeys(file.parent for file in files):
        events = EventAccumulator(str(folder if path.is_dir() else path), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            bare = _bare(tag.split("/")[-1])
            validation = "val" in folder.name.lower() and bare in ("epochaccuracy", "accuracy", "acc")
            if validation or _NAMES.get(bare) == "val_acc" or _NAMES.get(_bare(tag)) == "val_acc":
                points = [(event.step, float(event.value), event.wall_time) for event in events.Scalars(tag)]
                runs.append(_run(folder, _exported(points, folder)))
                break
    if not runs:
        raise UserError(
            f"{path}: no scalar is a validation accuracy (looked for {', '.join(_FIELDS['val_acc'][:4])}, ...)"
        )
    return runs


def _exported(points: Sequence[tuple[int, float | None, float | None]], path: Path) -> list[Epoch]:
    values = [value for _, value, _ in points if value is not None and math.isfinite(value)]
    if values and not (min(values) >= 0 and max(values) <= 100):
        raise UserError(
            f"{path}: values from {min(values):g} to {max(values):g} are no accuracies (0 to 1, or percent)"
        )
    steps = [step for step, _, _ in points]
    first = 1 if steps and min(steps) == 0 else 0
    # Steps that are optimizer steps (500, 1000, ...) are numbered as the epochs they ended.
    apart = sorted(set(steps))
    by_epoch = len(apart) < 2 or apart[1] - apart[0] == 1
    epochs = []
    before: float | None = None
    for place, (step, value, wall) in enumerate(sorted(points, key=lambda point: point[0])):
        seconds: float | None = None if wall is None or before is None or wall <= before else wall - before
        before = wall
        epochs.append(Epoch(step + first if by_epoch else place + 1, val_acc=value, seconds=seconds))
    return _percent(epochs)


def _percent(epochs: list[Epoch]) -> list[Epoch]:
    """Accuracies in percent as fractions: a curve that passes 1 is in percent."""
    values = [epoch.val_acc for epoch in epochs if epoch.val_acc is not None and math.isfinite(epoch.val_acc)]
    if not values or max(values) <= 1.0:
        return epochs
    fields = [epoch.__dict__ for epoch in epochs]
    return [Epoch(**{**own, "val_acc": None if own["val_acc"] is None else own["val_acc"] / 100}) for own in fields]


def _run(path: Path, epochs: list[Epoch]) -> Run:
    if not epochs:
        raise UserError(f"{path} holds no epochs")
    found = (
        _RANKS.search("/".join(path.parts[-3:]).replace(path.suffix, "")) if path.suffix else _RANKS.search(path.name)
    )
    ranks = int(next(group for group in found.groups() if group)) if found else 0
    return Run(
        study=str(path.parent), name=path.name, status="completed", reason="", workload=path.stem if not ranks else None,
        gpu_type=None, device=None, asked=ranks, n_gpus=ranks, n_nodes=None, per_gpu_batch=None, lr_rule=None,
        precision=None, seed=None, launcher=None, controller=None, hosts=(), gpu_models=(), cores=None, epochs=tuple(epochs),
    )  # fmt: skip


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _number(row: Mapping[str, str | None], name: str, path: Path) -> float | None:
    text = (row.get(name) or "").strip()
    if text.lower() in MISSING:
        return float("nan") if text.lower() == "nan" else None
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise UserError(f'{path}: column "{name}": "{text}" is not a number') from None
