"""The file that leads to rank 0: private, never half there, and no trap when it is old."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.launch.rendezvous import Address, Client, Message, Server, await_address


def ready(verb: str, message: Message) -> Message:
    return {"state": "ready", "verb": verb}


def ignore(rank: int) -> None:
    pass


def join(address: Address) -> Message | None:
    """As a rank joins: None while the server does not answer."""
    client = Client(address, rank=1)
    try:
        return client.send("join")
    except ConnectionError:
        return None
    finally:
        client.close()


def dead_port() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])


def test_what_is_published_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "start-1"
    address = Address("10.0.0.7", 4711, "s" * 32)
    address.publish(path)
    assert Address.read(path) == address
    Address("", 0, "", "no interface").publish(path)
    assert Address.read(path) == Address("", 0, "", "no interface")
    assert [each.name for each in path.parent.iterdir()] == ["start-1"]


def test_the_secret_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "start-1"
    path.write_text("old")
    path.chmod(0o644)
    Address("10.0.0.7", 4711, "s" * 32).publish(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    path = tmp_path / "start-1"
    addresses = [Address("h" * 5000, 1, "a" * 32), Address("g" * 20000, 2, "b" * 32)]
    addresses[0].publish(path)
    end = threading.Event()

    def publish() -> None:
        while not end.is_set():
            for address in addresses:
                address.publish(path)

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        seen = [Address.read(path) for _ in range(500)]
    finally:
        end.set()
        writer.join()
    assert set(seen) == set(addresses)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", '{"host": "h"}', '{"host": "h", "port": 1, "secret": "", "x": 1}']
)
def test_what_is_not_an_address_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "start-1"
    path.write_text(text)
    assert Address.read(path) is None


def test_no_file_is_none(tmp_path: Path) -> None:
    assert Address.read(tmp_path / "start-1") is None
    assert Address.read(tmp_path / "no" / "folder") is None


def soon(seconds: float, action: Any) -> threading.Thread:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    result = Server("127.0.0.1", ready, ignore)
    yield result
    result.close()


@pytest.fixture(scope="module")
def somebody() -> Iterator[Server]:
    """A server of somebody else, who answers to another secret."""
    result = Server("127.0.0.1", lambda verb, message: {"state": "wrong"}, ignore)
    yield result
    result.close()


def test_a_rank_waits_until_rank_0_has_published(tmp_path: Path, server: Server) -> None:
    path = tmp_path / "later" / "start-1"
    timer = soon(0.15, lambda: server.address.publish(path))
    assert await_address(path, join, time.monotonic() + 5) == {"state": "ready", "verb": "join"}
    timer.join()


@pytest.mark.parametrize("old", ["dead port", "another server", "half a file"])
def test_an_old_file_is_passed_over_until_the_new_one_comes(
    tmp_path: Path, old: str, server: Server, somebody: Server
) -> None:
    path = tmp_path / "start-1"
    stale = {
        "dead port": Address("127.0.0.1", dead_port(), "s" * 32),
        "another server": Address("127.0.0.1", somebody.address.port, "s" * 32),
    }
    if old in stale:
        stale[old].publish(path)
    else:
        path.write_text(json.dumps({"host": "127.0.0.1"}))
    timer = soon(0.25, lambda: server.address.publish(path))
    began = time.monotonic()
    assert await_address(path, join, time.monotonic() + 5) == {"state": "ready", "verb": "join"}
    assert time.monotonic() - began >= 0.2
    timer.join()


def test_a_rank_0_that_cannot_serve_says_why_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "start-1"
    Address("127.0.0.1", 0, "", "no interface leads to node2").publish(path)
    answer = await_address(path, join, time.monotonic() + 5)
    assert answer == {"state": "refused", "problem": "no interface leads to node2"}


@pytest.mark.parametrize("file", [True, False])
def test_the_deadline_says_what_was_seen_last(tmp_path: Path, file: bool) -> None:
    path = tmp_path / "start-1"
    port = dead_port()
    if file:
        Address("127.0.0.1", port, "s" * 32).publish(path)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        await_address(path, join, began + 0.2)
    assert 0.2 <= time.monotonic() - began < 3.0
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith(f"127.0.0.1:{port} does not answer" if file else "no file")
