"""What a cluster says of itself, turned into a profile."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.site import commands
from hvdtrain.site.rooms import Room, is_slice, rooms
from hvdtrain.site.times import minutes

#: Short names that people use, in the order in which they are looked for in a site's own name.
_SHORT = re.compile(
    r"(?:^|[^a-z0-9])(gb?[hb]?200|b[23]00|h[12]00|a100|a30|a40|a10g?|l40s?|l4|v100s?|p100|p40|k80|t4|rtx[_-]?\d+(?:_?ti)?|"
    r"a[2456]000|mi\d+[ax]?|gtx[_-]?\d+(?:_?ti)?)(?:$|[^a-z0-9])"
)

#: Partitions, by what sites call them, where jobs are short, or are ended for those of others.
_NOT_BY_ITSELF = re.compile(r"debug|devel|test|scaveng|preempt|(?:^|[-_])low|idle|backfill|requeue", re.IGNORECASE)


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
    # Without --all it leaves out what is hidden, or closed to this user's groups: nothing to send a job to unasked.
    groups = _groups()
    settings = parse_config(commands.call(["scontrol", "show", "config"]))
    return Facts(groups, settings, mpi_types())


def named(partitions: Sequence[str]) -> list[Group]:
    """The nodes of these partitions, which may be hidden: one call to the controller.

    Raises:
        SlurmError: it does not answer.
    """
    return _groups(f"--partition={','.join(partitions)}")


def _groups(*options: str) -> list[Group]:
    # Without --exact nodes that differ are one entry, with the least of each number: 32+ CPUs.
    return parse_sinfo(commands.call(["sinfo", "--noheader", "--exact", *options, f"--format={_FORMAT}"]))


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
    default = default_partition(facts.groups)
    gpus = {}
    for site_name, name in short_names(facts.groups).items():
        found = rooms(facts.groups, site_name)
        best = _home(found, facts.groups)
        gpus[name] = {"slurm": site_name, "per_node": found[best].per_node, "nodes": found[best].nodes}
        if best != default:
            gpus[name]["partition"] = best
    if gpus:
        values["gpus"] = gpus
    if found := rooms(facts.groups):
        # Of the default partition, or of the largest.
        home = found[default] if default in found else max(found.values(), key=lambda each: each.nodes)
        values["nodes"] = home.nodes
        values["gpus_per_node" if home.cpus else "ranks_per_node"] = home.per_node
        if home.cpus:
            values["cpus_per_task"] = home.cpus
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
        values["requeue"] = {"on": [], "retries": 0}
    return values


def hidden_types(shown: Sequence[Group], groups: Sequence[Group]) -> dict[str, Any]:
    """GPU types of a profile that of all `groups` only those have which are not among the `shown` ones; with no partition."""
    known = short_names(shown)
    return {name: {"slurm": kind} for kind, name in short_names(groups).items() if kind not in known}


def elsewhere(groups: Sequence[Group], partitions: str) -> dict[str, str]:
    """GPU types, by the names that people use, that none of the `partitions` has, and where their jobs would go by themselves.

    Empty where a partition is not listed: what it has is not known.
    """
    named = {name.strip() for name in partitions.split(",")}
    if not named <= {group.partition for group in groups}:
        return {}
    found = {name: rooms(groups, site_name) for site_name, name in short_names(groups).items()}
    return {name: _home(where, groups) for name, where in found.items() if named.isdisjoint(where)}


def default_partition(groups: Sequence[Group]) -> str | None:
    """The one of jobs that name none."""
    return next((group.partition for group in groups if group.default), None)


def _home(found: Mapping[str, Room], groups: Sequence[Group]) -> str:
    """Of the partitions that have a GPU type the one that its jobs go to."""
    # A node stands in several partitions; the partition with most nodes of a type counts them once.
    default = default_partition(groups)
    if default is not None and default in found:
        return default
    return min(found, key=lambda each: _far_from_best(found[each], each, groups))


def _far_from_best(room: Room, partition: str, groups: Sequence[Group]) -> tuple[float, ...]:
    """Sorts the partitions that have a GPU type when the default one has it not; the first is where its jobs go."""
    own = [group for group in groups if group.partition == partition]
    # Of partitions that have all of them one with a short time limit is for trying out, whatever its name; of equal ones the
    # smallest has the fewest other nodes.
    last = _NOT_BY_ITSELF.search(partition) is not None
    return (-room.nodes, last, -max(_minutes(group.time) for group in own), sum(group.nodes for group in own))


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


def short_names(groups: Sequence[Group]) -> dict[str, str]:
    """How people call a site's GPU types: `a100` for `nvidia_a100_80gb`, unless more than one would be called so.

    A slice of a GPU has the site's own name: whoever asks for an `a100` wants a whole one.
    """
    names = dict.fromkeys(name for group in groups for name in group.gpus if name)
    found = {name: None if is_slice(name) else _SHORT.search(name.lower()) for name in names}
    short = {name: match[1] if match else name for name, match in found.items()}
    return {name: name if [*short.values()].count(each) > 1 else each for name, each in short.items()}


def _minutes(limit: str) -> float:
    """A partition's time limit; it may be "infinite"."""
    try:
        return minutes(limit)
    except ValueError:
        return math.inf


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0
