"""`python -m hvdtrain.launch -n 4 JOB ...`: start a world of ranks and record how it ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from hvdtrain import record
from hvdtrain.errors import UserError, nearest, run_cli
from hvdtrain.horovod_build import check
from hvdtrain.launch.launchers import REGISTRY, Launcher, Request, knows_other_nodes
from hvdtrain.launch.local import STOP_SECONDS
from hvdtrain.launch.orphans import die_with_parent
from hvdtrain.launch.preflight import CONNECT_TIMEOUT_VARIABLE, STALL_TIMEOUT_VARIABLE
from hvdtrain.machine import find_mpirun, visible_gpus
from hvdtrain.paths import find_job
from hvdtrain.run_folder import holding, take
from hvdtrain.stop import RESTART

#: Ctrl-C, and a terminal that closes: somebody does not want the run any more.
_INTERRUPT = (signal.SIGINT, signal.SIGHUP)
_END = (signal.SIGTERM, *_INTERRUPT)
#: A world that was told to stop ends with 128 + the signal's number.
_OUTCOMES = {0: "completed", RESTART: "preempted"} | {128 + number: "cancelled" for number in _END}


def choose(name: str, ranks: int) -> Launcher:
    """The launcher called `name`; `auto` takes what trains fastest with what is installed here.

    Raises:
        UserError: unknown name, or the command it needs is not on the PATH.
    """
    if name == "auto":
        name = "none" if ranks == 1 else "mpirun" if _mpi_is_ready() else "local"
    if name not in REGISTRY:
        raise UserError(f'no launcher "{name}"; legal are auto, {", ".join(REGISTRY)}{nearest(name, REGISTRY)}')
    if name == "none" and ranks > 1:
        raise UserError(f"launcher none starts one rank, not {ranks}; leave --launcher out")
    launcher = REGISTRY[name]
    needed = launcher.command(Request(1, ["true"]))[0]
    if shutil.which(needed) is None:
        raise UserError(
            f'launcher {name} needs "{needed}", which is not on the PATH; leave --launcher out to start ranks here'
        )
    return launcher


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status of the world."""
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain.launch",
        description="Start N ranks of a job on this machine, or on the nodes of the SLURM allocation around this command.",
        allow_abbrev=False,
    )
    parser.add_argument("-n", "--ranks", type=int, required=True, help="number of ranks")
    parser.add_argument("--launcher", default="auto", help=f"auto, {', '.join(REGISTRY)}")
    parser.add_argument("--cpus-per-task", type=int, default=1, help="threads of each rank (default 1)")
    parser.add_argument(
        "--run-dir",
        type=Path,
        help=f"folder for epochs.jsonl, result.json and the ranks' logs (default: ${record.RUN_DIR_VARIABLE})",
    )
    parser.add_argument(
        "--stall-timeout", type=float, help="seconds without progress that end the run (default 300; 0: none do)"
    )
    parser.add_argument("--connect-timeout", type=float, help="seconds to wait for all ranks at the start")
    parser.add_argument("job", help="name of a job, or a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the job")
    arguments = parser.parse_args(argv)
    return run_cli(lambda _: _start(arguments), [])


def _mpi_is_ready() -> bool:
    """Whether Horovod was built with Open MPI and its mpirun is here. Others' mpirun tells ranks nothing that we could read.

    On one machine MPI trains a network of small steps 1.2 times as fast as Gloo with as many ranks as cores, and 3 times
    with twice as many (2 cores; bench/launchers.py measures it on yours).
    """
    build = check.installed()
    return build is not None and (build.mpi or "").startswith("Open MPI") and find_mpirun() is not None


