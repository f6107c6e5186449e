"""Ranks in milliseconds: a process that has imported the frameworks forks one for each rank that a launcher starts.

    python server.py ADDRESS OWNER MODULE ...

Most of the time of a test that starts ranks went into importing TensorFlow, Keras and PyTorch in each of them, for up to ten
seconds. A rank that is forked here runs `hvdtrain.run` as the one that a launcher has started would: with its environment,
arguments, folder, standard streams and ignored signals, in a session of its own. What it is not: a child of its launcher. Tests of
launchers and faults start theirs cold.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from warm_client import PASSED_ON, read_at_start


@dataclass
class _Server:
    """Forks until its owner is gone, of which `owner` is a handle."""

    address: Path
    listener: socket.socket
    owner: int
    own: dict[str, str]
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    #: Ranks that run: process number by connection.
    ranks: dict[socket.socket, int] = field(default_factory=dict)

    def serve(self) -> dict[str, Any]:
        """The request that this process is to become; returns in a forked process only."""
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.selector.register(self.owner, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == self.owner:
                    self._leave()
                elif key.fileobj is self.listener:
                    if (request := self._take(self.listener.accept()[0])) is not None:
                        return request
                elif key.data is None:
                    self._gone(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._ended(key.fd, *key.data)

    def _leave(self) -> None:
        for connection in list(self.ranks):
            self._gone(connection)
        self.address.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are in it still, or it is gone
            self.address.parent.rmdir()
        os._exit(0)

    def _take(self, connection: socket.socket) -> dict[str, Any] | None:
        """Fork; None in the server itself."""
        length, handles, _, _ = socket.recv_fds(connection, 8, 4)
        with connection.makefile("rb") as stream:
            request: dict[str, Any] = json.loads(stream.read(int.from_bytes(length, "big")))
        fits = read_at_start(request["environment"]) == self.own
        pid = os.fork() if fits else 0
        if fits and not pid:
            self.selector.close()
            self.listener.close()
            os.close(self.owner)
            for other in [connection, *self.ranks]:
                other.close()
            _take_place(request, handles)
            return request
        for handle in handles:
            os.close(handle)
        connection.sendall(f"{pid}\n".encode())
        if not fits:
            connection.close()
            return None
        self.ranks[connection] = pid
        self.selector.register(connection, selectors.EVENT_READ, None)
        self.selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (connection, pid))
        return None

    def _ended(self, handle: int, connection: socket.socket, pid: int) -> None:
        """A rank has ended: so does the process that its launcher knows."""
        self.selector.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # that was killed first
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())

    def _gone(self, connection: socket.socket) -> None:
        """The launcher's process has ended, perhaps killed: so must the rank and whatever it started."""
        self.selector.unregister(connection)
        connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.ranks.pop(connection), signal.SIGKILL)


def _take_place(request: dict[str, Any], handles: list[int]) -> None:
    os.setsid()
    *streams, folder = handles
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
    os.fchdir(folder)
    sys.path[0] = os.getcwd()  # as with python -m
    for handle in handles:
        os.close(handle)
    os.environ.clear()
    os.environ.update(request["environment"])
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["environment"].get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # Python's own module does so by itself; PyTorch has one seed for all processes


def main() -> None:
    address, number, *modules = sys.argv[1:]
    owner = os.pidfd_open(int(number))
    own = read_at_start(dict(os.environ))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # as hvdtrain.run has it, before TensorFlow is imported
    from hvdtrain import late

    late.parts()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{address}.new")
    listener.listen(64)
    Path(f"{address}.new").rename(address)
    request = _Server(Path(address), listener, owner, own).serve()
    sys.argv = [sys.argv[0], *request["arguments"]]
    try:
        runpy.run_module("hvdtrain.run", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        _end(end.code)
    _end(0)


def _end(code: int | str | None) -> NoReturn:
    """As an interpreter ends, but that it frees no objects: that takes longer than many a rank has worked."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


main()
