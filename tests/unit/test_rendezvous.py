"""The meeting point, over real sockets: who is answered, who is not, and who notices a death."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hvdtrain.launch.rendezvous import Client, Message, Server, exchange


class Meeting:
    """A server that answers every verb with what it was sent, and remembers whose connection ended."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Message]] = []
        self.gone: list[int] = []
        self.someone_gone = threading.Event()
        self.thawed = threading.Event()
        self.server = Server("127.0.0.1", self._control, self._gone)
        self.address = self.server.address

    def _control(self, verb: str, message: Message) -> Message:
        self.heard.append((verb, message))
        if verb == "freeze":
            self.thawed.wait(5)
        if verb == "crash":
            raise KeyError(verb)
        return {"verb": verb, "back": message}

    def _gone(self, rank: int) -> None:
        self.gone.append(rank)
        self.someone_gone.set()

    def http(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """One request, as Gloo's store makes it; `path` follows the address."""
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=5)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def closing() -> Iterator[list[threading.Thread]]:
    """Servers that are being closed, which takes each half a second: all at once, at the end."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join()


def meeting_of(closing: list[threading.Thread]) -> Iterator[Meeting]:
    result = Meeting()
    yield result
    closing.append(threading.Thread(target=result.server.close))
    closing[-1].start()


@pytest.fixture
def meeting(closing: list[threading.Thread]) -> Iterator[Meeting]:
    yield from meeting_of(closing)


@pytest.fixture
def other(closing: list[threading.Thread]) -> Iterator[Meeting]:
    yield from meeting_of(closing)


def test_the_store_keeps_gives_and_forgets(meeting: Meeting) -> None:
    path = f"/{meeting.address.secret}/global/rank_0"
    value = bytes(range(256))
    assert meeting.http("GET", path) == (404, b"")
    assert meeting.http("PUT", path, value) == (200, b"")
    assert meeting.http("GET", path) == (200, value)
    assert meeting.http("GET", path.replace("global", "local")) == (404, b"")
    assert meeting.http("PUT", path, b"") == (200, b"")
    assert meeting.http("GET", path) == (200, b"")
    assert meeting.http("DELETE", path) == (200, b"")
    assert meeting.http("GET", path) == (404, b"")
    # Gloo's ranks all delete the scope at the end.
    assert meeting.http("DELETE", path) == (200, b"")


def test_one_connection_carries_many_requests(meeting: Meeting) -> None:
    meeting.http("PUT", f"/{meeting.address.secret}/s/key", b"value")
    connection = http.client.HTTPConnection(meeting.address.host, meeting.address.port, timeout=5)
    began = time.monotonic()
    for _ in range(50):
        connection.request("GET", f"/{meeting.address.secret}/s/key")
        assert connection.getresponse().read() == b"value"
    connection.close()
    # 40 ms each if the second part of an answer waited for the first to be acknowledged.
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
@pytest.mark.parametrize("secret", ["", "0" * 32, "cut", "longer", "UPPER", "none"])
def test_a_wrong_secret_is_told_nothing_and_changes_nothing(meeting: Meeting, method: str, secret: str) -> None:
    right = meeting.address.secret
    meeting.http("PUT", f"/{right}/s/key", b"kept")
    wrong = {"cut": right[:-1], "longer": right + "0", "UPPER": right.upper() + "X", "none": ""}.get(secret, secret)
    path = "/s/key" if secret == "none" else f"/{wrong}/s/key"
    assert meeting.http(method, path, b'{"rank": 0}' if method in ("PUT", "POST") else None) == (403, b"")
    assert meeting.http("GET", f"/{right}/s/key") == (200, b"kept")
    assert meeting.heard == []


def test_every_server_has_a_secret_of_its_own(meeting: Meeting, other: Meeting) -> None:
    assert len(meeting.address.secret) >= 32
    assert other.address.secret != meeting.address.secret


def test_control_round_trip(meeting: Meeting) -> None:
    client = Client(meeting.address, rank=3)
    answer = client.send("beat", step=7, activity="Rückwärts", nested={"a": [1, None]})
    sent = {"rank": 3, "step": 7, "activity": "Rückwärts", "nested": {"a": [1, None]}}
    assert answer == {"verb": "beat", "back": sent}
    assert meeting.heard == [("beat", sent)]
    client.close()


def test_a_client_with_another_secret_is_refused(meeting: Meeting) -> None:
    client = Client(replace(meeting.address, secret="f" * 32), rank=0)
    with pytest.raises(ConnectionError, match=f"rank 0 at 127.0.0.1:{meeting.address.port}.*403"):
        client.send("join")
    assert meeting.heard == []


def test_a_server_that_fails_to_answer_is_a_connection_error(meeting: Meeting) -> None:
    client = Client(meeting.address, rank=0)
    with pytest.raises(ConnectionError, match="rank 0 at"):
        client.send("crash")
    assert len(meeting.heard) == 2  # tried once more, and no more than that
    assert client.send("beat")["verb"] == "beat"
    client.close()


def test_a_dropped_connection_is_made_anew(meeting: Meeting) -> None:
    client = Client(meeting.address, rank=5)
    client.send("beat", n=1)
    assert client._connection is not None and client._connection.sock is not None
    client._connection.sock.shutdown(2)
    assert client.send("beat", n=2)["back"]["n"] == 2
    assert [message["n"] for _, message in meeting.heard] == [1, 2]
    client.close()


def test_nobody_at_the_address(meeting: Meeting) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=f"rank 0 at 127.0.0.1:{port}"):
        Client(replace(meeting.address, port=port), rank=1).send("join")
    assert time.monotonic() - began < 2.0


def test_a_closed_server_answers_nobody_and_frees_its_port() -> None:
    server = Meeting().server
    server.close()
    with pytest.raises(ConnectionError):
        Client(server.address, rank=1).send("join")
    with socket.socket() as again:
        again.bind((server.address.host, server.address.port))


def test_a_server_that_is_frozen_is_waited_for_once(meeting: Meeting) -> None:
    """The watchdog tells a frozen rank 0 from a dead one by the time-out beneath the error."""
    client = Client(meeting.address, rank=1, timeout=0.2)
    began = time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        client.send("freeze")
    meeting.thawed.set()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert time.monotonic() - began >= 0.2
    assert len(meeting.heard) == 1


def test_a_client_that_leaves_is_noticed(meeting: Meeting) -> None:
    client = Client(meeting.address, rank=4)
    client.send("beat")
    assert not meeting.someone_gone.wait(0.05)
    client.close()
    assert meeting.someone_gone.wait(2)
    assert meeting.gone == [4]


def test_gloos_connections_are_nobodys(meeting: Meeting) -> None:
    meeting.http("GET", f"/{meeting.address.secret}/s/key")
    assert not meeting.someone_gone.wait(0.05)


PEER = """
import sys, time
from hvdtrain.launch.rendezvous import Address, Client
client = Client(Address(sys.argv[1], int(sys.argv[2]), sys.argv[3]), rank=6)
client.send("beat")
print("sent", flush=True)
time.sleep(60)
"""


def test_a_peer_that_is_killed_is_noticed_at_once(meeting: Meeting) -> None:
    place = (meeting.address.host, str(meeting.address.port), meeting.address.secret)
    with subprocess.Popen([sys.executable, "-c", PEER, *place], stdout=subprocess.PIPE) as peer:
        try:
            assert peer.stdout is not None and peer.stdout.readline() == b"sent\n"
            assert meeting.gone == []
        finally:
            peer.kill()
        assert meeting.someone_gone.wait(2)
    assert meeting.gone == [6]


def test_64_clients_at_once(meeting: Meeting) -> None:
    clients = [Client(meeting.address, rank) for rank in range(64)]
    together = threading.Barrier(64)

    def beat(client: Client) -> int:
        together.wait()
        return sum(client.send("beat", n=number)["back"]["rank"] for number in range(5))

    began = time.monotonic()
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(beat, clients)) == [5 * rank for rank in range(64)]
    # A listening queue that is too short would cost a retransmission: a second.
    assert time.monotonic() - began < 5.0
    assert len(meeting.heard) == 320
    for client in clients:
        client.close()


def test_exchange_gives_everybody_everything_and_rank_0_leaves_last() -> None:
    server = Server("127.0.0.1", lambda verb, message: {}, lambda rank: None)
    left: list[int] = []

    def take_part(rank: int) -> list[str]:
        time.sleep(0.1 * (rank == 2))
        values = exchange(server.address, rank, 3, f"value {rank}", 5.0)
        left.append(rank)
        return values

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(take_part, range(3))) == [["value 0", "value 1", "value 2"]] * 3
    assert set(left) == {0, 1, 2}
    with pytest.raises(TimeoutError, match=r"rank 3 said nothing within 0\.1 s"):
        exchange(server.address, 0, 4, "again", 0.1)
    server.close()
