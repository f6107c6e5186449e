"""A grid: the values of every axis, and the cells that they make. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.submit.cell import Cell, Shape, cell_name, fingerprint
from hvdtrain.submit.jobfile import JobFile

#: More cells than anyone waits for; `--seeds 20251` is one seed with its comma forgotten.
MOST_CELLS = 1000


#: Places a number of ranks on a GPU type (None: any).
Placing = Callable[[int, str | None], Shape]


@dataclass(frozen=True)
class Grid:
    """The values of each axis; an empty axis was not given, and the job's own default applies."""

    gpus: tuple[int, ...]
    batch_sizes: tuple[int, ...] = ()
    lr_rules: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    epochs: int | None = None
    gpu_types: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of combinations, before those that are the same at one rank are merged."""
        axes = (self.gpus, self.gpu_types, self.batch_sizes, self.lr_rules, self.seeds, *self.settings.values())
        return math.prod(max(1, len(axis)) for axis in axes)


@dataclass(frozen=True)
class Common:
    """What all cells of a study share."""

    study: str
    job: JobFile
    launcher: str
    cluster: str
    extra_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def expand(grid: Grid, common: Common, shape: Placing) -> tuple[list[Cell], list[str]]:
    """The cells of `grid` in the order of its axes, and notes for the user. `shape` places them.

    Raises:
        UserError: an axis changes nothing, the job does not take it, or there are too many cells.
    """
    _check(grid, common)
    cells: dict[str, Cell] = {}
    for cell in _combinations(grid, common, shape):
        same_name = cells.setdefault(cell.name, cell)
        mark = fingerprint(cell.record())
        if mark != fingerprint(same_name.record()):  # values full of hyphens can read alike
            cells[f"{cell.name}_{mark[:6]}"] = replace(cell, name=f"{cell.name}_{mark[:6]}")
    notes = []
    if len(grid.lr_rules) > 1 and 1 in grid.gpus:
        merged = [cell.name for cell in cells.values() if cell.gpus == 1]
        notes.append(
            f"at 1 rank every --lr-rule is the same: {_several(merged)} run{'s' if len(merged) == 1 else ''} once, "
            f"recorded as {grid.lr_rules[0]}"
        )
    return list(cells.values()), notes


def _several(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _check(grid: Grid, common: Common) -> None:
    if set(grid.gpus) == {1} and len(grid.lr_rules) > 1:
        raise UserError(
            f"--lr-rule {','.join(grid.lr_rules)} changes nothing with --gpus 1: every rule is the same at 1 rank; "
            f"give one rule, or more ranks such as --gpus 1,2"
        )
    job = common.job
    for option, flag, values in _axes(grid):
        for value in values:
            job.check(option, str(value), f"{flag} {value}")
    for key, values in grid.settings.items():
        for value in values:
            job.check(f"--{key}", value, f"--set {key}={value}")
    if grid.size > MOST_CELLS:
        hint = f"; one seed is written --seeds {len(grid.seeds)}," if len(grid.seeds) > 100 else ""
        raise UserError(f"the grid has {grid.size} cells; legal are at most {MOST_CELLS} in one call{hint}")
    given = {option for option, _, values in _axes(grid) if values} | {f"--{key}" for key in grid.settings}
    for argument in common.extra_arguments:
        name = argument.split("=", 1)[0]
        if name in given:
            raise UserError(
                f"{name} is given twice: before -- and after it, where the job would obey only the second; give it once"
            )


def _axes(grid: Grid) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """For each axis the job's option, the option of submit, and the values."""
    yield "--epochs", "--epochs", () if grid.epochs is None else (grid.epochs,)
    yield "--batch-size", "--batch-size", grid.batch_sizes
    yield "--lr-rule", "--lr-rule", grid.lr_rules
    yield "--seed", "--seeds", grid.seeds[:1]  # the same kind of value throughout, and there may be very many


def _combinations(grid: Grid, common: Common, shape: Placing) -> Iterator[Cell]:
    job = common.job
    shared = Cell(
        name="",
        study=common.study,
        job=str(job.path),
        workload=job.workload,
        gpus=0,
        shape=Shape(0, 0, 0),
        launcher=common.launcher,
        cluster=common.cluster,
        epochs=grid.epochs if grid.epochs is not None else _taken(common, "--epochs", int),
        extra_arguments=common.extra_arguments,
        environment=common.environment,
    )
    settings = [dict(zip(grid.settings, values, strict=True)) for values in itertools.product(*grid.settings.values())]
    for gpu_type, gpus, batch_size, rule, chosen, seed in itertools.product(
        grid.gpu_types or (None,),
        grid.gpus,
        grid.batch_sizes or (None,),
        grid.lr_rules or (None,),
        settings,
        grid.seeds or (None,),
    ):
        given = {"--epochs": grid.epochs, "--batch-size": batch_size, "--lr-rule": rule, "--seed": seed}
        arguments = [text for option, value in given.items() if value is not None for text in (option, str(value))]
        arguments += [text for key, value in chosen.items() for text in _option(f"--{key}", value)]
        yield replace(
            shared,
            name=cell_name(gpus, batch_size, rule, seed, chosen, gpu_type),
            gpus=gpus,
            gpu_type=gpu_type,
            shape=shape(gpus, gpu_type),
            batch_size=batch_size if batch_size is not None else _taken(common, "--batch-size", int),
            lr_rule=rule if rule is not None else _taken(common, "--lr-rule", str),
            seed=seed if seed is not None else _taken(common, "--seed", int),
            settings=chosen,
            arguments=(*arguments, *common.extra_arguments),
        )


def _taken(common: Common, option: str, kind: type) -> Any:
    """The value that the job takes for an option which is no axis: what stands after `--`, or else its default.

    None where its text does not show that.
    """
    extra = common.extra_arguments
    given = None
    for argument, following in zip(extra, (*extra, "")[1:], strict=True):
        if argument.split("=", 1)[0] == option:  # as for argparse, the last one counts
            given = argument.partition("=")[2] if "=" in argument else following
    if given is None:
        return common.job.default(option)
    value = common.job.value(option, given)
    return value if isinstance(value, kind) else None


def _option(name: str, value: str) -> tuple[str, ...]:
    # argparse takes a separate word that begins with a hyphen for an option.
    return (f"{name}={value}",) if value.startswith("-") else (name, value)
