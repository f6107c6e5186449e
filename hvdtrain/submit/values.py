"""Values of the command line, from text. Errors say what was given, what is legal, and what is nearest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from hvdtrain.errors import UserError, nearest

Value = TypeVar("Value")
#: Nine digits are more ranks, samples or seeds than anyone has, and keep a typing slip from becoming a huge range.
_NUMBER = re.compile(r"[0-9]{1,9}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def counts(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers from 1, separated by commas: `"2,4"` is (2, 4)."""
    return _distinct(
        option, text, text.split(","), lambda entry: _whole(entry, 1), "whole numbers from 1, such as 2,4,8"
    )


def count(option: str, text: str) -> int:
    """One whole number from 1."""
    value = _whole(text, 1)
    if value is None:
        nearby = f"; nearest: {option} 1" if re.fullmatch(r"0+|-[0-9]+", text) else ""
        raise UserError(f'{option} "{text}": legal is one whole number from 1{nearby}')
    return value


def seeds(text: str) -> tuple[int, ...]:
    """`"3"` is (0, 1, 2); with a comma the seeds themselves: `"5,7"`, and `"5,"` for one."""
    if "," not in text:
        return tuple(range(count("--seeds", text)))
    entries = text.split(",")
    if len(entries) == 2 and not entries[1].strip():
        entries.pop()
    return _distinct(
        "--seeds", text, entries, lambda entry: _whole(entry, 0), "a number of seeds, or seeds from 0 such as 5,7"
    )


def rules(text: str, legal: Sequence[str]) -> tuple[str, ...]:
    """Learning-rate rules out of `legal`."""
    return words("--lr-rule", text, legal)


def names(option: str, text: str) -> tuple[str, ...]:
    """Distinct names, separated by commas; who knows them checks them."""
    return _distinct(option, text, text.split(","), lambda entry: entry or None, "names separated by commas")


def words(option: str, text: str, legal: Sequence[str]) -> tuple[str, ...]:
    """Distinct words out of `legal`, separated by commas."""
    return _distinct(
        option,
        text,
        text.split(","),
        lambda entry: entry if entry in legal else None,
        ", ".join(legal),
        lambda entry: nearest(entry, legal),
    )


def word(option: str, text: str, legal: Sequence[str]) -> str:
    """One word out of `legal`."""
    if text not in legal:
        raise UserError(f'{option} "{text}": legal is {", ".join(legal)}{nearest(text, legal)}')
    return text


def seconds(option: str, text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f'{option} "{text}": legal is a positive number of seconds, such as 600')
    return value


def positive(option: str, text: str, unit: str) -> float:
    """A positive number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f'{option} "{text}": legal is a positive number of {unit}, such as 10')
    return value


def settings(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`["lr=0.1,0.2"]` is {"lr": ("0.1", "0.2")}: for each job option its values, as text."""
    result: dict[str, tuple[str, ...]] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise UserError(f'--set "{text}": legal is key=value with the name of a job option, such as --set lr=0.1')
        if key in result:
            both = ",".join((*result[key], value))
            raise UserError(f"--set {key} is given twice; several values of one option are written --set {key}={both}")
        result[key] = _distinct(
            f"--set {key}",
            value,
            value.split(","),
            lambda entry: entry or None,
            f"one value or several separated by commas (a value that holds a comma goes after --: "
            f"-- --{key} {value or 'VALUE'})",
        )
    return result


def environment(given: Sequence[str]) -> dict[str, str]:
    """`["OMP_NUM_THREADS=1"]` is {"OMP_NUM_THREADS": "1"}."""
    result: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(key):
            raise UserError(
                f'--env "{text}": legal is NAME=value with a shell variable\'s name, such as --env OMP_NUM_THREADS=1'
            )
        if key in result:
            raise UserError(f'--env {key} is given twice ("{result[key]}" and "{value}"); give one of them')
        result[key] = value
    return result


def study_name(text: str) -> str:
    """A name that is one folder, not hidden, and printable."""
    if not text or "/" in text or text.startswith((".", "-")) or not text.isprintable() or len(text.encode()) > 100:
        raise UserError(
            f"--study {text!r}: legal is the name of one folder: no slash, not beginning with a dot or hyphen, "
            "at most 100 bytes (where it is kept is --out)"
        )
    return text


def _whole(text: str, least: int) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) and int(text) >= least else None


def _same(first: object, second: object) -> bool:
    """Whether two values are equal to a job: as text, or as numbers (0.1 and 0.10)."""
    if first == second:
        return True
    try:
        return float(str(first)) == float(str(second))
    except ValueError:
        return False


def _distinct(
    option: str,
    text: str,
    entries: Sequence[str],
    read: Callable[[str], Value | None],
    legal: str,
    hint: Callable[[str], str] = lambda _: "",
) -> tuple[Value, ...]:
    """The entries as values; an entry that is wrong, or there already, is the user's mistake."""
    values: list[Value] = []
    problem = ""
    for entry in entries:
        value = read(entry.strip())
        if value is None:
            what = f'"{entry.strip()}" is not legal' if entry.strip() else "there is an empty entry"
            problem = problem or f"{what}{hint(entry.strip())}"
        elif any(_same(value, earlier) for earlier in values):
            problem = problem or f"{value} is there twice, which changes nothing"
        else:
            values.append(value)
    if not problem:
        return tuple(values)
    rest = ",".join(str(value) for value in values)
    nearby = f"; without it: {option}{'=' if option.startswith('--set') else ' '}{rest}" if values else ""
    raise UserError(f'{option} "{text}": {problem}; legal: {legal}{nearby}')
