"""The thread on every rank that listens to rank 0, and ends the process when the world has ended."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from hvdtrain import record
from hvdtrain.launch import watchdog
from hvdtrain.launch.rendezvous import Address, Client, Message, Server
from hvdtrain.launch.watchdog import Watchdog
from tests.unit.starting import eventually
from tests.unit.test_rendezvous_file import dead_port

# How the thread ends here.
pytestmark = pytest.mark.filterwarnings("ignore:(?s)Exception in thread hvdtrain-watchdog.*SystemExit")


@dataclass
class Process:
    """What this process would have said, and the status that it would have ended with."""

    said: list[str] = field(default_factory=list)
    status: list[int] = field(default_factory=list)

    def leave(self, status: int) -> NoReturn:
        self.status.append(status)
        sys.exit()  # only the thread


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    """Instead of this one; with less patience than people need, and no run folder."""
    found = Process()
    monkeypatch.setattr(watchdog, "leave", found.leave)
    monkeypatch.setattr(watchdog, "say", found.said.append)
    monkeypatch.setattr(watchdog, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "GONE_SECONDS", 0.1)
    for name in (record.RUN_DIR_VARIABLE, record.ATTEMPT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return found


def answer(verb: str, message: Message) -> Message:
    return {"state": "run", "stack": False}


@pytest.fixture
def server() -> Iterator[Server]:
    result = Server("127.0.0.1", answer, lambda rank: None)
    yield result
    result.close()


def watch(address: Address, rank: int) -> Client:
    client = Client(address, rank, timeout=0.2)
    Watchdog(rank, "node2", client, 0.3, None)
    return client


def test_a_rank_0_that_never_answered_is_out_of_reach_not_dead(process: Process) -> None:
    """Debian's /etc/hosts gives a machine's own name to 127.0.1.1; others find nobody there."""
    address = Address("127.0.1.1", dead_port(), "s" * 32)
    # Any rank: rank 0, which has never heard of it, cannot speak for it.
    watch(address, rank=3)
    assert eventually(lambda: process.status == [1])
    assert process.said == [
        f"rank 3 on node2 cannot reach rank 0 at 127.0.1.1:{address.port}: its name leads to an address that other nodes do not "
        "reach (see /etc/hosts there), or a firewall stands between them; ending all other ranks"
    ]


def test_a_firewall_that_drops_what_is_sent(process: Process) -> None:
    with socket.socket() as deaf:  # the kernel accepts for it, and nobody answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        watch(Address("127.0.0.1", deaf.getsockname()[1], "s" * 32), rank=2)
        assert eventually(lambda: process.status == [1])
    assert "cannot reach rank 0" in process.said[0] and "frozen" not in process.said[0]


def test_a_rank_0_that_has_answered_once_is_dead(process: Process, server: Server) -> None:
    client = watch(server.address, rank=1)
    assert eventually(lambda: client.answered)
    server.close()
    client.close()  # as its end would end the connection
    assert eventually(lambda: process.status == [1])
    assert process.said[0].startswith("rank 0 died without a word")
