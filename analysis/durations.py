"""Times as people write them, in seconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hvdtrain.errors import UserError

LEGAL_FORMS = (
    "98.5 min",
    "43:14 (minutes:seconds)",
    "01:38:30",
    "1-02:03:04 (days-hours:minutes:seconds)",
    "5h 15",
    "20.00 hrs 36.00 mins 51.11 secs",
    "8m17s",
    "35s 400ms",
)

#: Seconds in one of each unit, largest first: a unit's successor is what a bare number after it counts.
_SECONDS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 0.001}
_ORDER = tuple(_SECONDS)
#: The first value of each unit that would have been written in the next larger one.
_CARRY = {"h": 24, "min": 60, "s": 60, "ms": 1000}
_SPELLINGS = {
    "d": ("d", "day", "days"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "min": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
}
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_BARE = re.compile(rf"{_NUMBER}(?:[eE][+-]?[0-9]+)?")
_CLOCK = re.compile(rf"(?:(?P<days>[0-9]+)-)?(?P<fields>[0-9]+(?::[0-9]+)*:{_NUMBER})")
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]*)\.?\s*,?")


def time_unit(text: str) -> str | None:
    """The unit of time that `text` spells (`d`, `h`, `min`, `s` or `ms`), or None when it is none."""
    return _UNITS.get(text.strip().lower().rstrip("."))


def parse_duration(text: str, unit: str | None = None) -> float:
    """A time span as written, in seconds.

    A number without a unit is read in `unit`; after a larger unit it counts the next smaller one, so that
    `5h 15` is 5 hours and 15 minutes. Two numbers with a colon are minutes and seconds, three are hours, minutes
    and seconds.

    Args:
        text: one of `LEGAL_FORMS`.
        unit: what a bare number counts, in any spelling of `d`, `h`, `min`, `s` or `ms`; None refuses bare numbers.

    Returns:
        Seconds, zero or more.

    Raises:
        UserError: the text is not a time span, or could be read in two ways; names both readings.

    >>> parse_duration("01:38:30")
    5910.0
    >>> parse_duration("1.5", unit="min")
    90.0
    """
    given = text.strip()
    known = None if unit is None else time_unit(unit)
    if unit is not None and known is None:
        raise UserError(f'"{unit}" is not a unit of time; use d, h, min, s or ms')
    if _BARE.fullmatch(given):
        if known is None:
            raise _refuse(text, "the number has no unit")
        return float(given) * _SECONDS[known]
    clock = _CLOCK.fullmatch(given)
    if clock:
        return _clock_seconds(text, clock["days"], clock["fields"].split(":"), known)
    return _spelled_seconds(text, given)


def _clock_seconds(text: str, days: str | None, fields: Sequence[str], unit: str | None) -> float:
    if len(fields) > 3 or (days is not None and len(fields) != 3):
        raise _refuse(text, "a clock time has two or three fields, and days only before three")
    if len(fields) == 2 and unit not in (None, "min", "s"):
        raise _refuse(text, f'with the unit "{unit}" it could be hours:minutes or minutes:seconds; write three fields')
    if any(float(field) >= 60 for field in fields[1:]) or (days is not None and float(fields[0]) >= 24):
        raise _refuse(text, "a field after the first is 60 or more (24 for hours after days)")
    seconds = 0.0
    for field in fields:
        seconds = seconds * 60 + float(field)
    return seconds + float(days or 0) * _SECONDS["d"]


def _spelled_seconds(text: str, given: str) -> float:
    parts: list[tuple[str, str]] = []
    position = 0
    while position < len(given):
        match = _PART.match(given, position)
        if match is None:
            raise _refuse(text, f'it cannot be read from "{given[position:]}" on')
        parts.append((match[1], _unit_of(text, match[2], parts)))
        position = match.end()
    if not parts:
        raise _refuse(text, "it is empty")
    if given.endswith(","):
        raise _refuse(text, "it ends in a comma")
    for (number, unit), (next_number, next_unit) in pairwise(parts):
        if _ORDER.index(next_unit) <= _ORDER.index(unit):
            raise _refuse(text, "units must go from large to small, each once")
        if not float(number).is_integer():
            raise _refuse(text, f'"{number} {unit}" is a fraction and something smaller follows')
        if float(next_number) >= _CARRY[next_unit]:
            raise _refuse(text, f'"{next_number} {next_unit}" is more than the next larger unit')
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _unit_of(text: str, spelling: str, before: Sequence[tuple[str, str]]) -> str:
    if spelling:
        unit = time_unit(spelling)
        if unit is None:
            raise _refuse(text, f'"{spelling}" is not a unit of time')
        return unit
    # "35s 400" might be 400 ms or 35.400 s cut apart: nobody's habit, so it is refused rather than guessed.
    if not before or before[-1][1] in ("s", "ms"):
        raise _refuse(text, "a number has no unit")
    return _ORDER[_ORDER.index(before[-1][1]) + 1]


def _refuse(text: str, why: str) -> UserError:
    return UserError(f'"{text}" is not a time: {why}; legal forms: {", ".join(LEGAL_FORMS)}')
