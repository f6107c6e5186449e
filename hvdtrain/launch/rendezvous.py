"""The meeting point of a world, served by rank 0: Horovod's key-value store for Gloo, and our own control channel.

One HTTP server, bound to one address, alive for one run. Every path starts with a secret that only the user can read
(a file of mode 0600), so nobody else on the network is answered. Horovod's C++ client sends the secret because
`hvdtrain build-horovod` teaches it to (see horovod_build.edits).

    GET|PUT|DELETE /<secret>/<scope>/<key>                     Gloo's store (see store.py)
    GET            /<secret>/<scope>/addresses/<rank>/<size>   what all others have put there for one rank
    POST           /<secret>/<verb>                            control: JSON objects (see control.py)
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hvdtrain.launch.store import Store

Message = dict[str, Any]

#: A problem that rank 0 published longer ago belongs to an earlier start. Generous: clocks of file servers differ.
FRESH_SECONDS = 120.0


@dataclass(frozen=True)
class Address:
    """Where the server listens, and the secret it answers to. Empty secret: rank 0 could not serve, `problem` says why."""

    host: str
    port: int
    secret: str
    problem: str = ""

    def publish(self, path: Path) -> None:
        """Write to `path`, readable by the user only; appears there complete or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(asdict(self), file)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> Address | None:
        """What rank 0 published, or None while there is nothing (complete) to read."""
        try:
            # Listing first makes an NFS client look again: it remembers for half a minute that a name was missing.
            os.listdir(path.parent)
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


class Server:
    """Rank 0's server, in a thread. `control` answers verbs; `gone` hears when a peer's connection ends."""

    def __init__(self, host: str, control: Callable[[str, Message], Message], gone: Callable[[int], None]) -> None:
        self._http = _HTTPServer((host, 0), _Handler)
        self._http.secret = secrets.token_hex(16)
        self._http.control = control
        self._http.gone = gone
        self.address = Address(host, self._http.server_address[1], self._http.secret)
        # The interval only delays close(): requests are answered as they come.
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, name="hvdtrain-rendezvous", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._http.shutdown()
        self._http.server_close()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    # All ranks connect at once; the default of 5 would make some wait for a retransmission.
    request_queue_size = 1024
    secret: str
    control: Callable[[str, Message], Message]
    gone: Callable[[int], None]

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.store = Store()

    def server_bind(self) -> None:
        # HTTPServer's own looks up the host's full name here: seconds on a node with slow DNS, and unused.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that dies breaks its connection; `gone` reports that, a traceback here would only add noise."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps a peer's connection open: its end tells that the peer died
    disable_nagle_algorithm = (
        True  # an answer is two small writes: without this each waits 40 ms for an acknowledgement
    )
    server: _HTTPServer
    _rank: int | None = None

    def _path(self) -> str | None:
        secret, _, rest = self.path.lstrip("/").partition("/")
        if hmac.compare_digest(secret.encode(), self.server.secret.encode()):
            return rest
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN)
        return None

    def do_GET(self) -> None:
        if (key := self._path()) is not None:
            value = self.server.store.get(key)
            self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        if (key := self._path()) is not None:
            self.server.store.put(key, self._body())
            self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        if (key := self._path()) is not None:
            self.server.store.delete(key)
            self._answer(HTTPStatus.OK)

    def do_POST(self) -> None:
        if (verb := self._path()) is not None:
            message = json.loads(self._body())
            self._rank = message["rank"]
            self._answer(HTTPStatus.OK, json.dumps(self.server.control(verb, message)).encode())

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        if self._rank is not None:
            self.server.gone(self._rank)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """No line on stderr for every request."""


class Client:
    """One rank's connection to the control channel; reconnects once if the server dropped it.

    Attributes:
        answered: whether rank 0 has ever answered.
    """

    def __init__(self, address: Address, rank: int, timeout: float = 3.0) -> None:
        self.address = address
        self.answered = False
        self._rank = rank
        self._timeout = timeout
        self._connection: HTTPConnection | None = None
        self._lock = threading.Lock()

    def send(self, verb: str, **message: Any) -> Message:
        """Send one message and return the answer.

        Raises:
            ConnectionError: nobody answers, or it is somebody else's server (a stale address).
        """
        body = json.dumps({"rank": self._rank, **message})
        with self._lock:
            for attempt in (1, 2):
                try:
                    if self._connection is None:
                        self._connection = HTTPConnection(self.address.host, self.address.port, timeout=self._timeout)
                    self._connection.request("POST", f"/{self.address.secret}/{verb}", body)
                    response = self._connection.getresponse()
                    text = response.read()
                    if response.status != HTTPStatus.OK:
                        raise ConnectionError(f"{self.address.host}:{self.address.port} answered {response.status}")
                    answer: Message = json.loads(text)
                    self.answered = True
                    return answer
                except (OSError, HTTPException, ValueError) as error:
                    self._drop()
                    if attempt == 2 or isinstance(error, TimeoutError):
                        raise ConnectionError(f"rank 0 at {self.address.host}:{self.address.port}: {error}") from error
        raise AssertionError("unreachable")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()


def exchange(address: Address, rank: int, size: int, value: str, seconds: float) -> list[str]:
    """`value` of every rank, in order of ranks, through the key-value store: before any framework can send.

    Rank 0, which serves, returns last: what it does next may keep its server's threads from running.

    Raises:
        TimeoutError: some rank has not given its value after `seconds`; says which.
    """
    deadline = time.monotonic() + seconds
    connection = HTTPConnection(address.host, address.port, timeout=seconds)
    with contextlib.closing(connection):

        def ask(method: str, key: str, body: str | None = None) -> tuple[int, bytes]:
            connection.request(method, f"/{address.secret}/exchange/{key}", body)
            response = connection.getresponse()
            return response.status, response.read()

        def collect(kind: str) -> list[str]:
            values: list[str] = []
            while len(values) < size:
                status, body = ask("GET", f"{kind}-{len(values)}")
                if status == HTTPStatus.OK:
                    values.append(body.decode())
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"rank {len(values)} said nothing within {seconds:g} s")
                else:
                    time.sleep(0.02)
            return values

        ask("PUT", f"value-{rank}", value)
        values = collect("value")
        if rank == 0:
            ask("PUT", "seen-0", "")
            collect("seen")
        else:
            # Without waiting for the answer, which may not come any more.
            connection.request("PUT", f"/{address.secret}/exchange/seen-{rank}", "")
    return values


def await_address(path: Path, try_to_join: Callable[[Address], Message | None], deadline: float) -> Message:
    """Wait until rank 0 has published an address that answers; a file left by an earlier run does not, so it is read again.

    Returns:
        What `try_to_join` returned; it returns None while the server does not answer.

    Raises:
        TimeoutError: `deadline` (of `time.monotonic`) passed; says what was seen last.
    """
    seen = "no file"
    while True:
        address = Address.read(path)
        if address is not None:
            seen = f"{address.host}:{address.port} does not answer"
            # What an earlier start of the same name left must not end this one.
            if address.problem and _age(path) < FRESH_SECONDS:
                return {"state": "refused", "problem": address.problem}
            answer = try_to_join(address)
            if answer is not None:
                return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 could not be reached through {path}: {seen}")
        time.sleep(0.1)


def _age(path: Path) -> float:
    """Seconds since `path` was written, by the clock of its file system: nodes' own clocks may be minutes apart."""
    written = path.stat().st_mtime
    try:
        with tempfile.TemporaryFile(dir=path.parent) as now:
            return os.fstat(now.fileno()).st_mtime - written
    except OSError:  # a full disk
        return time.time() - written
