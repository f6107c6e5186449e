"""Daemons: started detached, recorded so that exactly they can be ended later."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.testcluster.errors import ClusterError

# In the environment of every daemon (never of a client): finds a daemon that died before it could be recorded, and
# the step daemons that slurmd starts.
MARKER = "HVDTRAIN_TESTCLUSTER_DAEMON"

# Kept so that daemons of this very process are reaped instead of staying behind as zombies.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same number by when it started (clock ticks since boot)."""

    role: str
    pid: int
    started: int


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, start time) of a process, None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[19])


def identify(role: str, pid: int) -> Process | None:
    """The running process `pid`, None when there is none."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else Process(role, pid, stat[2])


def alive(process: Process) -> bool:
    """Whether it runs still (a zombie does not)."""
    for child in _children:
        if child.pid == process.pid:
            child.poll()
    return identify(process.role, process.pid) == process


def spawn(role: str, argv: Sequence[str], log: Path, env: Mapping[str, str], directory: Path) -> Process:
    """Start a daemon in a session of its own, with both outputs appended to `log`."""
    with open(log, "ab") as output:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**env, MARKER: str(directory)},
            start_new_session=True,
        )
    _children.append(child)
    process = identify(role, child.pid)
    if process is None:
        raise ClusterError(f"{role} ended at once")
    return process


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def find_marked(directory: Path, slurm_conf: Path) -> set[int]:
    """Daemons of the cluster in `directory`, and the jobs that they run.

    SLURMD_NODENAME exists in jobs only, so a shell that merely uses the cluster is not among them.
    """
    marker = f"{MARKER}={directory}".encode()
    conf = f"SLURM_CONF={slurm_conf}".encode()
    found = set()
    for pid in _pids():
        variables = _environment(pid)
        in_job = conf in variables and any(one.startswith(b"SLURMD_NODENAME=") for one in variables)
        if marker in variables or in_job:
            found.add(pid)
    return found


def find_in_namespaces(names: Sequence[str]) -> set[int]:
    """Processes whose network namespace is one of `names`."""
    wanted = set()
    for name in names:
        try:
            stat = os.stat(f"/run/netns/{name}")
        except OSError:
            continue
        wanted.add((stat.st_dev, stat.st_ino))
    found = set()
    for pid in _pids() if wanted else []:
        try:
            stat = os.stat(f"/proc/{pid}/ns/net")
        except OSError:
            continue
        if (stat.st_dev, stat.st_ino) in wanted:
            found.add(pid)
    return found


def descendants(roots: set[int]) -> set[int]:
    """`roots` and everything below them in the process tree."""
    parents = {pid: stat[1] for pid in _pids() if (stat := _stat(pid)) is not None}
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def end_all(find: Callable[[], set[int]], patience: float = 10) -> set[int]:
    """Kill what `find` returns until it returns nothing; the numbers of those that would not go.

    SIGKILL at once: everything they could still write is about to be deleted.
    """
    deadline = time.monotonic() + patience
    seen: dict[int, Process] = {}
    while True:
        for pid in find():
            process = identify("", pid)
            if process is not None:
                seen[pid] = process
        left = {process for process in seen.values() if alive(process)}
        if not left or time.monotonic() > deadline:
            return {process.pid for process in left}
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)
