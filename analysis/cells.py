"""The cells of a study as runs: what its run folders say, finished or not."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.runs import Run
from hvdtrain.errors import UserError, printable
from hvdtrain.record import CellRecord, Epoch, read_study

#: Options and variables that have columns of their own, and what the job must have reported for the column to hold them.
_COLUMNS = {"--seed": None, "--epochs": None, "--batch-size": "batch_size", "--lr-rule": "lr_rule"} | {
    "CUDA_VISIBLE_DEVICES": "device",
    "HVDTRAIN_REPLICAS": "replicas",
}
#: What runs of one configuration share besides the batch and the learning-rate rule.
_CONFIGURATION = ("workload", "gpu_type", "device", "precision", "given")
#: The first word of an option, not a negative number.
_OPTION = re.compile(r"-(?![\d.])")


def read_runs(folder: Path) -> list[Run]:
    """Every cell of a study.

    Raises:
        UserError: not a study, an empty one, or a file in it that cannot be read (named).
    """
    try:
        records = read_study(folder)
    except (ValueError, OSError) as error:
        raise UserError(f"study {folder} cannot be read: {error}") from error
    if not records:
        raise UserError(f"study {folder} is empty: it has no cell folders (with a cell.json) yet")
    return _for_every_rule(
        [_run(record, printable(str(folder))) for record in records], [record.cell for record in records]
    )


def _run(record: CellRecord, study: str) -> Run:
    cell = record.cell
    facts: dict[str, Any] = record.result or record.running or {}
    where = record.folder
    if record.damage:
        raise UserError(f"study {study} cannot be read: {record.damage}")
    shape = _mapping(cell.get("shape"), "shape", where)
    hosts = _words(facts.get("hosts"))
    asked = _whole(cell.get("gpus"), "gpus", where)
    if asked is None:
        raise UserError(f'{where / "cell.json"}: "gpus", the number of ranks, is missing')
    device = _text(facts.get("device"))
    gpu_models = _words(facts.get("gpu_models"))
    status, reason = _status(record)
    for epoch in record.epochs:
        _check(epoch, where / "epochs.jsonl")
    return Run(
        study=study,
        name=_text(cell.get("name")) or printable(where.name),
        status=status,
        reason=reason,
        workload=_workload(cell, facts, where),
        gpu_type=None if device == "cpu" else _text(cell.get("gpu_type")) or (" + ".join(gpu_models) or None),
        device=device,
        asked=asked,
        # One process may drive several devices (strategy mirrored).
        n_gpus=_whole(facts.get("replicas"), "replicas", where)
        or _whole(facts.get("world_size"), "world_size", where)
        or asked,
        n_nodes=_whole(shape.get("nodes"), "nodes", where) or (len(hosts) or None),
        per_gpu_batch=_samples_per_step(facts, cell, where),
        lr_rule=_text(_first(facts, cell, "lr_rule")),
        precision=_text(_first(facts, cell, "precision")),
        seed=_whole(_first(cell, facts, "seed"), "seed", where),
        launcher=_text(_first(facts, cell, "launcher")),
        controller=_text(facts.get("controller")),
        hosts=hosts,
        gpu_models=gpu_models,
        cores=_whole(facts.get("cores"), "cores", where),
        epochs=tuple(record.epochs),
        mixed=facts.get("mixed") is True,
        around=_around(facts, record.epochs, where),
        energy=_energy(facts, record.epochs),
        given=_given(cell, facts, where),
        recorded=True,
    )


def _samples_per_step(facts: Mapping[str, Any], cell: Mapping[str, Any], where: Path) -> int | None:
    """Of one rank: its batch, times the batches whose gradients make one step."""
    batch = _whole(_first(facts, cell, "batch_size"), "batch_size", where)
    return None if batch is None else batch * (_whole(facts.get("accumulate"), "accumulate", where) or 1)


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None


def _around(facts: Mapping[str, Any], epochs: Sequence[Epoch], where: Path) -> float | None:
    """Seconds outside of epochs. The result is that of the last attempt, and so are its seconds."""
    seconds = _positive(facts.get("seconds"))
    last = max([_whole(facts.get("restart"), "restart", where) or 0, *(epoch.restart for epoch in epochs)])
    return None if seconds is None else seconds - sum(epoch.seconds or 0.0 for epoch in epochs if epoch.restart == last)


def _energy(facts: Mapping[str, Any], epochs: Sequence[Epoch]) -> float | None:
    """J that the GPUs took, where each was sampled and one attempt trained all epochs."""
    sampled = facts.get("gpus")
    # One process that drives several GPUs samples one of them.
    every = facts.get("replicas") or facts.get("world_size")
    if not isinstance(sampled, list) or len(sampled) != every or any(each.restart for each in epochs):
        return None
    # Ranks that share a GPU sample the same meter.
    joules = {
        each.get("uuid") or rank: _positive(each.get("energy_j"))
        for rank, each in enumerate(sampled)
        if isinstance(each, dict)
    }
    return sum(each for each in joules.values() if each is not None) if None not in joules.values() else None


def _status(record: CellRecord) -> tuple[str, str]:
    if record.result is not None:
        status = _text(record.result.get("status")) or "unknown"
        reason = _text(record.result.get("reason")) or ""
        if status == "completed" and not record.epochs:
            return status, "it ended without recording an epoch"
        if status == "completed" and record.result.get("mixed") is True:
            return status, "its epochs ran on different ranks or GPUs (mixed), so they measure neither"
        return status, reason
    return ("running", "no result yet") if record.running is not None else ("not started", "no result yet")


def _workload(cell: Mapping[str, Any], facts: Mapping[str, Any], where: Path) -> str:
    name = _text(cell.get("workload")) or _text(cell.get("job")) or "unnamed"
    # Further axes of the grid change what is trained, so cells that differ in them are different workloads.
    settings = _mapping(cell.get("settings"), "settings", where)
    # No accuracy on these means anything, so they are never beside those of the real ones.
    made_up = ["synthetic data"] if facts.get("synthetic") is True else []
    return printable(", ".join([name, *made_up, *(f"{key}={settings[key]}" for key in sorted(settings))]))


def _for_every_rule(runs: Sequence[Run], cells: Sequence[Mapping[str, Any]]) -> list[Run]:
    """`runs`, those of one rank with the other rules of the study: of a grid of rules `submit` trains one rank once."""
    asked = [cell.get("lr_rule") for cell in cells]
    several = [(run, rule) for run, rule in zip(runs, asked, strict=True) if run.measured and run.n_gpus > 1]
    found = []
    for run, own in zip(runs, asked, strict=True):
        rules = []
        if (run.measured or run.diverged) and run.asked == run.n_gpus == 1:
            rules = [other.lr_rule for other, rule in several if rule != own and _same_but_rule(run, other)]
        others = dict.fromkeys(rule for rule in rules if rule != run.lr_rule)
        found.append(dataclasses.replace(run, rules=tuple(others)))
    return found


def _same_but_rule(one: Run, several: Run) -> bool:
    """Whether a run of more ranks is of the same configuration, whatever its rule."""
    if any(getattr(one, name) != getattr(several, name) for name in _CONFIGURATION):
        return False
    return one.per_gpu_batch == several.per_gpu_batch or one.global_batch == several.global_batch is not None


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """`runs`, with what those that count were given differently in the names of their workloads.

    Cells that differ in it are different measurements, as `hvdtrain.submit.cell` has it. Names stay where all agree.
    """
    given: dict[str | None, set[tuple[str, ...]]] = {}
    for run in runs:
        if run.measured or run.diverged:
            given.setdefault(run.workload, set()).add(run.given)
    names = {workload: _differing(every) for workload, every in given.items()}
    return [
        dataclasses.replace(run, workload=", ".join([run.workload, *names[run.workload][run.given]]))
        if (run.measured or run.diverged) and run.workload is not None
        else run
        for run in runs
    ]


def _differing(every: set[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """What tells each from the others: the words that not all have, unless only their order does."""
    short = {own: tuple(word for word in own if not all(word in other for other in every)) for own in every}
    return short if len(set(short.values())) == len(every) else {own: own for own in every}


def _given(cell: Mapping[str, Any], facts: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """What no column tells: options after `--` with their values, and variables of the environment."""
    arguments = cell.get("extra_arguments") or []
    if not isinstance(arguments, list):
        raise UserError(f'{where / "cell.json"}: "extra_arguments" is {arguments!r}, not a list')
    environment = _mapping(cell.get("environment"), "environment", where)
    options = [option for option in _options([str(word) for word in arguments]) if not _in_column(option[0], facts)]
    variables = [name for name in sorted(environment) if not _in_column(name, facts)]
    given = [*map(shlex.join, options), *(f"{name}={environment[name]}" for name in variables)]
    return tuple(printable(word) for word in given)


def _options(arguments: Sequence[str]) -> list[list[str]]:
    """Each option with its values; what stands before the first option, each word by itself."""
    found: list[list[str]] = []
    for word in arguments:
        if found and found[-1][0].startswith("-") and not _OPTION.match(word):
            found[-1].append(word)
        else:
            found.append([word])
    return found


def _in_column(given: str, facts: Mapping[str, Any]) -> bool:
    name = given.split("=", 1)[0]
    return name in _COLUMNS and (_COLUMNS[name] is None or facts.get(str(_COLUMNS[name])) is not None)


def _check(epoch: Epoch, path: Path) -> None:
    for name in ("seconds", "samples_per_second", "val_acc"):
        value = getattr(epoch, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise UserError(f"{path}: epoch {epoch.epoch}: {name} is {value!r}, not a number of zero or more")


def _first(first: Mapping[str, Any], then: Mapping[str, Any], key: str) -> Any:
    value = first.get(key)
    return then.get(key) if value is None else value


def _text(value: Any) -> str | None:
    return printable(str(value)) if value not in (None, "") else None


def _words(value: Any) -> tuple[str, ...]:
    """The different words of a list that may name one per rank, in order."""
    return tuple(dict.fromkeys(printable(str(entry)) for entry in value)) if isinstance(value, list) else ()


def _mapping(value: Any, name: str, where: Path) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f'{where / "cell.json"}: "{name}" is {value!r}, not an object')
    return value


def _whole(value: Any, name: str, where: Path) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f'{where}: "{name}" is {value!r}, not a whole number')
    return value
