"""The state file: what a cluster is made of, written before it exists so that a killed `up` can be undone."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hvdtrain.testcluster.errors import ClusterError
from hvdtrain.testcluster.plan import Plan
from hvdtrain.testcluster.process import Process

_FILE = "state.json"
_ASIDE = f"{_FILE}.new"


@dataclass
class State:
    """A plan and how far it has been carried out."""

    plan: Plan
    namespaces: list[str] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    ready: bool = False
    starter: Process | None = None  # the `up` at work, None once it is done

    def save(self) -> None:
        """Write aside, then rename: a reader never sees half a file."""
        values = {
            "plan": self.plan.as_json(),
            "namespaces": self.namespaces,
            "processes": [asdict(process) for process in self.processes],
            "ready": self.ready,
            "starter": asdict(self.starter) if self.starter else None,
        }
        aside = self.plan.directory / _ASIDE
        aside.write_text(json.dumps(values, indent=1) + "\n")
        aside.rename(self.plan.directory / _FILE)

    def add(self, process: Process) -> Process:
        """Record a process that was just started."""
        self.processes.append(process)
        self.save()
        return process


def load(directory: Path) -> State | None:
    """The state of the cluster in `directory`, None when there is none."""
    try:
        values = json.loads((directory / _FILE).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ClusterError(f"{directory / _FILE} cannot be read: {error}") from error
    processes = [Process(**process) for process in values["processes"]]
    starter = Process(**values["starter"]) if values["starter"] else None
    return State(Plan.from_json(values["plan"]), values["namespaces"], processes, values["ready"], starter)


def forget(directory: Path) -> None:
    """Delete the state file alone."""
    (directory / _FILE).unlink()


def forget_unborn(directory: Path) -> bool:
    """Delete a directory in which an `up` was interrupted before it could write its first state; whether it was one."""
    if not directory.is_dir() or {path.name for path in directory.iterdir()} - {_ASIDE}:
        return False
    (directory / _ASIDE).unlink(missing_ok=True)
    directory.rmdir()
    return True


@contextmanager
def machine_lock() -> Iterator[None]:
    """One at a time on this machine, for choosing addresses and names.

    A directory that always exists is locked instead of a file of our own, which would stay behind.
    """
    descriptor = os.open("/run", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
