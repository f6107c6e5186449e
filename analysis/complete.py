"""A table of measurements made whole: columns that nobody gave are NA, and types are those of the tidy table."""

from __future__ import annotations

import pandas as pd

from analysis.schema import COLUMNS, COUNTS, DEVICES, WORDS
from hvdtrain.errors import UserError

#: Without these there is nothing that was measured.
_NEEDED = ("metric", "value")
_NUMBERS = (*COUNTS, "replicate")


def completed(table: pd.DataFrame, needed: tuple[str, ...] = _NEEDED) -> pd.DataFrame:
    """`table` with every column of `analysis.schema.COLUMNS`, so that one typed into a DataFrame serves as well as one read.

    An absent device is "gpu" where a GPU type is given, or the one that stands there ("cpu"), and an absent global batch follows
    from batch per rank and ranks, as in a file. A table that `analysis.read` made comes back as it is.

    Raises:
        UserError: a column of `needed` is missing, or one of counts holds something else.
    """
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise UserError(f"the table has no column {' and '.join(missing)}; analysis.read makes one that has them all")
    if all(name in table.columns for name in COLUMNS) and all(str(table[name].dtype) == "Int64" for name in _NUMBERS):
        return table
    found = table.reindex(columns=[*COLUMNS, *(name for name in table.columns if name not in COLUMNS)])
    found.attrs = dict(table.attrs)
    for name in WORDS:
        found[name] = found[name].astype("string")
    for name in _NUMBERS:
        try:
            found[name] = found[name].astype("Float64").astype("Int64")
        except (TypeError, ValueError) as error:
            raise UserError(f"column {name} of the table holds something that is no whole number ({error})") from error
    found["value"] = found["value"].astype("float64")
    kind = found["gpu_type"].str.lower()
    named = kind.isin(DEVICES)
    found["device"] = found["device"].fillna(
        kind.where(named, kind.notna().map({True: "gpu", False: pd.NA})).astype("string")
    )
    found["gpu_type"] = found["gpu_type"].mask(named)
    found["global_batch"] = found["global_batch"].fillna(found["per_gpu_batch"] * found["n_gpus"])
    return found
