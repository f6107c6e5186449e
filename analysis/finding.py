"""One thing that a reader of measurements must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis import words

#: The gravest first: what makes the numbers worthless, then what explains them, then what is missing.
CODES = (
    "implausible", "inconsistent_total", "per_worker_suspected", "weak_scaling", "superlinear", "retrograde", "input_bound",
    "node_boundary", "outlier", "mixed_gpu_types", "batch_changed", "epochs_differ", "horizon", "insufficient_data",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A finding, with the numbers that triggered it.

    Attributes:
        code: of `CODES`.
        message: what was seen, with its numbers.
        rows: index labels of the rows of the table that it is about.
        group: what it is about, in words.
        likely: the likely reason.
        next: the measurement that would tell.
        numbers: what triggered it, for programs.
    """

    code: str
    message: str
    rows: tuple[int, ...] = ()
    group: str = ""
    likely: str = ""
    next: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


def known(value: Any) -> str | None:
    """`value` as text, None where it is missing (None, NaN, NA)."""
    return None if value is None or pd.isna(value) else str(value)


def describe(fields: Mapping[str, Any]) -> str:
    """A group in words, as far as it is known: "caltech256 on V100 GPUs, batch 32 per rank".

    `fields` may hold a `global_batch` too, which counts where the batch per rank is not known.
    """
    text = {name: known(value) for name, value in fields.items()}
    first = text.get("workload") or "workload not named"
    if text.get("gpu_type") or text.get("device"):
        first += f" on {words.where(text.get('device'), text.get('gpu_type'))}"
    batch, rule, precision = (text.get(name) for name in ("per_gpu_batch", "lr_rule", "precision"))
    whole = text.get("global_batch")
    parts = [
        first,
        *([f"batch {float(batch):.0f} per rank"] if batch else [f"global batch {float(whole):.0f}"] if whole else []),
    ]
    parts += [f"learning-rate rule {rule}"] if rule else []
    return ", ".join([*parts, *([precision] if precision else [])])
