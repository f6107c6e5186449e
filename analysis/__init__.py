"""Reads runs and tables of measurements, and says how training scales.

Importing this package is cheap: pandas and matplotlib are imported when a function that needs them is first asked for.

    >>> import analysis
    >>> table = analysis.read("runs/digits", "lab.csv")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.diagnosis import diagnose
    from analysis.durations import parse_duration
    from analysis.epochs import fit_epochs
    from analysis.finding import Finding
    from analysis.fitting import fit_scaling
    from analysis.recommendation import recommend
    from analysis.references import reference
    from analysis.stability import epochs_to_stability
    from analysis.tables import read

__all__ = [
    "Finding",
    "diagnose",
    "epochs_to_stability",
    "fit_epochs",
    "fit_scaling",
    "parse_duration",
    "read",
    "recommend",
    "reference",
]

# Public name -> the module that holds it, imported on first use (PEP 562).
_HOMES = {
    "Finding": "analysis.finding",
    "diagnose": "analysis.diagnosis",
    "epochs_to_stability": "analysis.stability",
    "fit_epochs": "analysis.epochs",
    "fit_scaling": "analysis.fitting",
    "parse_duration": "analysis.durations",
    "read": "analysis.tables",
    "recommend": "analysis.recommendation",
    "reference": "analysis.references",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
