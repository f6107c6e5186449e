"""The command line: up, down, status, exec, run."""

from __future__ import annotations

import argparse
import dataclasses
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.testcluster import cluster
from hvdtrain.testcluster.errors import ClusterError, RequestError
from hvdtrain.testcluster.plan import DEFAULT_NAME

_EXAMPLES = """examples:
  python -m hvdtrain.testcluster run -- srun -N4 hostname
  python -m hvdtrain.testcluster up --link 1gbit && source /tmp/hvdtrain-cluster-hvd/env.sh
  python -m hvdtrain.testcluster exec --node hvd-t4-1 -- ip address
exit status: 0 done, 1 the cluster failed, 2 the request was wrong, 3 programs are not installed;
of run and exec: the command's
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :]
    parsed = _parser().parse_args(given)
    if parsed.action in ("up", "run"):
        # Without a handler SIGTERM would end this process before it cleans up.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _act(parsed, command)
    except ClusterError as error:
        _say(str(error))
        return error.status
    except OSError as error:
        _say(f"{error}")
        return ClusterError.status
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument(
        "--name", default=DEFAULT_NAME, help="cluster name, first part of every node's name (default %(default)s)"
    )
    place.add_argument(
        "--dir", type=Path, help="state directory (default: hvdtrain-cluster-NAME in the temporary directory)"
    )
    start = argparse.ArgumentParser(add_help=False)
    start.add_argument("--accounting", action="store_true", help="run slurmdbd and MariaDB too, so that sacct works")
    start.add_argument("--link", metavar="RATE", help="limit every node's sending rate, e.g. 1gbit")
    start.add_argument("--one-host", action="store_true", help="no namespaces: several slurmd on this host's own name")
    start.add_argument(
        "--requeue-delay",
        type=int,
        default=20,
        metavar="S",
        help="seconds a requeued job waits (default %(default)s; Slurm's own: 120)",
    )
    start.add_argument(
        "--node-timeout",
        type=int,
        default=60,
        metavar="S",
        help="seconds until a node whose daemon is gone counts as down (default %(default)s; Slurm's own: 300)",
    )
    start.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="further line of slurm.conf, such as MaxArraySize=5, in the place of ours if there is one; may be repeated",
    )
    start.add_argument(
        "--timeout", type=float, default=60, metavar="S", help="give up after S seconds (default %(default)s)"
    )
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain.testcluster",
        description="A real SLURM cluster on this machine: 2 nodes with 4 stand-in T4 GPUs each and 2 with 4 V100.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="action", required=True, metavar="up|down|status|exec|run")
    up = commands.add_parser("up", parents=[place, start], help="start it")
    up.add_argument("--owner-pid", type=int, metavar="PID", help="end the cluster when this process ends")
    down = commands.add_parser("down", parents=[place], help="end it and remove everything")
    down.add_argument("--keep-logs", action="store_true", help="leave the state directory with its logs")
    commands.add_parser("status", parents=[place], help="describe it")
    inside = commands.add_parser(
        "exec", parents=[place], help="run a command with the nodes' names resolving: exec -- CMD..."
    )
    inside.add_argument("--node", help="on this node instead of on the submitting machine")
    commands.add_parser("run", parents=[place, start], help="up, run a command, down: run -- CMD...")
    watch = commands.add_parser("watch", parents=[place])
    watch.add_argument("--owner-pid", type=int, required=True)
    return parser


def _options(parsed: argparse.Namespace) -> cluster.Options:
    values = vars(parsed)
    return cluster.Options(
        name=parsed.name,
        directory=parsed.dir,
        one_host=values.get("one_host", False),
        accounting=values.get("accounting", False),
        link=values.get("link"),
        requeue_delay=values.get("requeue_delay", 20),
        node_timeout=values.get("node_timeout", 60),
        settings=tuple(values.get("settings", ())),
        owner_pid=values.get("owner_pid"),
        patience=values.get("timeout", 60.0),
    )


def _say(line: str) -> None:
    print(f"testcluster: {line}", file=sys.stderr, flush=True)


def _act(parsed: argparse.Namespace, command: list[str]) -> int:
    options = _options(parsed)
    if parsed.action in ("run", "exec") and not command:
        raise RequestError(
            f"{parsed.action} needs a command, e.g. {options.command(parsed.action)} -- srun -N4 hostname"
        )
    if parsed.action == "up":
        cluster.up(options, _say)
        return 0
    if parsed.action == "down":
        _say("ended" if cluster.down(options, keep_logs=parsed.keep_logs) else f"nothing to end in {options.place()}")
        return 0
    if parsed.action == "status":
        whole, text = cluster.status(options)
        print(text)
        return 0 if whole else 1
    if parsed.action == "exec":
        return _run(cluster.attach(options), command, parsed.node)
    if parsed.action == "watch":
        return _watch(options)
    return _up_run_down(options, command)


def _run(running: cluster.Cluster, command: Sequence[str], node: str | None = None) -> int:
    done = subprocess.run(running.inside(command, node), env=running.env, check=False)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _up_run_down(options: cluster.Options, command: Sequence[str]) -> int:
    owned = dataclasses.replace(options, owner_pid=os.getpid())  # the watchdog covers SIGKILL
    running = cluster.up(owned, _say)
    try:
        return _run(running, command)
    finally:
        cluster.down(owned)


def _watch(options: cluster.Options) -> int:
    assert options.owner_pid is not None
    try:
        descriptor = os.pidfd_open(options.owner_pid)
    except ProcessLookupError:
        descriptor = -1
    if descriptor >= 0:
        select.select([descriptor], [], [])  # readable once the process has ended
    cluster.down(options)
    return 0
