"""GPU-hours and energy of a cell, over all its attempts: from accounting, else estimated from our own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdtrain import attempts, record
from hvdtrain.record import CellRecord
from hvdtrain.submit.queue import Usage


@dataclass(frozen=True)
class Spent:
    """What a cell has used. `estimated`: wall clock times GPUs, not what SLURM allocated. Joules are None where unknown."""

    gpu_hours: float
    estimated: bool
    joules: float | None = None


def from_accounting(rows: Sequence[Usage], ranks: int) -> Spent:
    """The sum over attempts. A cluster without GPUs counts its ranks."""
    hours = sum((row.gpus or ranks) * row.seconds for row in rows) / 3600
    known = [row.energy_joules for row in rows if row.energy_joules is not None]
    return Spent(hours, False, sum(known) if known else None)


def estimate(cell: CellRecord, now: float | None) -> Spent:
    """Wall clock times ranks of every attempt that left a record, and of the newest one, to `now` if its job runs.

    With None it does not: what was killed outright left no end, and used nothing after its last sign of life.
    """
    ranks = int(cell.cell.get("gpus") or 1)
    earlier = [record.read_json(path) or {} for path in cell.folder.glob("attempts/*/result.json")]
    seconds = sum(_seconds(result) for result in earlier)
    if cell.result is not None:
        seconds += _seconds(cell.result)
    elif (facts := record.read_json(cell.folder / "slurm.json")) is not None:
        began = float(facts["began"])
        ended = attempts.last_sign(cell.folder) if now is None else now
        seconds += max(0.0, (began if ended is None else ended) - began)
    return Spent(seconds * ranks / 3600, True)


def _seconds(result: Mapping[str, Any]) -> float:
    """From the start of the batch script where that is known: loading and rendezvous cost GPU time too."""
    facts = result.get("slurm") or {}
    if facts.get("began") is not None and facts.get("ended") is not None:
        return float(facts["ended"]) - float(facts["began"])
    return float(result.get("seconds") or 0.0)
