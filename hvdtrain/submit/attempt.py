"""One attempt at one cell: its process group, its log, and how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from hvdtrain import record
from hvdtrain.record import Epoch
from hvdtrain.submit.cell import Cell
from hvdtrain.submit.lock import StudyLock
from hvdtrain.submit.progress import Display, View
from hvdtrain.submit.stop import Stop

#: How long a cell may take to end by itself after SIGTERM, before SIGKILL.
GRACE_SECONDS = 15.0
_POLL_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: A process may start another while it is being killed; so many rounds end any chain that is not an attack.
_ROUNDS = 5


class Attempt:
    """Runs `script.sh` of a cell folder until it ends or the user stops it."""

    def __init__(self, cell: Cell, folder: Path, lock: StudyLock) -> None:
        self.cell = cell
        self.folder = folder
        self._lock = lock
        self._stamp: tuple[int, int] | None = None

    def run(self, view: View, display: Display, stop: Stop) -> dict[str, Any]:
        """The `result.json` of this attempt, which is written whatever happened."""
        view.began = time.monotonic()
        display.started()
        process = self._start()
        self._lock.describe(group=process.pid)
        try:
            while process.poll() is None and not stop.asked:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                display.tick(self._look(view))
        except BaseException:
            _end(process, Stop())
            self._cancelled(process, "submit itself failed")
            raise
        if process.returncode is None:
            display.say(f"stopping {self.cell.name} (at most {GRACE_SECONDS:.0f} s; Ctrl-C again ends it at once)")
            _end(process, stop)
            return self._cancelled(process, f"stopped by {stop.signal.name if stop.signal else 'the user'}")
        if process.returncode != 0:
            _end_strays()  # ranks that a launcher left behind would go on writing
        return self._finish("failed", process)

    def _start(self) -> subprocess.Popen[bytes]:
        number = 1 + sum(1 for _ in (self.folder / "attempts").glob("*"))
        ranks = f"{self.cell.gpus} rank{'s' if self.cell.gpus > 1 else ''}"
        header = f"=== {self.cell.name}: attempt {number}, {ranks}, {time.strftime('%Y-%m-%d %H:%M:%S %z')} ===\n"
        parent = os.getpid()
        with open(self.folder / "log" / "job.log", "ab", buffering=0) as log:
            log.write(header.encode())
            return subprocess.Popen(
                ["bash", "script.sh"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own: Ctrl-C reaches submit alone, which then ends the cell in order.
                start_new_session=True,
                pass_fds=(self._lock.descriptor,),
                preexec_fn=lambda: _die_with(parent),
            )

    def _look(self, view: View) -> bool:
        """Read `epochs.jsonl` if it changed; whether it holds a new epoch."""
        try:
            status = (self.folder / "epochs.jsonl").stat()
        except FileNotFoundError:
            return False
        stamp = (status.st_size, status.st_mtime_ns)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        before, view.epochs = len(view.epochs), self._epochs(view.epochs)
        return len(view.epochs) > before

    def _epochs(self, before: list[Epoch]) -> list[Epoch]:
        try:
            return record.read_epochs(self.folder / "epochs.jsonl")
        except ValueError:
            return before  # `_finish` says what is wrong, once

    def _finish(self, status: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """The result: the one that the ranks or the launcher wrote, else `status` with the reason that can be seen."""
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        damaged = record.put_unreadable_aside(self.folder)
        reason = damaged or _reason(process.returncode, self.folder)
        return record.finish(self.folder, "failed" if damaged else status, code, reason)

    def _cancelled(self, process: subprocess.Popen[bytes], reason: str) -> dict[str, Any]:
        """The result after a stop. A launcher may have recorded its own end as a failure; it was the user's wish."""
        result = self._finish("cancelled", process)
        if result["status"] != "completed":
            result = {**result, "status": "cancelled", "reason": reason}
            record.write_json(self.folder / "result.json", result)
        return result


def _die_with(parent: int) -> None:
    """In the child: have the kernel send SIGTERM when submit dies, even by kill -9; else nobody would end the ranks."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _end(process: subprocess.Popen[bytes], stop: Stop) -> None:
    """SIGTERM to the group, a grace, SIGKILL to what is left. A further Ctrl-C ends the grace."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + GRACE_SECONDS
    while process.poll() is None and time.monotonic() < end and not stop.impatient:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
    # Before the launcher is gone, so that it cannot start anything in between.
    _end_strays()
    process.wait()


def adopt_orphans() -> None:
    """Have the kernel give us the processes that a dying launcher leaves, for `_end_strays`."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _end_strays() -> None:
    """Kill every process that came from the attempt, wherever it is; cells run one at a time, so all are its own."""
    import psutil

    for _ in range(_ROUNDS):
        strays = psutil.Process().children(recursive=True)
        if not strays:
            return
        for stray in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                stray.kill()
        psutil.wait_procs(strays, timeout=1.0)  # adopted ones are ours to reap


def _reason(code: int, folder: Path) -> str:
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    if code == 0:
        return "the job ended with exit status 0 but recorded no result"
    lines = tail(folder / "log" / "job.log", 1)
    return f"exit status {code}" + (f": {lines[0].strip()}" if lines else "")


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log that are not empty, of its newest attempt."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    found = [line.rstrip() for line in text.splitlines() if line.strip()]
    starts = [index for index, line in enumerate(found) if line.startswith("=== ") and ": attempt " in line]
    return found[starts[-1] + 1 if starts else 0 :][-lines:]
