"""`python -m hvdtrain.launch.batch JOB ...`: what a batch script runs, in place of srun itself.

Starts the ranks by srun, tells them in time before the job ends, records how the attempt ended, and has SLURM start the job
again where that is wanted. The checkpoints that the ranks write make the next start go on.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hvdtrain import attempts, record
from hvdtrain.errors import UserError, nearest, run_cli
from hvdtrain.launch import allocation, ending
from hvdtrain.launch.choice import choose
from hvdtrain.launch.launchers import REGISTRY, Request
from hvdtrain.launch.preflight import STALL_TIMEOUT_VARIABLE
from hvdtrain.launch.time_limit import TimeLimit
from hvdtrain.paths import find_job, make_folder
from hvdtrain.run_folder import held_if_free, holding
from hvdtrain.site import commands

#: After asking for a requeue SLURM ends this script; if it has not by then, it never will.
_REQUEUE_SECONDS = 60.0
#: Longer than ranks take to notice that another attempt has begun.
_FENCE_SECONDS = 5.0
#: For the question whether the time limit was extended, while ranks wait to be told of it.
_LIMIT_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status of the batch script."""
    return run_cli(_main, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain.launch.batch",
        description="Run a job as the ranks of the SLURM allocation around this batch script.",
        allow_abbrev=False,
    )
    parser.add_argument("--run-dir", type=Path, help=f"folder for the records (default: ${record.RUN_DIR_VARIABLE})")
    parser.add_argument("--launcher", default="auto", help="auto, gloo or pmix")
    parser.add_argument("--pmix", default="pmix", help="name of SLURM's PMIx plugin")
    parser.add_argument("--cpus-per-task", type=int, help="cores of each rank (default: what sbatch was given)")
    parser.add_argument("--srun", action="append", default=[], metavar="OPTION", help="further option for srun")
    parser.add_argument("--inside", action="append", default=[], metavar="WORDS", help="what enters a container")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the ranks")
    parser.add_argument("--job-name", help="name for this task of a job array")
    parser.add_argument("--warning", type=float, default=120.0, help="seconds before the end that ranks are told")
    parser.add_argument("--requeue-on", default="preempted,timeout", help="which ends start the job again; empty: none")
    parser.add_argument("--retries", type=int, default=1, help="further starts after an accident")
    parser.add_argument(
        "--stall-timeout", type=float, help="seconds without progress that end it (default 300; 0: none do)"
    )
    parser.add_argument("job", help="name of a job, or a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the job")
    return parser


def _main(argv: Sequence[str]) -> int:
    given = _parser().parse_args(list(argv))
    return Batch(given).run()


