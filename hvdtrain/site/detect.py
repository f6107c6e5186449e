"""What a cluster says of itself, turned into a profile."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.site import commands
from hvdtrain.site.times import minutes

#: Short names that people use, in the order in which they are looked for in a site's own name.
_SHORT = re.compile(
    r"(?:^|[^a-z0-9])(gb?[hb]?200|b[23]00|h[12]00|a100|a30|a40|a10g?|l40s?|l4|v100s?|p100|p40|k80|t4|rtx[_-]?\d+(?:_?ti)?|"
    r"a[2456]000|mi\d+[ax]?|gtx[_-]?\d+(?:_?ti)?)(?:$|[^a-z0-9])"
)


@dataclass(frozen=True)
class Group:
    """Nodes that are alike. `gpu_type` is the gres name, empty for GPUs without one."""

    nodes: int
    partition: str
    default: bool
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int]
    features: tuple[str, ...] = ()
    time: str = ""


@dataclass(frozen=True)
class Facts:
    """What sinfo and scontrol say."""

    groups: Sequence[Group]
    settings: Mapping[str, str] = field(default_factory=dict)
    mpi: Sequence[str] = ()

    @property
    def accounting(self) -> bool:
        """Whether sacct can know anything."""
        return not self.settings.get("AccountingStorageType", "").endswith(("none", "(null)"))


_FORMAT = "%D|%P|%c|%m|%l|%f|%G"


def look() -> Facts:
    """Ask the cluster: two calls to the controller and one to srun, none of which changes anything.

    Raises:
        SlurmError: there is no cluster here, or it does not answer.
    """
    # Without --exact nodes that differ are one entry, with the least of each number: 32+ CPUs.
    # Without --all it leaves out what is hidden, or closed to this user's groups: nothing to send a job to unasked.
    groups = parse_sinfo(commands.call(["sinfo", "--noheader", "--exact", f"--format={_FORMAT}"]))
    settings = parse_config(commands.call(["scontrol", "show", "config"]))
    return Facts(groups, settings, mpi_types())


def mpi_types() -> list[str]:
    """What `srun --mpi=list` offers."""
    return parse_mpi(commands.call(["sh", "-c", "srun --mpi=list 2>&1"]))


def parse_sinfo(text: str) -> list[Group]:
    """Groups from lines in our format.

    >>> parse_sinfo("2|t4*|16|64000|1-00:00:00|fast,ib|gpu:t4:4(S:0-1)")[0].gpus
    {'t4': 4}
    """
    groups = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 7:
            continue
        nodes, partition, cpus, memory, time, features, gres = (part.strip() for part in parts)
        groups.append(
            Group(
                nodes=_number(nodes),
                partition=partition.rstrip("*"),
                default=partition.endswith("*"),
                cpus=_number(cpus),
                memory_mb=_number(memory),
                gpus=parse_gres(gres),
                features=tuple(word for word in features.split(",") if word and word != "(null)"),
                time=time,
            )
        )
    return groups


def parse_gres(text: str) -> dict[str, int]:
    """GPUs by type: `gpu:t4:4(S:0-1),gpu:a100:2,nvme:1` is {"t4": 4, "a100": 2}; without a type the key is empty."""
    found: dict[str, int] = {}
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = entry.strip().split(":")
        if parts[0] == "gpu" and parts[-1].isdigit() and int(parts[-1]):
            name = parts[1] if len(parts) > 2 else ""
            found[name] = found.get(name, 0) + int(parts[-1])
    return found


def parse_config(text: str) -> dict[str, str]:
    """`Key = value` lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_mpi(text: str) -> list[str]:
    """Plugin names from `srun --mpi=list`, whose layout differs between releases."""
    words = re.findall(
        r"[a-z][a-z0-9_]*",
        text.replace("MPI plugin types are", "").replace("specific pmix plugin versions available", ""),
    )
    return sorted({word for word in words if word.startswith(("pmi", "pmix", "none", "openmpi", "cray"))})


