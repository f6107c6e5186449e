"""SLURM's way to write a time limit."""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def minutes(text: str) -> float:
    """A SLURM time limit in minutes: `60`, `30:00` (minutes:seconds), `2:00:00`, `1-12`, `1-12:30:00`.

    >>> minutes("2:00:00"), minutes("1-12"), minutes("0:30")
    (120.0, 2160.0, 0.5)

    Raises:
        ValueError: it is no such time.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is not a time such as 90 (minutes), 1:30:00 or 1-12:00:00')
    days, first, second, third = (int(part) if part is not None else None for part in match.groups())
    if days is not None:
        hours, mins, secs = first or 0, second or 0, third or 0
    elif third is not None:
        hours, mins, secs = first or 0, second or 0, third
    else:
        hours, mins, secs = 0, first or 0, second or 0
    total = (days or 0) * 1440 + hours * 60 + mins + secs / 60
    if total <= 0:
        raise ValueError(f'"{text}": a time limit is longer than nothing, such as 1:30:00')
    return total
