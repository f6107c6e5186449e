"""The lines of a training log: which run each belongs to, and what the lines of an epoch say together."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.headers import MISSING, column
from analysis.wall_times import seconds_of
from hvdtrain.errors import UserError
from hvdtrain.record import Epoch

Line = Mapping[str, str | None]

#: Field of `Epoch` -> what loggers call it, letters and digits only, lower case.
FIELDS = {
    "val_acc": ("valacc", "valaccuracy", "valaccepoch", "valaccuracyepoch", "validationaccuracy", "valsparsecategoricalaccuracy",
                "valcategoricalaccuracy", "valbinaryaccuracy", "valtop1", "testacc", "testaccuracy", "epochvalaccuracy"),
    "val_loss": ("valloss", "vallossepoch", "validationloss", "testloss"),
    "train_acc": ("acc", "accuracy", "trainacc", "trainaccuracy", "trainaccepoch", "categoricalaccuracy",
                  "sparsecategoricalaccuracy", "binaryaccuracy"),
    "train_loss": ("loss", "trainloss", "trainlossepoch"),
    "lr": ("lr", "learningrate", "lrsgd", "lradam"),
    "seconds": ("seconds", "epochtime", "epochseconds"),
}  # fmt: skip
NAMES = {alias: field for field, aliases in FIELDS.items() for alias in aliases}
_WALL = ("walls", "walltime", "wallclock", "time")
_STEP = ("step", "globalstep", "iteration", "iter", "batch")
#: Columns of the tidy table that tell runs of one file apart, and the least that each can be.
_TELLING = {"n_gpus": 1, "replicate": 0}
#: What a run says once an epoch. Training losses are logged every few steps by some.
_ONCE = ("val_acc", "val_loss")


@dataclass(frozen=True)
class Part:
    """The lines of one run. `n_gpus` and `seed` are None where no column says them; `name` tells the run from the others."""

    lines: Sequence[Line]
    n_gpus: int | None
    seed: int | None
    name: str = ""


def bare(name: str) -> str:
    """A column's name in lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_test(name: str) -> bool:
    """Whether a column is of a test: the validation of some, what others do once at the end."""
    return bare(name).startswith("test")


def number(line: Line, name: str, path: Path) -> float | None:
    """What a line holds in a column; None where that is empty, NaN where it says so.

    Raises:
        UserError: it is no number.
    """
    text = (line.get(name) or "").strip()
    if text.lower() in MISSING:
        return float("nan") if text.lower() == "nan" else None
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise UserError(f'{path}: column "{name}": "{text}" is not a number') from None


def whole(line: Line, name: str, path: Path) -> int | None:
    """The epoch or step of a line, None where it has none.

    Raises:
        UserError: it is no finite number.
    """
    value = number(line, name, path)
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        raise UserError(f'{path}: column "{name}": "{line.get(name)}" is not finite')
    return int(value)