def profile(facts: Facts) -> dict[str, Any]:
    """Values for a profile, as nested tables. Nothing is guessed: what the cluster does not say stays away."""
    values: dict[str, Any] = {}
    if name := facts.settings.get("ClusterName"):
        values["name"] = name
    typed = Counter(name for group in facts.groups for name in group.gpus)
    # A node stands in several partitions; the partition with most nodes of a type counts them once.
    gpus: dict[str, dict[str, Any]] = {}
    default = next((group.partition for group in facts.groups if group.default), None)
    for site_name in typed:
        if not site_name:
            continue
        best: dict[str, int] = {}
        per_node = 0
        for group in facts.groups:
            if site_name in group.gpus:
                best[group.partition] = best.get(group.partition, 0) + group.nodes
                per_node = max(per_node, group.gpus[site_name])
        entry: dict[str, Any] = {"slurm": site_name, "per_node": per_node, "nodes": max(best.values())}
        if default not in best:
            # The default partition does not have it. Of partitions that have all of them one with a short time limit is for tests,
            # and of equal ones the smallest has the fewest other nodes.
            sizes = Counter({group.partition: 0 for group in facts.groups})
            for group in facts.groups:
                sizes[group.partition] += group.nodes
            longest = {group.partition: _minutes(group.time) for group in facts.groups}
            entry["partition"] = min(best, key=lambda each: (-best[each], -longest[each], sizes[each], each))
        gpus[_short(site_name, gpus)] = entry
    if gpus:
        values["gpus"] = gpus
    with_gpus = [group for group in facts.groups if group.gpus]
    groups = with_gpus or list(facts.groups)
    if groups:
        values["nodes"] = _nodes(groups, default)
    if with_gpus:
        values["gpus_per_node"] = max(sum(group.gpus.values()) for group in with_gpus)
        # A rank's fair share: with SLURM's own default of one core, reading data would hold the GPU up.
        values["cpus_per_task"] = max(1, min(group.cpus // sum(group.gpus.values()) for group in with_gpus))
    elif groups:
        values["ranks_per_node"] = max(1, min(group.cpus for group in groups))
    if (size := _number(facts.settings.get("MaxArraySize", ""))) > 1:
        values["limits"] = {"array_size": size - 1}
    elif "MaxArraySize" in facts.settings:
        values["limits"] = {"array_size": 1}
    plugins = facts.settings.get("TaskPlugin", "")
    if "affinity" in plugins or "cgroup" in plugins:
        values["cpu_bind"] = "cores"
    if "CR_" in (parameters := facts.settings.get("SelectTypeParameters", "")) and "MEMORY" not in parameters.upper():
        values["memory"] = "none"
    if (names := [name for name in facts.mpi if name.startswith("pmix")]) and "pmix" not in names:
        values["pmix"] = names[-1]
    if facts.settings.get("JobRequeue") == "0":
        values["requeue"] = {"on": []}
    return values


def _nodes(groups: Sequence[Group], default: str | None) -> int:
    """Nodes of the default partition, or of the largest; a node may stand in several."""
    counted: Counter[str] = Counter()
    for group in groups:
        counted[group.partition] += group.nodes
    return counted[default] if default is not None and default in counted else max(counted.values())


def nodes_in(groups: Sequence[Group], partitions: str, *, with_gpus: bool, gpu_type: str | None = None) -> int:
    """Nodes that one job may have in `partitions`, as sbatch takes them: of several names the one with most, for SLURM picks one.

    `gpu_type` is the site's own name. 0 when no such partition has such nodes.
    """
    counted: Counter[str] = Counter()
    for group in groups:
        if (gpu_type in group.gpus) if gpu_type else (group.gpus or not with_gpus):
            counted[group.partition] += group.nodes
    return max((counted[name.strip()] for name in partitions.split(",")), default=0)


def to_toml(values: Mapping[str, Any]) -> str:
    """The tables as TOML text; only strings, numbers, lists of strings and tables occur."""
    return "".join(_table(values, ())).lstrip("\n")


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    if path and (plain or not values):
        lines.append("\n[" + ".".join(_key(part) for part in path) + "]\n")
    lines += [f"{_key(key)} = {_value(value)}\n" for key, value in plain.items()]
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += _table(value, (*path, key))
    return lines


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _value(text)


def _value(value: Any) -> str:
    import json

    if isinstance(value, list):
        return "[" + ", ".join(_value(entry) for entry in value) + "]"
    # JSON's strings are TOML's basic strings.
    return json.dumps(value)


def _short(site_name: str, taken: Mapping[str, Any]) -> str:
    """`a100` for `nvidia_a100_80gb`; the site's own name when nothing shorter is known, or it is taken."""
    match = _SHORT.search(site_name.lower())
    short = match[1] if match else site_name
    return site_name if short in taken else short


def _minutes(limit: str) -> float:
    """A partition's time limit; it may be "infinite"."""
    try:
        return minutes(limit)
    except ValueError:
        return math.inf


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0
