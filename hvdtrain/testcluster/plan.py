"""What a test cluster consists of: names, addresses, ports. Values only, nothing is started here."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import re
import socket
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hvdtrain.testcluster.errors import RequestError

Mode = Literal["namespaces", "one-host"]

GPUS_PER_NODE = 4
CPUS_PER_NODE = 16
MEMORY_PER_NODE_MB = 64_000
NODE_GROUPS: Mapping[str, int] = {"t4": 2, "v100": 2}
DEFAULT_NAME = "hvd"

# 198.18.0.0/15 is set aside for testing network devices (RFC 2544), so unlike 10.0.0.0/8 or 192.168.0.0/16 it is very
# unlikely to hide an address that the machine needs to reach.
ADDRESS_POOL = ipaddress.IPv4Network("198.18.0.0/15")

_NAME = re.compile(r"[a-z][a-z0-9]{0,8}")
_LINK = re.compile(r"[0-9]+(\.[0-9]+)?[kmg]?bit")
# Slurm and PMIx put UNIX sockets below the directory, and a socket's whole path may have 107 bytes.
_LONGEST_DIRECTORY = 48


#: Ports below are left to services; see `free_ports` for those above.
_FIRST_PORT = 10_000
_GIVEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Node:
    """One machine of the cluster: its host name, stand-in GPUs, and where its slurmd listens."""

    name: str
    gpu_type: str
    address: str
    port: int


@dataclass(frozen=True)
class Plan:
    """Everything that configuration files, namespaces and daemons are made from."""

    name: str
    directory: Path
    mode: Mode
    network: str
    host_address: str
    controller_name: str
    controller_port: int
    nodes: tuple[Node, ...]
    link: str | None = None
    accounting: bool = False
    requeue_delay: int = 20
    node_timeout: int = 60
    settings: tuple[str, ...] = ()
    database_port: int = 0
    accounting_port: int = 0

    @property
    def slurm_conf(self) -> Path:
        """The configuration file that `SLURM_CONF` names."""
        return self.directory / "slurm.conf"

    @property
    def switch_namespace(self) -> str:
        """The network namespace that holds the bridge all nodes are plugged into."""
        return f"{self.name}-switch"

    @property
    def host_link(self) -> str:
        """This machine's own network interface on the cluster."""
        return f"{self.name}-host"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Every network namespace of the cluster, the switch first."""
        if self.mode == "one-host":
            return ()
        return (self.switch_namespace, *(node.name for node in self.nodes))

    def as_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return {**asdict(self), "directory": str(self.directory)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Plan:
        """The inverse of `as_json`."""
        nodes = tuple(Node(**node) for node in values["nodes"])
        values = {**values, "settings": tuple(values.get("settings", ()))}
        return Plan(**{**values, "directory": Path(values["directory"]), "nodes": nodes})


def default_directory(name: str) -> Path:
    """Where the cluster `name` keeps its state unless told otherwise."""
    return Path(tempfile.gettempdir()) / f"hvdtrain-cluster-{name}"


def check_name(name: str) -> str:
    """Return `name`, or raise RequestError: host names, interface names and namespaces are built from it."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"--name {name!r}: a cluster name has 1 to 9 lower-case letters and digits, a letter first,"
            f" e.g. --name {DEFAULT_NAME}2"
        )
    return name


def check_directory(directory: Path) -> Path:
    """Return the absolute `directory`, or raise RequestError when sockets inside it would not fit."""
    directory = Path(os.path.abspath(directory))
    if len(str(directory)) > _LONGEST_DIRECTORY or re.search(r"[^A-Za-z0-9._/+-]", str(directory)):
        raise RequestError(
            f"--dir {directory}: at most {_LONGEST_DIRECTORY} characters of A-Z a-z 0-9 . _ / + - (sockets lie inside),"
            f" e.g. --dir {default_directory(DEFAULT_NAME)}"
        )
    return directory


def check_settings(settings: Iterable[str]) -> tuple[str, ...]:
    """Return `settings` when each is a line `Key=value` of slurm.conf, else raise RequestError."""
    for text in settings:
        if not re.fullmatch(r"[A-Za-z]+=[^\n]+", text):
            raise RequestError(f"--set {text!r}: give a line of slurm.conf such as MaxArraySize=5")
    return tuple(settings)


def check_link(link: str | None) -> str | None:
    """Return `link` when it is a rate that tc understands, else raise RequestError."""
    if link is not None and not _LINK.fullmatch(link):
        raise RequestError(f"--link {link!r}: give a rate such as 100mbit, 1gbit or 10gbit")
    return link


def node_names(name: str, groups: Mapping[str, int] = NODE_GROUPS) -> list[tuple[str, str]]:
    """(host name, GPU type) of every node, e.g. ("hvd-t4-1", "t4")."""
    return [(f"{name}-{gpu}-{index}", gpu) for gpu, count in groups.items() for index in range(1, count + 1)]


def choose_network(taken: Iterable[ipaddress.IPv4Network], start: int) -> ipaddress.IPv4Network:
    """The first /24 of the pool, counted from `start`, that overlaps nothing in `taken`."""
    candidates = list(ADDRESS_POOL.subnets(new_prefix=24))
    taken = list(taken)
    for offset in range(len(candidates)):
        candidate = candidates[(start + offset) % len(candidates)]
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    raise RequestError(f"no free /24 network is left in {ADDRESS_POOL}: end clusters that are no longer needed")


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that nothing listens on now, at any address of this machine.

    Below the range that the kernel gives to whoever asks for any port: until a daemon listens on one, connections of other
    programs, of which a busy machine opens hundreds a minute, could take it.
    """
    try:
        first = int(_GIVEN_BY_KERNEL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768  # Linux's default
    legal = range(_FIRST_PORT, first) if first - _FIRST_PORT >= 100 * count else range(_FIRST_PORT, 65536)
    found: list[int] = []
    for port in random.sample(legal, len(legal)):
        if len(found) == count:
            return found
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            found.append(port)
    raise RequestError(f"{count} TCP ports were needed, and only {len(found)} are free")


def make_plan(
    name: str,
    directory: Path,
    mode: Mode,
    network: ipaddress.IPv4Network | None,
    *,
    link: str | None = None,
    accounting: bool = False,
    requeue_delay: int = 20,
    node_timeout: int = 60,
    settings: tuple[str, ...] = (),
) -> Plan:
    """Put addresses and ports to names. `network` is None in one-host mode, where everything is on loopback."""
    names = node_names(name)
    ports = free_ports(3 + len(names))
    if network is None:
        host_address, controller = "127.0.0.1", socket.gethostname().split(".")[0]
        places = [("127.0.0.1", port) for port in ports[3:]]
    else:
        host_address, controller = str(network[1]), f"{name}-ctl"
        places = [(str(network[10 + index]), 6818) for index in range(len(names))]
    nodes = tuple(Node(node, gpu, *place) for (node, gpu), place in zip(names, places, strict=True))
    return Plan(
        name=name,
        directory=directory,
        mode=mode,
        network="127.0.0.0/8" if network is None else str(network),
        host_address=host_address,
        controller_name=controller,
        controller_port=ports[0],
        nodes=nodes,
        link=link,
        accounting=accounting,
        requeue_delay=requeue_delay,
        node_timeout=node_timeout,
        settings=settings,
        accounting_port=ports[1],
        database_port=ports[2],
    )
