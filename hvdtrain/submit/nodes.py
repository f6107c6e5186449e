"""What the nodes have that cells go to: what somebody says of them, else what SLURM says of their partition and GPU type."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hvdtrain.site import detect
from hvdtrain.site.detect import Facts, default_partition
from hvdtrain.site.files import DETECTED, Profile
from hvdtrain.site.profile import Gpu, Site
from hvdtrain.site.rooms import Room, room, rooms


@dataclass(frozen=True)
class Nodes:
    """Nodes of one partition and GPU type.

    `per_node`: GPUs, or ranks on CPUs, on the largest of them. `number`: how many there are. `sizes`: where they may differ, GPUs
    on a node -> how many have so many. `cpus_per_task`: CPU cores for each rank. None where nobody knows.
    """

    with_gpus: bool
    per_node: int | None
    number: int | None
    sizes: Mapping[int, int] | None
    cpus_per_task: int | None


def with_hidden(profile: Profile, facts: Facts) -> Facts:
    """The facts, with the nodes of partitions that cells may go to and that SLURM shows only to who names them.

    Raises:
        SlurmError: it does not answer.
    """
    gpus = (Gpu(), *profile.site.gpus.values())
    wanted = {name.strip() for gpu in gpus for name in (_partition(profile.site, gpu) or "").split(",")}
    hidden = wanted - {"", *(group.partition for group in facts.groups)}
    return replace(facts, groups=[*facts.groups, *detect.named(sorted(hidden))]) if hidden else facts


def nodes_for(profile: Profile, facts: Facts | None, gpu_type: str | None) -> Nodes:
    """The nodes that cells go to which ask for `gpu_type`, a name that the user gives to it; None: for any GPUs.

    Raises:
        UserError: the site has no such type.
    """
    site, gpu = profile.site, Gpu() if gpu_type is None else profile.site.gpu(gpu_type)
    name = next((name for name, each in site.gpus.items() if each is gpu), "")
    # What was detected is of the partition that jobs go to by themselves, and another one may have been asked for.
    partition = _partition(site, gpu)
    found = _room(facts, gpu, partition)
    # A hidden partition may have the only GPUs, of which nothing was detected then.
    found_gpus = found is not None and found.cpus is not None
    with_gpus = found_gpus or bool(site.gpus or site.gpus_per_node) or facts is None
    per_node = gpu.per_node or site.gpus_per_node or (None if with_gpus else site.ranks_per_node)
    number, sizes, cpus = gpu.nodes or site.nodes, None, site.cpus_per_task

    def detected(key: str, general: str) -> bool:
        origin = general if getattr(gpu, key, None) is None else f"gpus.{name}.{key}"
        return profile.origins.get(origin, DETECTED if found_gpus else None) == DETECTED

    same_size = not detected("per_node", "gpus_per_node" if with_gpus else "ranks_per_node")
    if found is not None:
        per_node = per_node if same_size else found.per_node
        cpus = found.cpus if detected("cpus_per_task", "cpus_per_task") else cpus
    if detected("nodes", "nodes"):
        if found is not None:
            number, sizes = found.nodes, None if same_size else found.sizes
        elif _unlisted(facts, partition):
            number = None
    return Nodes(with_gpus, per_node, number, sizes, cpus)


def _partition(site: Site, gpu: Gpu) -> str | None:
    """The one that sbatch is told, as it takes what the script and the environment say; None: the cluster's default one."""
    own = [text.partition("=")[2] for text in site.directives if text.startswith("--partition=")]
    chosen = None if "partition" in site.skip else gpu.partition or site.partition
    return (own[-1] if own else chosen) or os.environ.get("SBATCH_PARTITION") or None


def _room(facts: Facts | None, gpu: Gpu, partition: str | None) -> Room | None:
    """None where the partition has no such nodes: what is wrong with it SLURM says in its own words."""
    if facts is None:
        return None
    return room(rooms(facts.groups, gpu.slurm), partition or default_partition(facts.groups) or "")


def _unlisted(facts: Facts | None, partitions: str | None) -> bool:
    """Whether sinfo says nothing of any of them, as of one that is not there."""
    listed = set() if facts is None else {group.partition for group in facts.groups}
    return partitions is not None and listed.isdisjoint(name.strip() for name in partitions.split(","))