def parts(lines: Sequence[Line], epoch: str, path: Path) -> list[Part]:
    """The runs of a file by its columns of ranks and replicates (seed, run, trial), as far as it has such; else one run.

    Args:
        lines: those that have an epoch, in order.
        epoch: the name of that column.
        path: the file, for messages.

    Raises:
        UserError: the columns do not tell one run from another; says which and why.
    """
    telling = {name: own for name in lines[0] if name and (own := column(name)) is not None and own in _TELLING}
    given = {name: {text for line in lines if (text := _text(line, name)) is not None} for name in telling}
    several = [name for name in telling if len(given[name]) > 1]
    # What is the same in all lines counts where nothing else says it, and is a number: not a word, not 0 workers.
    varying = {telling[name] for name in several}
    constant = {name: next(iter(own)) for name, own in given.items() if len(own) == 1 and telling[name] not in varying}
    same = {name: text for name, text in constant.items() if _counts(text, _TELLING[telling[name]])}
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        texts = [_text(line, name) for name in several]
        if None in texts:
            place = f"epoch {whole(line, epoch, path)}"
            raise UserError(
                f'{path}: column "{several[texts.index(None)]}" tells runs apart, and is empty in a line of {place}'
            )
        groups.setdefault(tuple(str(text) for text in texts), []).append(line)
    if several:
        _begin_together(groups, several, epoch, path)
    # What each run's columns say, as whole numbers.
    told = [
        {**{name: int(text) for name, text in same.items()},
         **{name: _whole(text, name, path, _TELLING[telling[name]]) for name, text in zip(several, key, strict=True)}}
        for key in groups
    ]  # fmt: skip
    ranks = [_ranks({name: count for name, count in one.items() if telling[name] == "n_gpus"}, path) for one in told]
    seed = _seed(
        [{name: count for name, count in one.items() if telling[name] == "replicate"} for one in told], ranks, path
    )
    names = [", ".join(f"{name} {text}" for name, text in zip(several, key, strict=True)) for key in groups]
    return [
        Part(own, count, one.get(seed), name)
        for own, count, one, name in zip(groups.values(), ranks, told, names, strict=True)
    ]


def _begin_together(
    groups: Mapping[tuple[str, ...], Sequence[Line]], several: Sequence[str], epoch: str, path: Path
) -> None:
    """Raise UserError where what the columns tell apart are not runs of their own, each from the first epoch on."""
    seen = {
        key: {number for line in own if (number := whole(line, epoch, path)) is not None} for key, own in groups.items()
    }
    columns = " and ".join(f'"{name}"' for name in several)
    if len({min(numbers) for numbers in seen.values()}) > 1:
        firsts = ", ".join(f"{' '.join(key)} from epoch {min(numbers)}" for key, numbers in list(seen.items())[:4])
        raise UserError(
            f"{path}: {columns} differ between lines, but not as between runs, which would all begin at the same epoch ({firsts}); "
            "give each run a file of its own, or take the column out where all lines are one run on the same ranks"
        )
    if all(len(numbers) == 1 and max(numbers) > 1 for numbers in seen.values()):
        raise UserError(
            f'{path}: one line for each {columns}, and no curve: in a table of results call the column "{epoch}" epochs'
        )


def _ranks(counts: Mapping[str, int], path: Path) -> int | None:
    if len(set(counts.values())) > 1:
        said = " and ".join(f'"{name}" ({count})' for name, count in counts.items())
        raise UserError(f"{path}: {said} both say the number of ranks, and differ: keep the column that does")
    return next(iter(counts.values()), None)


def _seed(told: Sequence[Mapping[str, int]], ranks: Sequence[int | None], path: Path) -> str:
    """The column that holds the seed, or else what numbers the runs on the same ranks; "" without one."""
    for name in sorted(told[0], key=lambda name: bare(name) != "seed"):
        if len({(count, one[name]) for count, one in zip(ranks, told, strict=True)}) == len(told):
            return name
    if told[0] and len(told) > 1:
        columns = " and ".join(f'"{name}"' for name in told[0])
        raise UserError(
            f"{path}: only {columns} together tell the runs on the same ranks apart: number them in one column"
        )
    return ""


def _text(line: Line, name: str) -> str | None:
    text = (line.get(name) or "").strip()
    # Spreadsheets write 2.0 as soon as one field of the column is empty.
    return None if text.lower() in MISSING else text.removesuffix(".0")


def _counts(text: str, least: int) -> bool:
    return text.isdecimal() and int(text) >= least


def _whole(text: str, name: str, path: Path, least: int) -> int:
    if not _counts(text, least):
        raise UserError(f'{path}: column "{name}" tells runs apart, and "{text}" is not a whole number of {least} or more; '
                        "number the runs, or give each a file of its own")  # fmt: skip
    return int(text)