class Batch:
    """One attempt of one batch job."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        os.environ.pop(record.ATTEMPT_VARIABLE, None)  # of a job around this one
        # Where the job was submitted to is where it is now, and from a node the other clusters' database may be out of reach.
        for name in commands.CLUSTERS:
            os.environ.pop(name, None)
        self.job = allocation.here()
        self.ranks = allocation.ranks()
        self.launcher, why = choose(given.launcher, allocation.nodes() > 1)
        if self.launcher not in ("gloo", "pmix"):
            legal = ("auto", "gloo", "pmix")
            raise UserError(
                f'--launcher "{self.launcher}": in a batch script legal are {", ".join(legal)}{nearest(self.launcher, legal)}',
            )
        self.why = why
        self.path = given.job if given.inside else str(find_job(given.job))
        wanted = given.run_dir or record.run_dir() or Path("runs/slurm") / f"{Path(given.job).stem}-{self.job.job}"
        self.folder: Path = wanted.absolute()
        self.warning = ending.warning_seconds(given.warning, self.job.limit)
        self.policy = ending.Policy(tuple(word for word in given.requeue_on.split(",") if word), given.retries)
        self.process: subprocess.Popen[bytes] | None = None
        self.began = time.time()
        self.ahead = allocation.clock_ahead()
        self.limit = TimeLimit(self.job, None if self.job.end is None else self.job.end + self.ahead - time.time())
        self.attempt = f"{self.job.job}-{self.job.restarts}-{self.began:.3f}"

    def run(self) -> int:
        """Run the attempt to its end; the exit status."""
        if self.job.state.startswith("CANCELLED"):
            # One that is cancelled in the moment of its start runs all the same, and its folder may have been taken back.
            print("SLURM has cancelled this job: nothing is started", file=sys.stderr)
            return 1
        make_folder(self.folder, "the run folder")
        with held_if_free(self.folder):
            return self._run()

    def _run(self) -> int:
        (self.folder / "log").mkdir(exist_ok=True)
        silent = _close_earlier(self.folder)
        attempts.set_aside(self.folder)
        self._describe()
        self._name()
        self._mark()
        record.write_json(self.folder / "slurm.json", {"attempt": self.attempt, **self._facts()})
        if silent:  # its node may only have lost the controller: give its ranks the time to see our file, and go
            time.sleep(_FENCE_SECONDS)
        status = self._start()
        return self._end(status)

    # --- the beginning ---

    def _describe(self) -> None:
        """A ready script's run, for the analysis: what `submit` writes for a cell of its own, as far as it is known here."""
        path = self.folder / "cell.json"
        if "hash" in (record.read_json(path) or {}):  # of `submit`
            return
        nodes = allocation.nodes()
        cell = {
            "name": self.folder.name,
            "study": self.folder.parent.name,
            "job": self.given.job,
            "workload": Path(self.given.job).stem,
            "gpus": self.ranks,
            "shape": {"nodes": nodes, "tasks_per_node": self.ranks // nodes},
            "launcher": self.launcher,
            "arguments": self.given.arguments,
            "extra_arguments": self.given.arguments,
        }
        record.write_json(path, cell)

    def _name(self) -> None:
        """Tasks of an array share a name until they start; from then on squeue shows the cell."""
        if self.given.job_name and self.job.name != self.given.job_name:
            try:
                commands.call(["scontrol", "update", f"JobId={self.job.alone}", f"JobName={self.given.job_name}"])
            except commands.SlurmError as error:
                print(f"warning: the job keeps its array's name: {error}", file=sys.stderr)

    def _mark(self) -> None:
        attempt = 1 + attempts.count(self.folder)
        plural = "s" if self.ranks > 1 else ""
        restart = f", restart {self.job.restarts}" if self.job.restarts else ""
        print(
            f"=== {self.folder.name}: attempt {attempt}, SLURM job {self.job.job}{restart}, {self.ranks} rank{plural} on "
            f"{self.job.nodes or 'unknown nodes'}, {time.strftime('%Y-%m-%d %H:%M:%S %z')} ===",
            flush=True,
        )
        print(f"launcher {self.launcher}: {self.why}", flush=True)
        if self.ahead:
            print(
                f"note: this node's clock is {abs(self.ahead):.0f} s {'ahead of' if self.ahead > 0 else 'behind'} the SLURM "
                "controller's; the time limit is taken by the controller's",
                flush=True,
            )

    def _facts(self) -> dict[str, Any]:
        job = self.job
        return {
            "job_id": job.job,
            "array_job_id": os.environ.get("SLURM_ARRAY_JOB_ID"),
            "array_task_id": os.environ.get("SLURM_ARRAY_TASK_ID"),
            "restarts": job.restarts,
            "partition": job.partition,
            "nodes": job.nodes,
            "gpus": dict(job.gpus or {}),
            "time_limit": job.limit,
            "began": self.began,
        }

    def _start(self) -> int:
        given = self.given
        cpus = given.cpus_per_task or int(os.environ.get("SLURM_CPUS_PER_TASK") or 1)
        inside = [word for words in given.inside for word in shlex.split(words)]
        rank = [*inside, given.python, "-m", "hvdtrain.run", self.path, *given.arguments]
        request = Request(self.ranks, rank, cpus, options=given.srun, pmix=given.pmix)
        environment = {**os.environ, record.RUN_DIR_VARIABLE: str(self.folder), record.ATTEMPT_VARIABLE: self.attempt}
        environment |= holding(self.folder)
        environment.setdefault("OMP_NUM_THREADS", str(cpus))
        if given.stall_timeout is not None:
            environment[STALL_TIMEOUT_VARIABLE] = f"{given.stall_timeout:g}"
        command = REGISTRY[self.launcher].command(request)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
            signal.signal(number, self._signal)
        self.process = subprocess.Popen(command, env=environment)
        if (left := self.limit.left()) is not None:
            signal.setitimer(signal.ITIMER_REAL, max(0.1, left - self.warning))
        status = self.process.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return status if status >= 0 else 128 - status

    def _signal(self, number: int, frame: FrameType | None) -> None:
        """Tell the ranks. Never SIGTERM: srun would kill them instead of passing it on."""
        if number == signal.SIGUSR1 and ending.is_early_warning(self.limit.left(), self.warning):
            return  # our own clock tells them when it is time
        if number == signal.SIGALRM and self._has_more_time():
            return
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)

    def _has_more_time(self) -> bool:
        """When the time to tell the ranks has come: whether the limit was extended. Then the clock is set for the new one."""
        self.limit.follow(self._now(min(_LIMIT_SECONDS, self.warning / 4)))
        left = self.limit.left()
        if left is not None and left > self.warning + 1:
            signal.setitimer(signal.ITIMER_REAL, left - self.warning)
        return left is None or left > self.warning + 1

    # --- the end ---

    def _end(self, status: int) -> int:
        os.environ[record.ATTEMPT_VARIABLE] = self.attempt
        if record.superseded(self.folder):
            print(f"--- {self.folder.name}: SLURM has started this job elsewhere; this attempt ends ---", flush=True)
            return status or 1
        present = record.read_json(self.folder / "result.json")
        damaged = record.put_unreadable_aside(self.folder)
        noted = present or record.read_json(self.folder / "running.json") or {}
        now = self._now()
        end = ending.judge(
            status,
            job_state=now.state,
            restarts=now.restarts > self.job.restarts,
            preempted=now.preempted,
            may_requeue=now.may_requeue,
            left=self.limit.left_at_the_end(now),
            warning=self.warning,
            reason=str(noted.get("reason") or ""),
            recorded=None if present is None else str(present["status"]),
            progress=_progress(self.folder),
            accidents=_accidents(self.folder, self.job.job),
            policy=self.policy,
        )
        if damaged and present is None and end.status != "cancelled":
            end = ending.Ending("failed", damaged)  # what the run has reached is not known: a human has to look first
        if status == 0 and present is None and not end.requeue and end.status == "preempted":
            # Ranks of a node that only lost the controller may still run. Without a result, the next attempt waits for them.
            print(f"--- {self.folder.name}: {end.reason} ---", flush=True)
            return 1
        types = self.job.gpu_types
        reason = "; ".join(filter(None, (end.reason, end.then)))
        result = record.finish(self.folder, end.status, status, end.reason)
        result |= {"status": end.status, "exit_code": status, "slurm": {**self._facts(), "ended": time.time()}}
        result |= {"gpu_types": types, "reason": reason} | ({"mixed": True} if len(types) > 1 else {})
        if end.requeue or now.restarts > self.job.restarts:
            result["requeued"] = True  # the job's own end is then another attempt's, even one that writes nothing
        record.write_json(self.folder / "result.json", result)
        (self.folder / "slurm.json").unlink(missing_ok=True)
        if len(types) > 1:
            print(
                f"warning: this job ran on GPUs of types {', '.join(types)}: it is marked mixed and stays out of fits"
            )
        words = f"{end.status}: {reason}" if reason else end.status
        print(f"--- {self.folder.name}: {words} (exit status {status}) ---", flush=True)
        if end.requeue and not self._requeue():
            again = "retry" if end.status == "failed" else "resume"
            del result["requeued"]
            result["reason"] = f"{end.reason}; SLURM does not start it again: `hvdtrain {again}` goes on"
            record.write_json(self.folder / "result.json", result)
        return status

    def _now(self, seconds: float = commands.SECONDS) -> allocation.Allocation:
        try:
            return allocation.ask(self.job.job, seconds)
        except (commands.SlurmError, OSError):  # or no process can be started to ask it
            # Whoever cannot be asked has not said that the job is cancelled.
            return allocation.Allocation(self.job.job, self.job.alone)

    def _requeue(self) -> bool:
        """Whether SLURM starts the job again; it then ends this script."""
        try:
            commands.call(["scontrol", "requeue", self.job.alone])
        except commands.SlurmError as error:
            print(f"hvdtrain: SLURM does not start this job again: {error}", file=sys.stderr)
            return False
        print("requeued: SLURM starts this job again, usually after two minutes", flush=True)
        time.sleep(_REQUEUE_SECONDS)
        return True


