"""The rank that its launcher started, while a warm process does its work."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import FrameType

#: Read by Python or by a library when it starts or is imported: a warm process can serve those of its own values only.
READ_AT_START = ("PYTHON", "OMP_", "OPENBLAS_", "KERAS_", "TF_", "CUDA_", "XLA_", "TORCH", "LANG", "LC_")
#: Of these, what changes no result, is the default, or is made up for.
_HARMLESS = {("TF_CPP_MIN_LOG_LEVEL", level) for level in "0123"} | {
    ("KERAS_BACKEND", "tensorflow"),
    ("PYTHONWARNINGS", "ignore"),
}
#: Set by PyTorch, in a process of pytest as in a rank, and never read at its start.
_WRITTEN = {"TORCHINDUCTOR_CACHE_DIR"}
PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)


def read_at_start(environment: dict[str, str]) -> dict[str, str]:
    """What must be the same in a rank and in the warm process that becomes it."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name not in _WRITTEN and (name, value) not in _HARMLESS
    }


def become_the_rank(servers: str) -> None:
    """Never returns where a warm process has taken the rank; else this process goes on to be it.

    Args:
        servers: for each set of frameworks, with a comma between, two addresses with a colon between. Rank 0 comes from the first,
            all others from the second: they are two interpreters with two seeds of hash(), so that ranks differ in the order of
            their sets, as ranks that were started cold do.
    """
    rank = next((os.environ[name] for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ), "0")
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    for pair in servers.split(","):
        _ask(pair.split(":")[0 if rank == "0" else 1])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def _ask(address: str) -> None:
    """Returns where this warm process has another environment."""
    ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    request = {"arguments": sys.orig_argv[3:], "environment": dict(os.environ), "ignored": ignored}
    text = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    folder = os.open(".", os.O_PATH)
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2, folder])
    os.close(folder)
    connection.sendall(text)
    answers = connection.makefile("r")
    pid = int(answers.readline())
    if not pid:
        connection.close()
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(pid, number)

    for number in PASSED_ON:
        if number not in ignored:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = int(answers.readline())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
