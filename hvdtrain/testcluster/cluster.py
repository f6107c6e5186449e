"""Starting, looking at and ending a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.testcluster import config, daemons, network, process, state, tools
from hvdtrain.testcluster.errors import ClusterError, RequestError
from hvdtrain.testcluster.files import write_files
from hvdtrain.testcluster.plan import (
    DEFAULT_NAME,
    Mode,
    Plan,
    check_directory,
    check_link,
    check_name,
    check_settings,
    choose_network,
    default_directory,
    make_plan,
)

Say = Callable[[str], None]


def say_nothing(line: str) -> None:
    """A `Say` for those who want no progress lines."""


@dataclass(frozen=True)
class Options:
    """What a user may choose about a cluster."""

    name: str = DEFAULT_NAME
    directory: Path | None = None
    one_host: bool = False
    accounting: bool = False
    link: str | None = None
    requeue_delay: int = 20
    node_timeout: int = 60
    settings: tuple[str, ...] = ()
    owner_pid: int | None = None
    patience: float = 60

    def place(self) -> Path:
        """The state directory."""
        check_name(self.name)
        return check_directory(self.directory or default_directory(self.name))

    def command(self, verb: str) -> str:
        """What to type to do something else with the same cluster."""
        place = f" --dir {self.directory}" if self.directory else ""
        return f"python -m hvdtrain.testcluster {verb} --name {self.name}{place}"


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    >>> cluster.run(["srun", "-N2", "hostname"], check=True).stdout.split()       # doctest: +SKIP
    ['hvd-t4-1', 'hvd-t4-2']
    """

    plan: Plan

    @property
    def env(self) -> dict[str, str]:
        """An environment for a client (srun, sbatch...): the caller's, without traces of other clusters or jobs."""
        return {**tools.clean_environment(), **config.client_environment(self.plan)}

    @property
    def nodes(self) -> list[str]:
        """The nodes' names."""
        return [node.name for node in self.plan.nodes]

    @property
    def directory(self) -> Path:
        """Where configuration, state and logs are."""
        return self.plan.directory

    def inside(self, argv: Sequence[str], node: str | None = None) -> list[str]:
        """The command that runs `argv` on a node, or (without one) on this machine with the nodes' names resolving."""
        if node is not None and node not in self.nodes:
            raise RequestError(f"no node {node!r}; there are {', '.join(self.nodes)}")
        if self.plan.mode == "one-host":
            return list(argv)
        return network.on_controller(self.plan, argv) if node is None else network.on_node(self.plan, node, argv)

    def run(
        self,
        argv: Sequence[str],
        *,
        node: str | None = None,
        check: bool = False,
        timeout: float = 60,
        cwd: Path | str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against the cluster and return its status and output; with `check`, failing is an error."""
        command = self.inside(argv, node)
        done = subprocess.run(
            command,
            env=self.env,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        return done


def up(options: Options, say: Say = say_nothing) -> Cluster:
    """Start a cluster and return when every node is idle; whatever goes wrong, nothing is left behind."""
    directory = options.place()
    check_link(options.link)
    tools.require(tools.needed(namespaces=not options.one_host, accounting=options.accounting))
    if os.geteuid() != 0:
        raise RequestError("a test cluster makes network namespaces and needs root: use sudo, or a container")
    mode = _choose_mode(options, say)
    began = time.monotonic()
    with state.machine_lock():
        if _in_use(state.load(directory)):
            raise RequestError(f"a cluster is running in {directory}; end it with: {options.command('down')}")
        down(options)  # what a crash or reboot left of an earlier one
        if directory.exists() and any(directory.iterdir()):
            raise RequestError(f"{directory} is not empty and holds no cluster: delete it or give another --dir")
        current = _plan(options, mode)
        try:
            current.save()
            if mode == "namespaces":
                network.create(current.plan)
        except BaseException:
            down(options)
            raise
    try:
        write_files(current.plan)
        daemons.start(current, say, options.patience, options.owner_pid)
    except BaseException:
        down(options)
        raise
    say(f"ready after {time.monotonic() - began:.1f} s; to use it: source {directory}/env.sh")
    return Cluster(current.plan)


def _in_use(current: state.State | None) -> bool:
    if current is None:
        return False
    return any(process.alive(one) for one in [*current.processes, *([current.starter] if current.starter else [])])


def _choose_mode(options: Options, say: Say) -> Mode:
    reason = None if options.one_host else network.obstacle()
    if reason is None and not options.one_host:
        return "namespaces"
    if options.link is not None:
        why = f" (no namespaces here: {reason})" if reason else ""
        raise RequestError(f"--link shapes the nodes' own network links, and one-host mode has none{why}")
    if reason is not None:
        say(f"this machine permits no namespaces ({reason}): falling back to one host")
    say("one host: all nodes share this machine's name and address, so `srun hostname` prints one name several times")
    return "one-host"


def _plan(options: Options, mode: Mode) -> state.State:
    """Choose addresses and names that are free. The caller holds the machine's lock."""
    net = choose_network(network.taken_networks(), start=os.getpid()) if mode == "namespaces" else None
    plan = make_plan(
        options.name,
        options.place(),
        mode,
        net,
        link=options.link,
        accounting=options.accounting,
        requeue_delay=options.requeue_delay,
        node_timeout=options.node_timeout,
        settings=check_settings(options.settings),
    )
    if mode == "namespaces" and (found := network.existing(plan)):
        raise RequestError(
            f"this machine has {', '.join(found)}, so a cluster named {plan.name!r} exists in another directory:"
            " choose a different --name, or end that one with down --dir"
        )
    plan.directory.mkdir(parents=True, exist_ok=True)
    return state.State(plan, list(plan.namespaces), starter=process.identify("up", os.getpid()))


def down(options: Options, *, keep_logs: bool = False) -> bool:
    """End every process and remove everything of the cluster. False when there was nothing."""
    directory = options.place()
    current = state.load(directory)
    if current is not None and os.geteuid() != 0:
        raise RequestError(f"the cluster in {directory} was started by root: end it with sudo")
    namespaces = current.namespaces if current else []
    recorded = current.processes if current else []

    def find() -> set[int]:
        roots = {one.pid for one in recorded if process.alive(one)}
        roots |= process.find_marked(directory, directory / "slurm.conf") | process.find_in_namespaces(namespaces)
        return process.descendants(roots - {os.getpid()})

    had = current is not None or bool(find())
    if left := process.end_all(find):
        raise ClusterError(f"processes {', '.join(map(str, sorted(left)))} cannot be ended; run down again")
    if current is None:
        return state.forget_unborn(directory) or had
    if namespaces:
        network.remove(namespaces, current.plan.host_link)
    if keep_logs:
        state.forget(directory)
    else:
        shutil.rmtree(directory)
    return had


def attach(options: Options) -> Cluster:
    """The running cluster that `options` name."""
    current = state.load(options.place())
    if current is None or not current.ready:
        raise RequestError(f"no cluster is running in {options.place()}; start one with: {options.command('up')}")
    return Cluster(current.plan)


def status(options: Options) -> tuple[bool, str]:
    """Whether the cluster is whole, and a description of it."""
    directory = options.place()
    current = state.load(directory)
    if current is None:
        return False, f"no cluster in {directory}"
    plan = current.plan
    dead = [one.role for one in current.processes if not process.alive(one)]
    lines = [
        f"cluster    {plan.name} in {directory}",
        f"mode       {plan.mode}, {plan.network}" + (f", links shaped to {plan.link}" if plan.link else ""),
        f"accounting {'slurmdbd' if plan.accounting else 'none'}",
        f"use it     source {directory}/env.sh",
        f"daemons    {len(current.processes) - len(dead)} running" + (f"; ended: {', '.join(dead)}" if dead else ""),
    ]
    if current.ready and not dead:
        lines.append(tools.call(["sinfo"], env=Cluster(plan).env).rstrip())
    return current.ready and not dead, "\n".join(lines)