def _start(arguments: argparse.Namespace) -> int:
    if arguments.ranks < 1:
        raise UserError(f"-n {arguments.ranks}: a world has at least one rank")
    if arguments.cpus_per_task < 1:
        raise UserError(f"--cpus-per-task {arguments.cpus_per_task}: a rank has at least one core")
    job = find_job(arguments.job)
    launcher = choose(arguments.launcher, arguments.ranks)
    options = {STALL_TIMEOUT_VARIABLE: arguments.stall_timeout, CONNECT_TIMEOUT_VARIABLE: arguments.connect_timeout}
    environment = {**os.environ, **{name: str(value) for name, value in options.items() if value is not None}}
    environment.setdefault("OMP_NUM_THREADS", str(arguments.cpus_per_task))
    if launcher.name == "none":
        # One rank was asked for, however many tasks the allocation around it has.
        environment["HVDTRAIN_LAUNCHER"] = "none"
    here = launcher.name == "mpirun" and not knows_other_nodes(environment)
    if here and len(gpus := visible_gpus(environment)) >= arguments.ranks:
        # mpirun gives all ranks the same variables: of as many GPUs as they are, each takes that of its local rank. Of fewer
        # each chooses: ranks may share one GPU, and the framework, which may be one for CPUs, knows what it can use.
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[: arguments.ranks])
    command = [sys.executable, "-m", "hvdtrain.run", str(job), *arguments.arguments]
    command = launcher.command(Request(arguments.ranks, command, arguments.cpus_per_task))
    folder = arguments.run_dir or record.run_dir()
    if folder is None:
        return _run(command, environment, launcher.stop)
    return _recorded(folder.resolve(), command, environment, launcher.stop)


def _recorded(folder: Path, command: Sequence[str], environment: dict[str, str], stop: signal.Signals | None) -> int:
    """Run to the end in the run folder `folder`, and write there how it ended, unless a process above this one does."""
    environment |= {record.RUN_DIR_VARIABLE: str(folder), **holding(folder)}
    lock = take(folder)
    if lock is None:
        return _run(command, environment, stop)
    with contextlib.closing(lock):
        status = _run(command, environment, stop, lock.descriptor)
        interrupted = status in {128 + number for number in _INTERRUPT}
        overrule = ("completed", "preempted") if interrupted else ("completed",) if status else ()
        record.finish(folder, _OUTCOMES.get(status, "failed"), status, _reason(status), overrule)
    return status


def _run(command: Sequence[str], environment: dict[str, str], stop: signal.Signals | None, *inherited: int) -> int:
    """Run to the end, passing signals on: whoever stops us means the ranks.

    Args:
        stop: what to pass on as the first request to end, so that ranks write a checkpoint; None: the request itself.
        inherited: descriptors that the command has too: when we are killed, ranks still need a moment to end.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        pass_fds=inherited,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )

    asked = 0

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP and asked:
            return  # of a terminal that closes both the shell and the kernel tell; nobody is impatient
        if number in _END and not asked:
            asked = number
            if stop is not None and number != stop:
                number = stop
                signal.signal(signal.SIGALRM, lambda *_: _end(process, stop))
                signal.alarm(STOP_SECONDS)
        elif number in _END and stop == signal.SIGUSR1:
            # Whoever asks again does not want to wait for a checkpoint. At SIGINT srun would only say how to abort.
            number = signal.SIGTERM
        process.send_signal(number)

    for number in (*_END, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs ignore some of them on purpose
            signal.signal(number, forward)
    status = process.wait()
    signal.alarm(0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what a single rank started and left behind; others have their starter
    return _meant(status if status >= 0 else 128 - status, asked, stop)


def _end(process: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    """End ranks that have not ended of `stop` in time. A rank that heeds SIGTERM does nothing else at a second one."""
    if stop != signal.SIGTERM:
        process.terminate()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _meant(status: int, asked: int, stop: signal.Signals | None) -> int:
    """The status of a world that ended with `status` after the request `asked` (a signal; 0: none), passed on as `stop`."""
    if status == 0 or not asked:
        return status
    # Whoever interrupts has cancelled the run, whatever ranks make of it. Ranks that know nothing of stopping die of `stop`.
    return 128 + asked if asked in _INTERRUPT or (stop is not None and status == 128 + stop) else status


def _reason(status: int) -> str:
    # A job may also call sys.exit(200): only numbers of signals mean signals.
    if status - 128 in {*signal.Signals}:
        return f"ended by signal {signal.Signals(status - 128).name}"
    return "" if status == 0 else f"exit status {status}"
