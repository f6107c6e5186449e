"""Published tables to lay beside one's own runs: `analysis/reference/*.csv`, figures as printed."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from hvdtrain.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd


def names() -> list[str]:
    """The tables there are."""
    return sorted(entry.name.removesuffix(".csv") for entry in _folder().iterdir() if entry.name.endswith(".csv"))


def path_of(name: str) -> Path:
    """The file of one table.

    Raises:
        UserError: there is no such table; names those there are.
    """
    if name not in names():
        raise UserError(f'no reference table "{name}"; there are {", ".join(names())}{nearest(name, names())}')
    return Path(str(_folder() / f"{name}.csv"))


def reference(name: str) -> pd.DataFrame:
    """A published table in the format of `analysis.read`; what its authors did not say is NA.

    Raises:
        UserError: there is no such table.

    >>> import analysis
    >>> int(analysis.reference("caltech256_lab").metric.eq("epoch_time").sum())
    4
    """
    from analysis.csv_files import read_csv
    from analysis.tables import frame

    return frame(read_csv(path_of(name), ranks_needed=False))


def _folder() -> resources.abc.Traversable:
    return resources.files("analysis") / "reference"