def _close_earlier(folder: Path) -> bool:
    """An attempt that SLURM killed left no result: write what its files still tell, so that its hours are counted.

    Whether there was one.
    """
    ended = attempts.last_sign(folder)
    damaged = record.put_unreadable_aside(folder)
    if ended is None or (folder / "result.json").exists():
        return False
    facts = record.read_json(folder / "slurm.json") or {}
    reasons = ["SLURM ended this attempt at once: preempted, or its node failed", damaged]
    result = record.finish(folder, "preempted", 137, "; ".join(filter(None, reasons)))
    started = result.get("started") or facts.get("began") or ended
    result |= {"ended": ended, "seconds": max(0.0, ended - started), "slurm": {**facts, "ended": ended}}
    record.write_json(folder / "result.json", result)
    return True


def _progress(folder: Path) -> bool:
    """Whether another attempt after the one in `folder` would get further than this one."""
    # By one clock, that of the file system: this attempt wrote slurm.json before its ranks began.
    began = (folder / "slurm.json").stat().st_mtime
    if any(manifest.stat().st_mtime >= began for manifest in attempts.checkpoints(folder)):
        return True
    # What goes on in a way of its own gets further each time; what begins anew only reaches the same epoch again.
    return _last_epoch(folder) > max(map(_last_epoch, folder.glob("attempts/*")), default=0)


def _last_epoch(folder: Path) -> int:
    try:
        epochs = record.read_epochs(folder / "epochs.jsonl")
    except ValueError:
        return 0  # of an attempt that was set aside with it
    return epochs[-1].epoch if epochs else 0


def _accidents(folder: Path, job: str) -> int:
    results = [record.read_json(path) or {} for path in folder.glob("attempts/*/result.json")]
    return sum(
        1 for result in results if result.get("status") == "failed" and (result.get("slurm") or {}).get("job_id") == job
    )


def shown(command: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join(command)


if __name__ == "__main__":
    sys.exit(main())
