"""A cell: one configuration of a grid, its name, and its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: What makes two cells the same measurement. Not the name: the same configuration may have been asked for in two ways.
IDENTITY = (
    "job",
    "gpus",
    "gpu_type",
    "batch_size",
    "lr_rule",
    "seed",
    "epochs",
    "settings",
    "extra_arguments",
    "environment",
    "shape",
    "launcher",
    "cluster",
)
#: Options of a job that are in `IDENTITY` under a name of their own.
_OPTIONS = {"--batch-size": "batch_size", "--lr-rule": "lr_rule", "--seed": "seed", "--epochs": "epochs"}
_LONGEST_NAME = 120
_LONGEST_WORD = 24


@dataclass(frozen=True)
class Shape:
    """How ranks lie on machines. `gpus_per_node` is 0 where ranks run on CPUs."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int


@dataclass(frozen=True)
class Cell:
    """One configuration. A value is None where the job's own default applies and its text does not show it.

    `arguments` is everything that the job is given; `extra_arguments` the part of it that stood after `--`.
    """

    name: str
    study: str
    job: str
    workload: str
    gpus: int
    shape: Shape
    launcher: str
    cluster: str
    gpu_type: str | None = None
    batch_size: int | None = None
    lr_rule: str | None = None
    seed: int | None = None
    epochs: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    extra_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The content of `cell.json`."""
        facts = json.loads(json.dumps(dataclasses.asdict(self)))
        return {**facts, "hash": fingerprint(facts)}


def fingerprint(facts: Mapping[str, Any]) -> str:
    """A hash over the configuration in `facts` (a `cell.json`), the same for the same measurement."""
    text = json.dumps(_identity(facts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two configurations, as `"epochs 10 -> 20"`; empty when they are the same measurement."""
    old, new = dict(_flat(_identity(before))), dict(_flat(_identity(after)))
    return [
        f"{key} {_shown(old.get(key))} -> {_shown(new.get(key))}"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    ]


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    identity = {key: facts.get(key) for key in IDENTITY}
    if identity["gpus"] == 1:
        identity["lr_rule"] = None  # every rule multiplies the rate of a single rank by 1
    for argument in identity["extra_arguments"] or ():
        # They say it themselves, and older records hold the default in its place.
        if (key := _OPTIONS.get(str(argument).split("=", 1)[0])) is not None:
            identity[key] = None
    return identity


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{key}.")
        else:
            yield prefix + key, entry


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def cell_name(
    gpus: int,
    batch_size: int | None = None,
    lr_rule: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, str] | None = None,
    gpu_type: str | None = None,
) -> str:
    """The cell's folder: `n4-b32-linear-s0` from what was asked for. Safe in a shell whatever the values are.

    At one rank the rule is left out, because all rules are the same there.
    """
    parts = [f"n{gpus}"]
    parts += [_safe(gpu_type)] if gpu_type is not None else []
    parts += [f"b{batch_size}"] if batch_size is not None else []
    parts += [_safe(lr_rule)] if lr_rule is not None and gpus > 1 else []
    parts += [f"{key}{'' if value[:1].isdigit() else '_'}{_safe(value)}" for key, value in (settings or {}).items()]
    parts += [f"s{seed}"] if seed is not None else []
    name = "-".join(parts)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 7].rstrip('-')}_{_digest(name)}"


def _safe(value: str) -> str:
    """`value` where it is short and plain; else its readable end and a digest: two values never share a name."""
    word = re.sub(r"[^A-Za-z0-9._+-]+", "_", value.rstrip("/").rsplit("/", 1)[-1])[-_LONGEST_WORD:].strip("_-")
    return value if word == value else f"{word}_{_digest(value)}".lstrip("_")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]
