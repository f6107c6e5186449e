"""Start N ranks on this machine and see to it that they end together.

    python -m hvdtrain.launch.local -n 4 -- python train.py

Each rank gets its place in HOROVOD_ variables and a process group of its own; when one fails, the others have a few
seconds to end by themselves (their watchdogs know), then they are killed, with whatever they started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from hvdtrain.errors import UserError, run_cli
from hvdtrain.launch.orphans import die_with_parent
from hvdtrain.machine import gpu_of_each
from hvdtrain.stop import RESTART

#: Survivors of a failure end by themselves in about three seconds; after this they are killed.
GRACE_SECONDS = 7.0
#: After SIGTERM or Ctrl-C ranks may still be writing a checkpoint.
STOP_SECONDS = 10


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    status: int | None = None
    ended: float | None = None
    killed: bool = False


def rank_environment(rank: int, size: int, cpus: int, rendezvous: str, launch_id: str) -> dict[str, str]:
    """What distinguishes one rank's environment from the starter's own."""
    place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    environment = {f"HOROVOD_{name}": str(value) for name, value in place.items()}
    # Frameworks take every core each by default: two ranks on two cores would then run four threads.
    environment |= {name: os.environ.get(name, str(cpus)) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return environment | {
        "HVDTRAIN_LAUNCHER": "local",
        "HVDTRAIN_LAUNCH_ID": launch_id,
        "HVDTRAIN_RENDEZVOUS_DIR": rendezvous,
    }


def start(size: int, command: Sequence[str], cpus: int = 1) -> int:
    """Run `size` ranks of `command` to their end.

    Returns:
        0 if all ended well; else the status of the rank that failed first (128 + n for signal n).

    Raises:
        UserError: fewer GPUs than ranks, or the command cannot be started.
    """
    gpus = gpu_of_each(size, os.environ)
    rendezvous, launch_id = tempfile.mkdtemp(prefix="hvdtrain-"), secrets.token_hex(8)
    stop = _StopRequest()
    ranks: list[_Rank] = []
    try:
        for number in range(size):
            environment = {**os.environ, **rank_environment(number, size, cpus, rendezvous, launch_id)}
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = gpus[number]
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    preexec_fn=die_with_parent(signal.SIGKILL),
                )
            except OSError as error:
                raise UserError(f"{command[0]} cannot be started ({error.strerror})") from None
            ranks.append(_Rank(number, process))
        _mind(ranks, stop)
    finally:
        for rank in ranks:
            _kill(rank)
        shutil.rmtree(rendezvous, ignore_errors=True)
    status = _status(ranks)
    # Asked to stop by SIGTERM, ranks that left a checkpoint say so; a user who interrupts has cancelled the run.
    return status if status == RESTART and stop.status == 128 + signal.SIGTERM else stop.status or status


class _StopRequest:
    """Remembers SIGTERM and SIGINT instead of dying of them: the ranks must be ended first. Passes SIGUSR1 and 2 on."""

    def __init__(self) -> None:
        self.status = 0
        self.pass_on: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._remember)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: self.pass_on.append(number))

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.status = 128 + number


def _mind(ranks: list[_Rank], stop: _StopRequest) -> None:
    """Return when every rank has ended, by itself or by us."""
    deadline: float | None = None
    told = False
    while any(rank.status is None for rank in ranks):
        for rank in ranks:
            if rank.status is None and (status := rank.process.poll()) is not None:
                rank.status, rank.ended = status, time.monotonic()
                if status != 0 and deadline is None:
                    deadline = time.monotonic() + GRACE_SECONDS
        if stop.status and not told:
            told, deadline = True, time.monotonic() + STOP_SECONDS
            stop.pass_on.append(signal.SIGTERM)
        while stop.pass_on:
            number = stop.pass_on.pop()
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    rank.process.send_signal(number)
        if deadline is not None and time.monotonic() > deadline:
            for rank in ranks:
                rank.killed = rank.killed or rank.status is None
                _kill(rank)
        time.sleep(0.02)


def _kill(rank: _Rank) -> None:
    """End what is left of a rank's process group: itself, and loader workers that outlived it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank.process.pid, signal.SIGKILL)


def _status(ranks: list[_Rank]) -> int:
    """Status of the rank that failed first; says on stderr which ranks did not speak for themselves."""
    failed = [rank for rank in ranks if rank.status]
    if not failed:
        return 0
    for rank in failed:
        if rank.killed:
            print(f"hvdtrain: rank {rank.number} did not end by itself and was killed", file=sys.stderr)
    first = min(failed, key=lambda rank: (rank.killed, rank.ended or 0.0))
    assert first.status is not None
    if first.status < 0 and not first.killed:
        print(f"hvdtrain: rank {first.number} was killed by {signal.Signals(-first.status).name}", file=sys.stderr)
    return first.status if first.status > 0 else 128 - first.status


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the starter."""
    parser = argparse.ArgumentParser(prog="python -m hvdtrain.launch.local", description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, required=True, help="number of ranks")
    parser.add_argument("--cpus", type=int, default=1, help="threads of each rank (default 1)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command of one rank")
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command or arguments.n < 1 or arguments.cpus < 1:
        parser.error("give -n N (at least 1), and after -- the command of one rank")
    return run_cli(lambda _: start(arguments.n, command, arguments.cpus), [])


if __name__ == "__main__":
    sys.exit(main())
