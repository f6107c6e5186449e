"""The daemons, in the order in which they need each other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdtrain.testcluster import accounting, network, process, tools
from hvdtrain.testcluster.errors import ClusterError
from hvdtrain.testcluster.plan import Node, Plan
from hvdtrain.testcluster.state import State

Say = Callable[[str], None]


class Starter:
    """Starts daemons one after the other and notices when one of them dies."""

    def __init__(self, state: State, say: Say, patience: float) -> None:
        self.state = state
        self.plan: Plan = state.plan
        self.say = say
        self.deadline = time.monotonic() + patience
        self.env = {**tools.clean_environment(), "SLURM_CONF": str(self.plan.slurm_conf)}
        self._watched: list[process.Process] = []

    def log(self, role: str) -> Path:
        """Where a daemon's output goes."""
        return self.plan.directory / "log" / f"{role}.log"

    def spawn(self, role: str, argv: Sequence[str]) -> None:
        """Start and record one daemon."""
        self._watched.append(self.state.add(process.spawn(role, argv, self.log(role), self.env, self.plan.directory)))

    def healthy(self) -> None:
        """Raise ClusterError, with the log's own words, when a daemon has ended or time is up."""
        for one in self._watched:
            if not process.alive(one):
                raise ClusterError(f"{one.role} ended; its log says:\n{last_words(self.log(one.role))}")
        if time.monotonic() > self.deadline:
            roles = [one.role for one in self._watched if not one.role.startswith("munged")]
            words = "\n".join(f"{role}:\n{last_words(self.log(role), 5)}" for role in roles)
            raise ClusterError(f"the cluster did not become ready in time; its logs say:\n{words}")

    def wait(self, ready: Callable[[], bool]) -> None:
        """Return when `ready` says so."""
        while not ready():
            self.healthy()
            time.sleep(0.05)


def last_words(log: Path, count: int = 12) -> str:
    """The lines of a log that matter: its errors when it has any, else its end."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"  ({error})"
    wrong = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return "\n".join(f"  {line}" for line in (wrong or lines)[-count:]) or "  (nothing)"


def start(state: State, say: Say, patience: float, owner_pid: int | None) -> None:
    """Start everything and return when all nodes are idle."""
    starter = Starter(state, say, patience)
    plan = state.plan
    if owner_pid is not None:
        _start_watchdog(starter, owner_pid)
    preparation = accounting.prepare(plan) if plan.accounting else None
    try:
        _start_munge(starter)
        if preparation is not None:
            say("accounting: preparing the database")
            _start_accounting(starter, preparation)
    finally:
        if preparation is not None and preparation.poll() is None:
            preparation.kill()
            preparation.wait()
    say(f"starting slurmctld and {len(plan.nodes)} slurmd")
    controller = [tools.path("slurmctld"), "-D", "-c", "-f", str(plan.slurm_conf)]
    starter.spawn("slurmctld", _on_controller(plan, controller))
    for node in plan.nodes:
        starter.spawn(f"slurmd-{node.name}", _slurmd(plan, node))
    starter.wait(lambda: _idle(plan, starter.env))
    if "can not load PMIx" in starter.log(f"slurmd-{plan.nodes[0].name}").read_text(errors="replace"):
        say(f"note: srun --mpi=pmix will not work, Slurm finds no PMIx library: apt-get install {tools.PMIX_PACKAGE}")
    state.ready, state.starter = True, None
    state.save()


def _on_controller(plan: Plan, argv: Sequence[str]) -> list[str]:
    return list(argv) if plan.mode == "one-host" else network.on_controller(plan, argv)


def _slurmd(plan: Plan, node: Node) -> list[str]:
    argv = [tools.path("slurmd"), "-D", "-f", str(plan.slurm_conf)]
    if plan.mode == "one-host":
        return [*argv, "-N", node.name]
    return network.on_node(plan, node.name, argv)


def _start_munge(starter: Starter) -> None:
    """One munged for all nodes: its socket is a file, which network namespaces share."""
    directory = starter.plan.directory
    files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
    files["log-file"] = "log/munged.log"
    argv = [tools.path("munged"), "--foreground", "--force", "--num-threads=4"]
    argv += [f"--{option}={directory}/{name}" for option, name in files.items()]
    starter.spawn("munged", _on_controller(starter.plan, argv))
    starter.wait((directory / "munge.sock").exists)


def _start_accounting(starter: Starter, preparation: subprocess.Popen[bytes]) -> None:
    plan = starter.plan
    accounting.finish_preparing(preparation, plan.directory)
    starter.spawn("mariadbd", accounting.database_command(plan))
    accounting.wait_for_port("127.0.0.1", plan.database_port, starter.healthy)
    # slurmdbd finds its configuration beside the file that SLURM_CONF names.
    starter.spawn("slurmdbd", _on_controller(plan, [tools.path("slurmdbd"), "-D"]))
    accounting.wait_for_port(plan.host_address, plan.accounting_port, starter.healthy)
    accounting.register(plan)


def _start_watchdog(starter: Starter, owner_pid: int) -> None:
    """A process that ends the cluster when its owner is gone, however the owner went."""
    package_parent = str(Path(__file__).resolve().parents[2])
    known = starter.env.get("PYTHONPATH")
    env = {**starter.env, "PYTHONPATH": package_parent + (os.pathsep + known if known else "")}
    plan = starter.plan
    argv = [sys.executable, "-m", "hvdtrain.testcluster", "watch", "--name", plan.name, "--dir", str(plan.directory)]
    argv += ["--owner-pid", str(owner_pid)]
    starter.state.add(process.spawn("watchdog", argv, starter.log("watchdog"), env, plan.directory))


def _idle(plan: Plan, env: dict[str, str]) -> bool:
    """Whether every node is ready for work."""
    try:
        text = tools.call(["sinfo", "--noheader", "--Node", "--partition=all", "--format=%T"], env=env)
    except ClusterError:
        return False  # the controller does not answer yet
    return text.split() == ["idle"] * len(plan.nodes)
