"""The edits as a user meets them, in the installed Horovod with real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hvdtrain.launch.rendezvous import Server
from hvdtrain.launch.store import Store as OwnStore

pytestmark = pytest.mark.ranks


class Store(ThreadingHTTPServer):
    """As much of a rendezvous server as Gloo needs: a dictionary of paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.values: dict[str, bytes] = {}
        self.asked: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    server: Store

    def do_PUT(self) -> None:
        self.server.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_GET(self) -> None:
        value = self.server.values.get(self.path)
        self._answer(200 if value is not None else 404, value or b"")

    def do_DELETE(self) -> None:
        self._answer(200)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.server.asked.add(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Not into the test's output."""


@pytest.fixture
def store() -> Iterator[Store]:
    server = Store()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def world(port: int, program: str, size: int, **extra: str) -> list[str]:
    """The output of each rank of ``program``."""
    ranks = []
    for rank in range(size):
        place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0, "CROSS_SIZE": 1,
                 "HOSTNAME": "localhost", "GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_IFACE": "lo", "CONTROLLER": "gloo",
                 "GLOO_RENDEZVOUS_PORT": port, "CPU_OPERATIONS": "gloo"}  # fmt: skip
        environment = {**os.environ, **{f"HOROVOD_{name}": str(value) for name, value in place.items()}, **extra}
        ranks.append(subprocess.Popen([sys.executable, "-c", program], env=environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))  # fmt: skip
    try:
        return [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()


SUM = "import torch, horovod.torch as h; h.init(); print(h.allreduce(torch.ones(1), op=h.Sum).item())"


def test_every_request_carries_the_token(store: Store) -> None:
    outputs = world(store.server_port, SUM, 2, HVDTRAIN_RENDEZVOUS_TOKEN="s3cret")
    assert [output.strip() for output in outputs] == ["2.0", "2.0"]
    assert store.asked
    assert [path for path in store.asked if not path.startswith("/s3cret/")] == []


def test_the_stall_inspector_names_the_missing_rank_under_gloo(store: Store) -> None:
    program = """
import time, torch, horovod.torch as h
h.init()
if h.rank() == 1:
    time.sleep(4)
h.allreduce(torch.ones(1), name="late")
"""
    outputs = world(store.server_port, program, 2, HOROVOD_STALL_CHECK_TIME_SECONDS="1", HVDTRAIN_RENDEZVOUS_TOKEN="")
    assert "Missing ranks" in outputs[0]
    assert "1: [allreduce.late]" in outputs[0]
    assert all(path.startswith(("/global", "/local", "/cross")) for path in store.asked), "no token, no component"


def test_a_rank_is_handed_the_addresses_of_all_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    given = OwnStore.get

    def get(self: OwnStore, path: str) -> bytes | None:
        value = given(self, path)
        if value is not None:
            asked.append(path)
        return value

    monkeypatch.setattr(OwnStore, "get", get)
    program = """
import torch, horovod.torch as h
h.init()
print(h.allgather(torch.tensor([h.rank()])).tolist(), h.allreduce(torch.ones(1), op=h.Sum).item())
"""
    server = Server("127.0.0.1", lambda verb, message: {}, lambda rank: None)
    try:
        token = server.address.secret
        outputs = world(
            server.address.port, program, 4, HVDTRAIN_RENDEZVOUS_TOKEN=token, HVDTRAIN_RENDEZVOUS_AT_ONCE="1"
        )
    finally:
        server.close()
    assert [output.strip() for output in outputs] == ["[0, 1, 2, 3] 4.0"] * 4
    # In each mesh every rank once to see whether all are there, and once for the value.
    meshes = {path.split("/")[0] for path in asked}
    assert {"global", "local_localhost"} <= meshes
    assert Counter(asked) == Counter({f"{mesh}/addresses/{rank}/4": 2 for mesh in meshes for rank in range(4)})
