"""`hvdtrain doctor --on-nodes N`: the checks of a node as tasks of a SLURM job, and what only several nodes together show."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdtrain import record, world
from hvdtrain.doctor.check import failed, ok, warning
from hvdtrain.errors import UserError
from hvdtrain.launch import network
from hvdtrain.site import commands

_MEET_SECONDS = 20.0
_SKEW_SECONDS = 2.0


def ask(nodes: int, folder: Path, options: Sequence[str], seconds: float = 600.0) -> list[dict[str, Any]]:
    """Run the node checks on `nodes` nodes; their outcomes, each with its node, and those of all together.

    Raises:
        UserError: SLURM does not run the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder.absolute() / f".hvdtrain-doctor-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    argv = ["srun", f"--nodes={nodes}", "--ntasks-per-node=1", "--job-name=hvdtrain-doctor", "--mpi=none", *options]
    argv += [sys.executable, "-m", "hvdtrain.doctor", "--out", str(folder.absolute()), "--report-to", str(place)]
    try:
        done = subprocess.run(
            argv, env=commands.clean_environment(), capture_output=True, text=True, timeout=seconds, check=False
        )
        found = [value for path in sorted(place.glob("*.json")) if (value := record.read_json(path)) is not None]
        if not found:
            raise UserError(f"no node has answered; srun said:\n  {done.stderr.strip() or done.returncode}")
        return [*_each(found), *_together(found, nodes, folder)]
    except subprocess.TimeoutExpired:
        raise UserError(f"SLURM did not run the job within {seconds:.0f} s; is the queue full?") from None
    except FileNotFoundError:
        raise UserError("srun is not installed here: --on-nodes needs a SLURM cluster") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def report(place: Path, outcomes: list[dict[str, Any]]) -> None:
    """On a node: meet the others, and write down what was found."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    first = world.slurm_task() in (None, 0)
    with _listening(place) if first else contextlib.nullcontext():
        problem = _meet(place)
        own = place / f"{node}.json"
        told = time.time()
        record.write_json(own, {"node": node, "problem": problem, "outcomes": outcomes})
        # Against the clock of the file system, which all nodes share, clocks of nodes can be compared.
        record.write_json(
            own, {"node": node, "problem": problem, "outcomes": outcomes, "ahead": told - own.stat().st_mtime}
        )
        if first:
            _wait_for_others(place)


@contextmanager
def _listening(place: Path) -> Iterator[None]:
    outside = [each.address for each in network.interfaces().values() if not each.stays_on_node] or ["127.0.0.1"]
    with socket.socket() as server:
        server.bind((outside[0], 0))
        server.listen(128)
        host, port = server.getsockname()
        record.write_json(place / "address", {"host": host, "port": port})
        yield


def _meet(place: Path) -> str:
    """What keeps this node from reaching the first one; empty when nothing does."""
    end = time.monotonic() + _MEET_SECONDS
    while (address := record.read_json(place / "address")) is None:
        if time.monotonic() > end:
            return "the first node's file in the studies' folder did not become visible here"
        time.sleep(0.2)
    try:
        with socket.create_connection((address["host"], address["port"]), timeout=5):
            return ""
    except OSError as error:
        return f"{address['host']}:{address['port']} of the first node cannot be reached: {error}"


def _wait_for_others(place: Path) -> None:
    end = time.monotonic() + _MEET_SECONDS
    wanted = int(os.environ.get("SLURM_NTASKS", "1"))
    while len(list(place.glob("*.json"))) < wanted and time.monotonic() < end:
        time.sleep(0.2)


def _each(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**outcome, "node": entry["node"]} for entry in found for outcome in entry["outcomes"]]


def _together(found: Sequence[dict[str, Any]], nodes: int, folder: Path) -> list[dict[str, Any]]:
    names = [entry["node"] for entry in found]
    findings = []
    if len(found) < nodes:
        finding = failed(
            f"{len(found)} of {nodes} nodes have left a file in {folder}: {', '.join(names)}",
            "the folder is not shared by all nodes, or a node does not work",
            "keep studies on the shared file system (--out)",
        )
    else:
        finding = ok(f"{', '.join(names)} all see {folder}")
    findings.append(("shared-folder", finding))
    problems = [f"{entry['node']}: {entry['problem']}" for entry in found if entry["problem"]]
    reach = failed("; ".join(problems), "ranks would not find each other", "ask about firewalls between compute nodes")
    findings.append(("reach", reach if problems else ok("every node reaches the first one")))
    ahead = {entry["node"]: entry["ahead"] for entry in found if "ahead" in entry}
    skew = max(ahead.values()) - min(ahead.values()) if ahead else 0.0
    late = warning(
        f"clocks of nodes differ by {skew:.1f} s",
        "munge refuses credentials, and logs mislead",
        "ask the administrator about NTP",
    )
    findings.append(("time-skew", late if skew > _SKEW_SECONDS else ok(f"clocks of nodes differ by {skew:.1f} s")))
    return [
        {"name": name, "part": "nodes", **{key: getattr(each, key) for key in ("status", "what", "why", "fix")}}
        for name, each in findings
    ]
