"""How many nodes, and how many ranks on each: a pure function of a number of GPUs and of what the site has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hvdtrain.errors import UserError
from hvdtrain.submit.cell import Shape

#: How far around an impossible number the nearest possible ones are looked for.
_NEAR = 64


def place(
    gpus: int,
    *,
    per_node: int | None,
    nodes: int | None = None,
    sizes: Mapping[int, int] | None = None,
    most: int | None = None,
    with_gpus: bool = True,
    what: str = "",
) -> Shape:
    """The layout of `gpus` ranks: as few nodes as possible, the same number of ranks on each.

    Args:
        per_node: GPUs on a node; None where nobody knows: then all on one node.
        nodes: nodes there are; None where nobody knows.
        sizes: where nodes differ, instead of `nodes`: GPUs on a node -> how many nodes have so many.
        most: GPUs that one job may have.
        with_gpus: whether the ranks ask SLURM for GPUs.
        what: the GPU type, for the message.

    >>> place(6, per_node=4)
    Shape(nodes=2, tasks_per_node=3, gpus_per_node=3)
    >>> place(32, per_node=8, sizes={4: 10, 8: 2})
    Shape(nodes=8, tasks_per_node=4, gpus_per_node=4)

    Raises:
        UserError: no such layout exists; names the nearest numbers that have one.
    """
    if sizes is None and per_node is not None and nodes is not None:
        sizes = {per_node: nodes}
    nodes_needed = _nodes(gpus, per_node, sizes, most)
    if nodes_needed is None:
        raise UserError(_impossible(gpus, per_node, sizes, most, what))
    each = gpus // nodes_needed
    return Shape(nodes_needed, each, each if with_gpus else 0)


def _nodes(gpus: int, per_node: int | None, sizes: Mapping[int, int] | None, most: int | None) -> int | None:
    if most is not None and gpus > most:
        return None
    if per_node is None:
        return 1
    for count in range(-(-gpus // per_node), gpus + 1 if sizes is None else min(gpus, sum(sizes.values())) + 1):
        enough = sizes is None or count <= sum(number for size, number in sizes.items() if size >= gpus // count)
        if gpus % count == 0 and enough:
            return count
    return None


def _impossible(gpus: int, per_node: int | None, sizes: Mapping[int, int] | None, most: int | None, what: str) -> str:
    kind = f" of type {what}" if what else ""
    there: Counter[int] = Counter()
    for size in sorted(sizes or {}):
        there[min(size, per_node or size)] += (sizes or {})[size]
    total = sum(size * number for size, number in there.items())
    if most is not None and gpus > most:
        has = f"one job may have {most} GPUs here (limits.gpus of the site profile)"
    elif gpus > total > 0:
        listed = ", ".join(f"{number} node{'s' * (number > 1)} with {size} each" for size, number in there.items())
        has = f"there are {total} GPUs{kind}: {listed}"
    else:
        has = (
            f"{gpus} ranks cannot lie evenly on at most {sum(there.values())} nodes with {' or '.join(map(str, there))} GPUs{kind} "
            "each, and uneven nodes would wait for the fullest"
        )

    def legal(number: int) -> bool:
        return number >= 1 and _nodes(number, per_node, sizes, most) is not None

    below = next((number for number in range(gpus - 1, 0, -1) if legal(number)), None)
    above = next((number for number in range(gpus + 1, gpus + _NEAR) if legal(number)), None)
    near = " and ".join(str(number) for number in (below, above) if number is not None)
    return f"--gpus {gpus}: {has}; nearest that fit: {near or 'none'}"
