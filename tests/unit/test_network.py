"""Which interface the ranks meet over, on this machine's real ones."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hvdtrain.errors import UserError
from hvdtrain.launch import network, session
from hvdtrain.launch.network import Interface
from hvdtrain.launch.rendezvous import Address
from hvdtrain.world import World, detect

# TEST-NET-3 (RFC 5737): an address of another node that nobody has.
ELSEWHERE = "203.0.113.1"


def test_ranks_on_one_node_meet_on_loopback() -> None:
    assert network.choose(None, None) == Interface("lo", "127.0.0.1")


def test_interfaces_of_this_machine_have_their_own_addresses() -> None:
    here = network.interfaces()
    assert here["lo"] == Interface("lo", "127.0.0.1")
    assert all(name == each.name and each.address.count(".") == 3 for name, each in here.items())


def test_the_users_interface_is_taken() -> None:
    assert network.choose("lo", None) == Interface("lo", "127.0.0.1")


def test_an_unknown_interface_lists_what_there_is_and_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        network.choose("loo", ELSEWHERE)
    message = str(caught.value)
    for word in ("HOROVOD_GLOO_IFACE=loo", socket.gethostname(), 'did you mean "lo"?', "Unset the variable"):
        assert word in message
    assert all(f"{each.name} ({each.address})" in message for each in network.interfaces().values())


def test_loopback_is_refused_when_ranks_are_on_other_nodes() -> None:
    with pytest.raises(UserError) as caught:
        network.choose("lo", ELSEWHERE)
    message = str(caught.value)
    assert "lo (127.0.0.1)" in message and "does not leave the node" in message
    offered = message.rpartition("one of: ")[2]
    assert offered == (", ".join(n for n, each in network.interfaces().items() if not each.stays_on_node) or "none")


def test_a_peer_whose_name_leads_to_loopback_is_refused() -> None:
    """Debian's /etc/hosts gives a machine's own name to 127.0.1.1; as another node's address that is a mistake."""
    with pytest.raises(UserError, match="does not leave the node"):
        network.choose(None, "127.0.1.1")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])
def test_towards_loopback(address: str) -> None:
    assert network.towards(address).name == "lo"