def epochs_of(lines: Sequence[Line], epoch: str, path: Path) -> list[Epoch]:
    """The epochs of one run, in order, counted from 1.

    A wall time counts from the start of the run, unless it begins with more than all later epochs take together: then it is
    a clock's, and how long the first epoch took is not known. Times that do not grow as a clock's are durations of the epochs.

    Raises:
        UserError: two lines contradict each other, so that the file seems to hold several runs.
    """
    merged, walls = _merged(lines, epoch, path)
    ordered = sorted(merged)
    # Loggers that count from 0 mean the first epoch by it.
    first = 1 if ordered[:1] == [0] else 0
    seconds = seconds_of(walls, ordered[0]) if ordered else {}
    found = []
    for place in ordered:
        entry = merged[place]
        if place in seconds:
            entry.setdefault("seconds", seconds[place])
        if entry:
            found.append(Epoch(place + first, **entry))  # type: ignore[arg-type]
    return found


def _merged(lines: Sequence[Line], epoch: str, path: Path) -> tuple[dict[int, dict[str, float]], dict[int, float]]:
    """Fields of `Epoch` by epoch, and the last wall time of each: a logger may write several lines an epoch."""
    columns = {name: field for name in lines[0] if name and (field := NAMES.get(bare(name)))}
    filled = {name for name in columns if any((line.get(name) or "").strip() for line in lines)}
    validated = {field for name, field in columns.items() if name in filled and not is_test(name)}
    tests = [name for name, field in columns.items() if is_test(name) and field in validated]
    columns = {name: field for name, field in columns.items() if name not in tests}
    walls_in = [name for name in lines[0] if name and bare(name) in _WALL]
    merged: dict[int, dict[str, float]] = {}
    said_in: dict[tuple[int, str], Line] = {}
    walls: dict[int, float] = {}
    before: int | None = None
    for line in lines:
        place = whole(line, epoch, path)
        if place is None:
            continue
        given = {
            field: (value, name) for name, field in columns.items() if (value := number(line, name, path)) is not None
        }
        if not given and any(number(line, name, path) is not None for name in tests):
            continue  # a test after the last epoch is none
        entry = merged.setdefault(place, {})
        for field, (value, name) in given.items():
            if field == "seconds" and not math.isfinite(value):
                continue
            # Where an epoch after the first is gone back to, a restart trained it again, and the later line counts.
            other = said_in.get((place, field), {})
            again = place != before and place == min(merged)
            # What differs there in this column, not in another one of the same field, is of another run.
            if number(other, name, path) is not None and (
                again or (place == before and _differ(line, other, field, name, path))
            ):
                raise UserError(f"{path}: {_several_runs(line, other, place, name)}")
            entry[field] = value
            said_in[place, field] = line
        for name in walls_in:
            wall = number(line, name, path)
            if wall is not None and math.isfinite(wall):
                walls[place] = wall
        before = place
    return merged, walls


def _differ(line: Line, other: Line, field: str, name: str, path: Path) -> bool:
    """Whether two lines of an epoch differ in what a run says once: validations at different steps do not."""
    if field not in _ONCE or str(number(line, name, path)) == str(number(other, name, path)):
        return False
    steps = [(number(line, own, path), number(other, own, path)) for own in line if own and bare(own) in _STEP]
    return not any(now is not None and then is not None and now > then for now, then in steps)


def _several_runs(line: Line, other: Line, place: int, name: str) -> str:
    ordinary = (*NAMES, *_WALL, *_STEP)
    differ = [own for own in line if own and bare(own) not in ordinary and line.get(own) != other.get(own)]
    by = f' (column "{differ[0]}": {other.get(differ[0])} and {line.get(differ[0])})' if differ else ""
    return (
        f'epoch {place} is there twice, with "{name}" {other.get(name)} and {line.get(name)}{by}: the file seems to hold '
        "several runs; give each a file of its own, or tell them apart by a column n_gpus or seed (of a run that was started "
        "again keep the later lines)"
    )
