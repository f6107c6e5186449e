"""What the nodes have that a job may go to: those of one partition, and of one GPU type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdtrain.site.detect import Group

_SLICE = re.compile(r"\d+g[._]\d+gb")


@dataclass(frozen=True)
class Room:
    """Nodes that one job may have.

    `sizes`: GPUs on a node, or without GPUs ranks -> how many nodes have so many. `cpus`: CPU cores for each rank on a GPU, a fair
    share on every one of these nodes; None without GPUs.
    """

    sizes: Mapping[int, int]
    cpus: int | None

    @property
    def per_node(self) -> int:
        """GPUs, or ranks, on the largest node."""
        return max(self.sizes)

    @property
    def nodes(self) -> int:
        """How many nodes there are, of whatever size."""
        return sum(self.sizes.values())


def is_slice(gpu_type: str) -> bool:
    """Whether a site's name is that of a part of a GPU (MIG), such as `a100_1g.5gb`."""
    return _SLICE.search(gpu_type.lower()) is not None


def rooms(groups: Sequence[Group], gpu_type: str | None = None) -> dict[str, Room]:
    """The room in each partition that has such nodes; `gpu_type` is the site's own name.

    Without a type: whole GPUs, where the partition has any; else slices of them; on a cluster without GPUs CPUs.
    """
    by_partition: dict[str, list[tuple[int, Group]]] = {}
    whole = {group.partition for group in groups if _gpus(group, whole=True)}
    with_gpus = any(group.gpus for group in groups)
    for group in groups:
        gpus = _gpus(group, whole=group.partition in whole)
        size = group.gpus.get(gpu_type, 0) if gpu_type else gpus if with_gpus else group.cpus
        if size:
            by_partition.setdefault(group.partition, []).append((size, group))
    return {name: (_with_gpus if with_gpus else _of_cpus)(found) for name, found in by_partition.items()}


def room(found: Mapping[str, Room], partitions: str) -> Room | None:
    """That of `partitions`, as sbatch takes them: of several names SLURM picks one. None: of none.

    Of each size there are as many nodes as one of them has: a job never has nodes of two. `cpus` is what there is on each.
    """
    named = [found[name] for name in dict.fromkeys(map(str.strip, partitions.split(","))) if name in found]
    if len(named) < 2:
        return named[0] if named else None
    sizes: dict[int, int] = {}
    for size in sorted({size for each in named for size in each.sizes}, reverse=True):
        most = max(sum(number for other, number in each.sizes.items() if other >= size) for each in named)
        if more := most - sum(sizes.values()):
            sizes[size] = more
    cpus = [each.cpus for each in named if each.cpus is not None]
    return Room(sizes, min(cpus, default=None))


def _gpus(group: Group, *, whole: bool) -> int:
    return sum(number for name, number in group.gpus.items() if not (whole and is_slice(name)))


def _with_gpus(found: Sequence[tuple[int, Group]]) -> Room:
    sizes: Counter[int] = Counter()
    for size, group in found:
        sizes[size] += group.nodes
    # A slice wants few cores, and a node that has some says nothing about the share of a whole GPU.
    plain = [group for _, group in found if not any(map(is_slice, group.gpus))] or [group for _, group in found]
    # With SLURM's own default of one core, reading data would hold the GPU up.
    return Room(sizes, max(1, min(group.cpus // sum(group.gpus.values()) for group in plain)))


def _of_cpus(found: Sequence[tuple[int, Group]]) -> Room:
    # Ranks on CPUs share a node at will: each node takes as many as the smallest.
    return Room({min(cpus for cpus, _ in found): sum(group.nodes for _, group in found)}, None)
