"""Network namespaces: one per node and one for the switch between them.

The bridge lives in a namespace of its own, where the machine's firewall rules for forwarded traffic (Docker's, for one)
do not apply and from where deleting the namespace deletes every link. The machine itself is plugged in by one link.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.testcluster import tools
from hvdtrain.testcluster.errors import ClusterError
from hvdtrain.testcluster.plan import Plan

# Runs inside fresh UTS and mount namespaces. Arguments: host name, directory with the files for /etc, whether to have a
# /dev/shm of its own, program.
#
# Names are resolved from a hosts file mounted over /etc/hosts for the node alone, so the machine's own file is never
# edited. /dev/shm is per machine in a real cluster: shared, the "nodes" could see each other's memory segments.
_BECOME_NODE = """
hostname "$1" || exit 1
for file in hosts nsswitch.conf; do
    if [ -e "/etc/$file" ]; then mount --bind "$2/$file" "/etc/$file" || exit 1; fi
done
if [ "$3" = yes ]; then mount -t tmpfs -o mode=1777 tmpfs /dev/shm || exit 1; fi
shift 3
exec "$@"
"""
_PROBE = "ip link add probe0 type veth peer name probe1 && mount --bind /etc/hosts /etc/hosts && hostname probe"


def obstacle() -> str | None:
    """Why this machine does not let us make namespaces, None when it does."""
    argv = [tools.path("unshare"), "--net", "--uts", "--mount", tools.path("sh"), "-c", _PROBE]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip() or f"unshare ended with status {done.returncode}")


def taken_networks() -> list[ipaddress.IPv4Network]:
    """Networks that this machine has an address in or a route to."""
    links = json.loads(tools.call(["ip", "-4", "-json", "address"]) or "[]")
    routes = json.loads(tools.call(["ip", "-4", "-json", "route", "show", "table", "all"]) or "[]")
    texts = [f"{info['local']}/{info['prefixlen']}" for link in links for info in link.get("addr_info", [])]
    texts += [route["dst"] for route in routes if route["dst"] != "default"]
    return [ipaddress.IPv4Network(text, strict=False) for text in texts]


def existing(plan: Plan) -> list[str]:
    """Names of the plan that this machine has already."""
    found = [name for name in plan.namespaces if os.path.exists(f"/run/netns/{name}")]
    if os.path.exists(f"/sys/class/net/{plan.host_link}"):
        found.append(plan.host_link)
    return found


def create(plan: Plan) -> None:
    """Make the switch, the machine's link to it and every node's."""
    prefix = ipaddress.IPv4Network(plan.network).prefixlen
    switch = plan.switch_namespace
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "br0", "type", "bridge")
    _ip("-n", switch, "link", "set", "br0", "up")
    _ip("link", "add", plan.host_link, "type", "veth", "peer", "name", "host", "netns", switch)
    _ip("-n", switch, "link", "set", "host", "master", "br0", "up")
    _ip("address", "add", f"{plan.host_address}/{prefix}", "dev", plan.host_link)
    _ip("link", "set", plan.host_link, "up")
    for index, node in enumerate(plan.nodes):
        _ip("netns", "add", node.name)
        _ip("-n", node.name, "link", "add", "eth0", "type", "veth", "peer", "name", f"node{index}", "netns", switch)
        _ip("-n", switch, "link", "set", f"node{index}", "master", "br0", "up")
        _ip("-n", node.name, "address", "add", f"{node.address}/{prefix}", "dev", "eth0")
        _ip("-n", node.name, "link", "set", "lo", "up")
        _ip("-n", node.name, "link", "set", "eth0", "up")
        if plan.link is not None:
            shape = ["root", "tbf", "rate", plan.link, "burst", "256kb", "latency", "50ms"]
            tools.call(["tc", "-n", node.name, "qdisc", "add", "dev", "eth0", *shape])


def remove(namespaces: Sequence[str], host_link: str) -> None:
    """Undo `create`, or as much of it as had happened."""
    if os.path.exists(f"/sys/class/net/{host_link}"):
        _ip("link", "delete", host_link)
    for name in namespaces:
        if os.path.exists(f"/run/netns/{name}"):
            _ip("netns", "delete", name)
    # The kernel takes namespaces apart in the background.
    deadline = time.monotonic() + 5
    while os.path.exists(f"/sys/class/net/{host_link}"):
        if time.monotonic() > deadline:
            raise ClusterError(f"network link {host_link} is still there")
        time.sleep(0.02)


def _ip(*arguments: str) -> None:
    tools.call(["ip", *arguments])


def on_node(plan: Plan, name: str, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` as the machine `name`, one of the nodes.

    Not `ip netns exec`: that mounts a fresh /sys in which slurmd does not find control groups.
    """
    return [tools.path("nsenter"), f"--net=/run/netns/{name}", *_renamed(plan.directory, name, argv, on_node=True)]


def on_controller(plan: Plan, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` in this machine's network under the controller's name, with all names resolving."""
    return _renamed(plan.directory, plan.controller_name, argv, on_node=False)


def _renamed(directory: Path, name: str, argv: Sequence[str], *, on_node: bool) -> list[str]:
    etc = str(directory / ("etc-node" if on_node else "etc-machine"))
    script = [tools.path("sh"), "-c", _BECOME_NODE, "hvdtrain-node", name, etc, "yes" if on_node else "no"]
    return [tools.path("unshare"), "--uts", "--mount", *script, *argv]
