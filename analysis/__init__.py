"""Reads runs and tables of measurements, and says how training scales.

Importing this package is cheap: pandas and matplotlib are imported when a function that needs them is first asked for.

    >>> import analysis
    >>> table = analysis.read("runs/digits", "lab.csv")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.durations import parse_duration
    from analysis.tables import read

__all__ = ["parse_duration", "read"]

# Public name -> the module that holds it, imported on first use (PEP 562).
_HOMES = {"parse_duration": "analysis.durations", "read": "analysis.tables"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
