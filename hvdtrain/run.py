"""`python -m hvdtrain.run JOB ...`: one rank of a job, under srun, mpirun, our starter, or alone.

Adds to `python JOB` what a recorded run needs: logs of their own for ranks other than 0, and `result.json`.
The job itself needs none of this and runs as a plain script too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from hvdtrain import gpus, late, launch, machine, record, world
from hvdtrain.errors import Diverged, UserError
from hvdtrain.launch.watchdog import JOB_STDERR_VARIABLE, leave
from hvdtrain.paths import find_job, make_folder
from hvdtrain.run_folder import RunLock, holding, take
from hvdtrain.stop import RESTART, Stopped

#: What a terminal that was closed, or a full disk, makes of a last word: the end is recorded all the same.
_UNHEARD = (OSError, ValueError)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status of this rank."""
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain.run",
        description="Run one rank of a job. Start several with srun, mpirun, or python -m hvdtrain.launch -n N.",
        allow_abbrev=False,
    )
    parser.add_argument("--run-dir", type=Path, help=f"folder for the records (default: ${record.RUN_DIR_VARIABLE})")
    parser.add_argument("job", help="name of a job, or a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the job")
    arguments = parser.parse_args(argv)
    try:
        job = find_job(arguments.job)
        place = world.detect()
        machine.keep_own_slice(place, os.environ)
        rank = place.rank
        lock = _enter(arguments.run_dir, rank)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while it waits for the folder
        print("error: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    _own_log(rank)
    # TensorFlow writes pages about the machine at import; it still says what goes wrong.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    late.parts()
    sys.argv = [str(job), *arguments.arguments]
    # As `python JOB` would: the job imports what lies beside it.
    sys.path.insert(0, str(job.parent))
    status, outcome, reason = _run(job)
    if status == 0 and place.size > 1 and launch.active is None and rank == 0:
        _say(
            f"warning: this job never called init() of hvdtrain.torch, so its {place.size} ranks ran one by one, unsynchronised"
        )
    gpus.end_sampling()
    folder = record.run_dir()
    if folder is not None and rank == 0:
        record.finish(folder, outcome, status, reason)
    if lock is not None:
        lock.close()
    return status


def _enter(run_dir: Path | None, rank: int) -> RunLock | None:
    """Name the run folder to all that reads the variable; rank 0 also takes it, where no launcher of ours has it already."""
    if (given := run_dir or record.run_dir()) is None:
        return None
    folder = given.resolve()  # a job may go elsewhere
    os.environ[record.RUN_DIR_VARIABLE] = str(folder)
    make_folder(folder, "the run folder")  # others than rank 0 log there
    lock = take(folder) if rank == 0 else None
    os.environ.update(holding(folder))  # what the job starts works there with it
    return lock


def _run(job: Path) -> tuple[int, str, str]:
    """Run the job; returns exit status, record status and reason. In a world of several a failure ends the process here."""
    try:
        runpy.run_path(str(job), run_name="__main__")
    except Stopped as stopped:
        _end_world(stopped, RESTART, "preempted")
        _say(f"stopped: {stopped}; exit status {RESTART} means start me again")
        return RESTART, "preempted", stopped.reason
    except SystemExit as error:
        # As Python does: whatever is no status is said, and 1 is the status.
        says = not (error.code is None or isinstance(error.code, int))
        status = 1 if says else int(error.code or 0)
        if status == 0:
            return 0, "completed", ""
        reason = str(error.code) if says else f"the job called sys.exit({status})"
        _end_world(UserError(reason), status)
        if says:
            _say(reason)
        return status, "failed", reason
    except UserError as error:
        outcome = "diverged" if isinstance(error, Diverged) else "failed"
        status = 1 if outcome == "diverged" else 2
        _end_world(error, status, outcome)
        _say(f"error: {error}")
        return status, outcome, str(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT, "cancelled", "interrupted"
    except Exception as error:  # noqa: BLE001 - the job is the user's code: whatever it raises is reported and recorded
        _end_world(_from_job(error, job), 1)
        with contextlib.suppress(*_UNHEARD):
            traceback.print_exception(_from_job(error, job))
        return 1, "failed", "".join(traceback.format_exception_only(error)).strip()
    return 0, "completed", ""


def _from_job(error: Exception, job: Path) -> Exception:
    """The same error with its traceback beginning in the job's file: our own frames tell its author nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(job):
        trace = trace.tb_next
    return error.with_traceback(trace) if trace is not None else error


def _end_world(error: BaseException, status: int, outcome: str = "failed") -> None:
    """End all ranks of a world of several, and this process; returns when this is the only rank."""
    session = launch.active
    if session is None or session.world.size == 1:
        return
    folder = record.run_dir()
    if getattr(error, "agreed", False):
        # Every rank raises the same: rank 0 says it, and they leave together.
        if session.world.rank == 0:
            stopped = isinstance(error, Stopped)
            ending = f"; exit status {status} means start me again" if stopped else ""
            if folder is not None:
                with contextlib.suppress(*record.UNWRITTEN):
                    record.finish(folder, outcome, status, str(error))
            _say(f"{'stopped' if stopped else 'error'}: {error}{ending}")
        session.close(after_rank_0=True)
        leave(status)
    if outcome == "diverged" and session.world.rank == 0 and folder is not None:
        with contextlib.suppress(*record.UNWRITTEN):
            record.finish(folder, outcome, status, str(error))
    session.fail(error, status)


def _say(text: str) -> None:
    with contextlib.suppress(*_UNHEARD):
        print(text, file=sys.stderr)


def _own_log(rank: int) -> None:
    """Send output of ranks other than 0 to `log/rank-<r>.log`; the job's own stderr stays open for last words."""
    folder = record.run_dir()
    if folder is None or rank == 0:
        return
    log = folder / "log" / f"rank-{rank}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.environ[JOB_STDERR_VARIABLE] = str(os.dup(2))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
