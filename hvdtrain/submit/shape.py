"""How many nodes, and how many ranks on each: a pure function of a number of GPUs and of what the site has."""

from __future__ import annotations

from hvdtrain.errors import UserError
from hvdtrain.submit.cell import Shape

#: How far around an impossible number the nearest possible ones are looked for.
_NEAR = 64


def place(
    gpus: int,
    *,
    per_node: int | None,
    nodes: int | None = None,
    most: int | None = None,
    with_gpus: bool = True,
    what: str = "",
) -> Shape:
    """The layout of `gpus` ranks: as few nodes as possible, the same number of ranks on each.

    Args:
        per_node: GPUs on a node; None where nobody knows: then all on one node.
        nodes: nodes there are; None where nobody knows.
        most: GPUs that one job may have.
        with_gpus: whether the ranks ask SLURM for GPUs.
        what: the GPU type, for the message.

    >>> place(6, per_node=4)
    Shape(nodes=2, tasks_per_node=3, gpus_per_node=3)

    Raises:
        UserError: no such layout exists; names the nearest numbers that have one.
    """
    nodes_needed = _nodes(gpus, per_node, nodes, most)
    if nodes_needed is None:
        raise UserError(_impossible(gpus, per_node, nodes, most, what))
    each = gpus // nodes_needed
    return Shape(nodes_needed, each, each if with_gpus else 0)


def _nodes(gpus: int, per_node: int | None, nodes: int | None, most: int | None) -> int | None:
    if most is not None and gpus > most:
        return None
    if per_node is None:
        return 1
    smallest = -(-gpus // per_node)
    largest = gpus if nodes is None else min(gpus, nodes)
    return next((count for count in range(smallest, largest + 1) if gpus % count == 0), None)


def _impossible(gpus: int, per_node: int | None, nodes: int | None, most: int | None, what: str) -> str:
    kind = f" of type {what}" if what else ""
    if most is not None and gpus > most:
        has = f"one job may have {most} GPUs here (limits.gpus of the site profile)"
    elif nodes is not None and per_node is not None and gpus > nodes * per_node:
        has = f"there are {nodes * per_node} GPUs{kind}: {nodes} node{'s' * (nodes > 1)} with {per_node} each"
    else:
        has = (
            f"{gpus} ranks cannot lie evenly on at most {nodes} nodes with {per_node} GPUs{kind} each, and uneven "
            "nodes would wait for the fullest"
        )

    def legal(number: int) -> bool:
        return number >= 1 and _nodes(number, per_node, nodes, most) is not None

    below = next((number for number in range(gpus - 1, 0, -1) if legal(number)), None)
    above = next((number for number in range(gpus + 1, gpus + _NEAR) if legal(number)), None)
    near = " and ".join(str(number) for number in (below, above) if number is not None)
    return f"--gpus {gpus}: {has}; nearest that fit: {near or 'none'}"
