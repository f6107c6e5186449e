"""Which cells go to SLURM in one call of sbatch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvdtrain.submit import batch_script


@dataclass(frozen=True)
class Batch:
    """Cells of one call. `parallel`: how many may run at once; `after`: index of the batch that must have ended first."""

    cells: tuple[str, ...]
    parallel: int | None = None
    after: int | None = None


def batches(
    scripts: Mapping[str, str], *, array_size: int | None = None, max_parallel: int | None = None
) -> list[Batch]:
    """One batch for each set of cells of equal shape, more where arrays may not be so long.

    `max_parallel` holds for all of them together: each gets a share, and where there are more batches than that they
    take turns.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for cell, script in scripts.items():
        alike.setdefault(batch_script.likeness(script), []).append(cell)
    size = array_size or max(1, len(scripts))
    chunks = [group[at : at + size] for group in alike.values() for at in range(0, len(group), size)]
    if max_parallel is None:
        return [Batch(tuple(chunk)) for chunk in chunks]
    if len(chunks) > max_parallel:
        return [
            Batch(tuple(chunk), 1, index - max_parallel if index >= max_parallel else None)
            for index, chunk in enumerate(chunks)
        ]
    shares = _shares([len(chunk) for chunk in chunks], max_parallel)
    return [Batch(tuple(chunk), share) for chunk, share in zip(chunks, shares, strict=True)]


def _shares(sizes: Sequence[int], total: int) -> list[int]:
    """`total` places over groups of these sizes: one each, the rest to whoever has most cells per place."""
    shares = [1] * len(sizes)
    for _ in range(total - len(sizes)):
        index = max(range(len(sizes)), key=lambda each: sizes[each] / shares[each])
        if shares[index] >= sizes[index]:
            break
        shares[index] += 1
    return shares