def test_towards_an_own_address_finds_an_interface_that_exists() -> None:
    outside = [each for each in network.interfaces().values() if not each.stays_on_node]
    for each in outside:
        # The kernel routes to its own addresses by loopback, but starts from the address itself.
        assert network.towards(each.address) == each
        assert network.choose(None, each.address) == each


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("192.168.1.5", Interface("eth0", "192.168.1.5")),
        ("10.0.0.7", Interface("eth0", "10.0.0.7")),
        ("10.1.0.7", Interface("ib0", "10.1.0.7")),
        ("10.9.9.9", None),
    ],
)
def test_an_interface_may_have_several_addresses(
    source: str, expected: Interface | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Probe:
        """Looks up the route and finds that it starts from `source`."""

        def __init__(self, *given: Any) -> None: ...

        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *given: Any) -> None: ...

        def connect(self, address: tuple[str, int]) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return source, 9

    both = [SimpleNamespace(family=socket.AF_INET, address=each) for each in ("192.168.1.5", "10.0.0.7")]
    here = {
        "lo": [SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")],
        "eth0": [SimpleNamespace(family=socket.AF_PACKET, address="02:00:00:00:00:01"), *both],
        "ib0": [SimpleNamespace(family=socket.AF_INET, address="10.1.0.7")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: here)
    monkeypatch.setattr(socket, "socket", Probe)
    if expected is None:
        with pytest.raises(UserError, match=r"no interface of .* has the address 10\.9\.9\.9"):
            network.towards(ELSEWHERE)
    else:
        assert network.towards(ELSEWHERE) == network.choose(None, ELSEWHERE) == expected


@pytest.mark.parametrize(
    ("name", "address", "stays"),
    [
        ("lo", "127.0.0.1", True),
        ("eth0", "127.0.0.1", True),
        ("docker0", "172.17.0.1", True),
        ("br-5f3a", "172.18.0.1", True),
        ("virbr0", "192.168.122.1", True),
        ("veth12ab", "10.1.2.3", True),
        ("eth0", "10.0.0.7", False),
        ("ib0", "10.1.0.7", False),
        ("bond0", "10.0.0.7", False),
        ("enp5s0f1", "192.168.1.5", False),
    ],
)
def test_interfaces_that_lead_nowhere(name: str, address: str, stays: bool) -> None:
    assert Interface(name, address).stays_on_node is stays


@pytest.mark.parametrize(
    ("procid", "localid", "nodeid", "per_node", "expected"),
    [
        (0, 0, 0, "2,1", "10.0.0.7 towards b"),
        # No other node has its local rank, and yet there is another node.
        (1, 1, 0, "2,1", "10.0.0.7 towards b"),
        (2, 0, 1, "2,1", "10.0.0.7 towards a"),
        (1, 1, 0, "2", "127.0.0.1"),
    ],
)
def test_the_address_of_a_rank_leads_to_its_node_from_others(
    procid: int, localid: int, nodeid: int, per_node: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ["a", "b"][: per_node.count(",") + 1]
    variables = {"PROCID": procid, "LOCALID": localid, "NODEID": nodeid, "STEP_ID": 0, "STEP_TASKS_PER_NODE": per_node}
    variables |= {"STEP_NUM_TASKS": sum(map(int, per_node.split(","))), "STEP_NODELIST": ",".join(nodes)}
    environ = {f"SLURM_{name}": str(value) for name, value in variables.items()} | {"SLURMD_NODENAME": nodes[nodeid]}
    monkeypatch.setenv("SLURM_STEP_NODELIST", environ["SLURM_STEP_NODELIST"])
    monkeypatch.setattr(network, "resolve", lambda host: host)
    monkeypatch.setattr(network, "choose", lambda wanted, peer: Interface("eth0", f"10.0.0.7 towards {peer}"))
    assert network.own_address(detect(environ)) == expected


@pytest.mark.parametrize(
    ("own_name", "route", "wanted", "expected"),
    [
        ("10.0.0.7", "10.0.0.9", None, "10.0.0.7"),
        # As Debian's /etc/hosts has it: an interface that leaves the node, best that of the default route.
        ("127.0.1.1", "10.0.0.9", None, "10.0.0.9"),
        ("127.0.1.1", None, None, "10.1.0.7"),
        ("127.0.1.1", "172.17.0.1", None, "10.1.0.7"),
        ("127.0.1.1", "10.0.0.9", "ib0", "10.1.0.7"),
        ("127.0.1.1", "10.0.0.9", "nope", "10.0.0.9"),
    ],
)
def test_the_address_of_a_node_whose_name_stays_at_home(
    own_name: str, route: str | None, wanted: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [Interface("lo", "127.0.0.1"), Interface("docker0", "172.17.0.1"), Interface("ib0", "10.1.0.7")]
    here.append(Interface("eth0", "10.0.0.9"))

    def towards(address: str) -> Interface:
        if route is None:
            raise UserError("no route")
        return next(each for each in here if each.address == route)

    monkeypatch.setenv("HOROVOD_GLOO_IFACE", wanted or "")
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    monkeypatch.setattr(network, "resolve", lambda host: own_name)
    monkeypatch.setattr(network, "interfaces", lambda: {each.name: each for each in here})
    monkeypatch.setattr(network, "towards", towards)
    # mpirun tells no names of other nodes.
    world = World(0, 4, 0, 2, 0, 2, "node1", "cpu", "mpirun")
    assert network.own_address(world) == expected
    # There rank 0 serves the control channel.
    served: list[str] = []

    def serve(host: str, control: Any, gone: Any) -> SimpleNamespace:
        served.append(host)
        return SimpleNamespace(address=Address(host, 4711, "s"))

    monkeypatch.setattr(session, "Server", serve)
    assert session.Session(world, "torch")._open_control().host == expected
    assert served == [expected]


def test_resolve() -> None:
    assert network.resolve("localhost") == "127.0.0.1"
    assert network.resolve("198.51.100.7") == "198.51.100.7"


def test_a_host_that_does_not_resolve_is_named() -> None:
    # RFC 6761: names under .invalid never resolve.
    with pytest.raises(UserError) as caught:
        network.resolve("node7.invalid")
    for word in ('"node7.invalid"', socket.gethostname(), "/etc/hosts"):
        assert word in str(caught.value)
