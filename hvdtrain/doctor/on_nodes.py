"""`hvdtrain doctor --on-nodes N`: the checks of a node as tasks of a SLURM job, and what only several nodes together show."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdtrain import record, world
from hvdtrain.doctor.check import Finding, failed, ok, warning
from hvdtrain.errors import UserError
from hvdtrain.launch import network
from hvdtrain.site import commands

#: Nodes begin together, but one may be minutes slower than another to load Python from a shared file system.
_PATIENCE_SECONDS = 180.0
#: Of the job, for SLURM: minutes.
_MINUTES = 10
_LESS_TIME = f"Where a partition allows less than the {_MINUTES} minutes that are asked for, give --srun=--time=1"
#: What srun has to end in, once it is told to.
_END_SECONDS = 5.0
_SKEW_SECONDS = 2.0
#: What keeps a node from reaching the first one, the worst first: how bad that is, why it matters, and what to type.
_PROBLEMS: Mapping[str, tuple[Callable[[str, str, str], Finding], str, str]] = {
    "unreached": (failed, "ranks would not find each other", "ask about firewalls between compute nodes"),
    "unseen": (failed, "ranks meet through files in that folder", "keep studies on the shared file system (--out)"),
    "late": (
        warning,
        "ranks wait for the last of them",
        "see what makes that node slow, then give the same command again",
    ),
}


def ask(nodes: int, folder: Path, options: Sequence[str], seconds: float = 600.0) -> list[dict[str, Any]]:
    """Run the node checks on `nodes` nodes; their outcomes, each with its node, and those of all together.

    Raises:
        UserError: SLURM does not run the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"hvdtrain-doctor-{uuid.uuid4().hex[:8]}"
    place = folder.absolute() / f".{name}"
    place.mkdir()
    argv = ["srun", f"--nodes={nodes}", "--ntasks-per-node=1", f"--job-name={name}", "--mpi=none", f"--time={_MINUTES}"]
    argv += [
        *options,
        sys.executable,
        "-m",
        "hvdtrain.doctor",
        "--out",
        str(folder.absolute()),
        "--report-to",
        str(place),
    ]
    print(f"waiting up to {seconds / 60:.0f} min for {nodes} node{'s' * (nodes > 1)} of the cluster", file=sys.stderr)
    try:
        said = _run(argv, name, seconds)
        found = [value for path in sorted(place.glob("*.json")) if (value := record.read_json(path)) is not None]
        if not found:
            way = f"\n{_LESS_TIME}" if re.search("time ?limit", said, re.IGNORECASE) else ""
            raise UserError(f"no node has answered; srun said:\n  {said}{way}")
        return [*_each(found), *_together(found, nodes, folder)]
    except subprocess.TimeoutExpired:
        raise UserError(
            f"SLURM did not run the job within {seconds:.0f} s, so it was cancelled; is the queue full? {_LESS_TIME}"
        ) from None
    except FileNotFoundError:
        raise UserError("srun is not installed here: --on-nodes needs a SLURM cluster") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(argv: Sequence[str], name: str, seconds: float) -> str:
    """What srun says of the job `name`, of which nothing stays in the queue when nobody waits for it any longer."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, env=commands.srun_environment(), stdout=pipe, stderr=pipe, text=True)
    with process:
        try:
            _, said = process.communicate(timeout=seconds)
        except BaseException:  # Ctrl-C too
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_END_SECONDS)
            process.kill()
            _cancel(name)
            raise
    return said.strip() or str(process.returncode)


def _cancel(name: str) -> None:
    try:
        commands.call(["scancel", f"--user={os.getuid()}", f"--name={name}"])
    except commands.SlurmError as error:
        print(f"note: the job may still be in the queue, scancel --name={name} ends it: {error}", file=sys.stderr)


def report(place: Path, examine: Callable[[], list[dict[str, Any]]]) -> None:
    """On a node: meet the others, look around, and write down what was found."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    _take_part(place, node, world.slurm_task() or 0, int(os.environ.get("SLURM_NTASKS", "1")), examine)


def _take_part(place: Path, node: str, task: int, tasks: int, examine: Callable[[], list[dict[str, Any]]]) -> None:
    # They meet first: looking around takes one node longer than another.
    with _listening(place) if task == 0 else contextlib.nullcontext():
        kind, problem = _meet(place)
        found = {"node": node, "kind": kind, "problem": problem, "outcomes": examine()}
        own = place / f"{node}.json"
        told = time.time()
        record.write_json(own, found)
        # Against the clock of the file system, which all nodes share, clocks of nodes can be compared.
        record.write_json(own, {**found, "ahead": told - own.stat().st_mtime})
        if task == 0:
            _wait_for_others(place, tasks)


@contextmanager
def _listening(place: Path) -> Iterator[None]:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen(128)
        record.write_json(place / "address", {"host": _own_address(), "port": server.getsockname()[1]})
        yield
    record.write_json(place / "address", {"closed": True})


def _own_address() -> str:
    """Where ranks of another node would look for one here."""
    try:
        return network.own_address(world.detect())
    except UserError:  # a check of the node says so; others can try its name
        return socket.gethostname()


def _meet(place: Path) -> tuple[str, str]:
    """What kind of problem keeps this node from reaching the first one, a key of `_PROBLEMS`, and what it is; empty without any."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while (address := record.read_json(place / "address")) is None:
        if time.monotonic() > end:
            return "unseen", f"the first node's file did not become visible here within {_PATIENCE_SECONDS:.0f} s"
        time.sleep(0.2)
    if "closed" in address:
        return "late", f"came more than {_PATIENCE_SECONDS:.0f} s after the first node, which had stopped listening"
    try:
        with socket.create_connection((address["host"], address["port"]), timeout=5):
            return "", ""
    except OSError as error:
        return "unreached", f"{address['host']}:{address['port']} of the first node cannot be reached: {error}"


def _wait_for_others(place: Path, tasks: int) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while len(list(place.glob("*.json"))) < tasks and time.monotonic() < end:
        time.sleep(0.2)


def _reach(found: Sequence[dict[str, Any]]) -> Finding:
    for kind, (grade, why, fix) in _PROBLEMS.items():
        if told := [f"{entry['node']}: {entry['problem']}" for entry in found if entry["kind"] == kind]:
            return grade("; ".join(told), why, fix)
    return ok("every node reaches the first one")


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
    findings.append(("reach", _reach(found)))
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
