"""Which address and interface this node reaches the others by."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from hvdtrain.errors import UserError, nearest
from hvdtrain.world import World, another_node

# Addresses that look like a network and lead nowhere outside this node.
_INSIDE_ONLY = ("docker", "br-", "virbr", "veth", "podman", "cni")
# Nobody's address, in TEST-NET-3 (RFC 5737): the default route leads there.
_ELSEWHERE = "203.0.113.1"


@dataclass(frozen=True)
class Interface:
    """One network interface and its IPv4 address."""

    name: str
    address: str

    @property
    def stays_on_node(self) -> bool:
        """Whether traffic on it cannot leave this node."""
        return self.name == "lo" or self.address.startswith("127.") or self.name.startswith(_INSIDE_ONLY)


def interfaces() -> Mapping[str, Interface]:
    """Interfaces of this node that have an IPv4 address, by name, each with its first."""
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET:
                found[name] = Interface(name, address.address)
                break
    return found


def resolve(host: str) -> str:
    """The IPv4 address of `host`.

    Raises:
        UserError: the name does not resolve here.
    """
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UserError(
            f'host name "{host}" does not resolve on {socket.gethostname()} ({error}); every node must know every other by '
            "name: add it to DNS or /etc/hosts"
        ) from None


def towards(address: str) -> Interface:
    """The interface that the kernel routes to `address` by. Sends nothing: connecting a UDP socket only looks up the route.

    Raises:
        UserError: there is no route, or none of the interfaces has the address it starts from.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise UserError(f"{socket.gethostname()} has no route to {address} ({error})") from None
        source = probe.getsockname()[0]
    if source.startswith("127."):
        return Interface("lo", source)
    # An interface may have more than its first address, which `interfaces` has.
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == source for each in addresses):
            return Interface(name, source)
    raise UserError(f"no interface of {socket.gethostname()} has the address {source}, from which it reaches {address}")


def choose(wanted: str | None, peer: str | None) -> Interface:
    """The interface for Gloo: the one `wanted` by name, or the one that leads to `peer`, or loopback when there is no peer.

    Args:
        wanted: what the user set in HOROVOD_GLOO_IFACE, if anything.
        peer: address of another node of the world; None when all ranks are on this node.

    Raises:
        UserError: the wanted interface does not exist, or what was chosen cannot reach another node.
    """
    here = interfaces()
    if wanted:
        if wanted not in here:
            listed = ", ".join(f"{each.name} ({each.address})" for each in here.values())
            raise UserError(
                f"HOROVOD_GLOO_IFACE={wanted}: {socket.gethostname()} has no such interface with an IPv4 address; "
                f"it has {listed}{nearest(wanted, here)}. Unset the variable to let the route decide"
            )
        chosen = here[wanted]
    elif peer is None:
        return Interface("lo", "127.0.0.1")
    else:
        chosen = towards(peer)
    if peer is not None and chosen.stays_on_node:
        useful = ", ".join(each.name for each in here.values() if not each.stays_on_node) or "none"
        raise UserError(
            f"interface {chosen.name} ({chosen.address}) of {socket.gethostname()} does not leave the node, but the world "
            f"has ranks on other nodes; set HOROVOD_GLOO_IFACE to one of: {useful}"
        )
    return chosen


def own_address(world: World) -> str:
    """Where the other ranks of `world` reach this one.

    Raises:
        UserError: no address of this node leads to the others.
    """
    # Not its `nodes`: a rank of which no other node has the local rank takes them for one.
    if world.local_size == world.size:
        return "127.0.0.1"
    if peer := another_node(world):
        return choose(None, resolve(peer)).address
    # mpirun does not tell other nodes' names; the address of our own name is the one they know.
    address = resolve(socket.gethostname())
    outside = _outside() if address.startswith("127.") else None
    return address if outside is None else outside.address


def _outside() -> Interface | None:
    """The interface that other nodes most likely reach: what the user chose, that of the default route, or any that leaves here."""
    here = interfaces()
    found = [here.get(os.environ.get("HOROVOD_GLOO_IFACE", ""))]
    with contextlib.suppress(UserError):  # there may be no default route
        found.append(towards(_ELSEWHERE))
    return next((each for each in [*found, *here.values()] if each is not None and not each.stays_on_node), None)
