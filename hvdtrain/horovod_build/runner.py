"""Runs the compiler: several files at once, one log, stop at the first error."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TextIO

from hvdtrain.horovod_build.progress import Progress
from hvdtrain.horovod_build.units import Link, Unit


class CommandFailed(Exception):
    """A compiler or linker ended with an error; ``output`` is what it wrote."""

    def __init__(self, name: str, status: int, output: str) -> None:
        super().__init__(f"{name}: exit status {status}")
        self.name = name
        self.status = status
        self.output = output


class _Stopped(Exception):
    """Another command failed or the user interrupted: this one need not run."""


class Runner:
    """Runs units in ``root`` on ``jobs`` cores and then the links, writing every command and its output to ``log``."""

    def __init__(self, root: Path, jobs: int, log: TextIO, environment: dict[str, str],
                 echo: TextIO | None = None) -> None:  # fmt: skip
        self._echo = echo
        self._root = root
        self._jobs = jobs
        self._log = log
        self._environment = environment
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, units: Sequence[Unit], links: Sequence[Link], progress: Progress) -> None:
        """Compile, then link. Raises CommandFailed for the first command that fails, after stopping the others."""
        outputs = [unit.output for unit in units] + [link.output for link in links]
        for folder in {(self._root / output).parent for output in outputs}:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._stage([(unit.name, unit.command, unit.seconds) for unit in units], progress)
            self._stage([(Path(link.install).name, link.command, 0.5) for link in links], progress)
        except BaseException:
            self._stop()
            raise

    def _stage(self, work: list[tuple[str, tuple[str, ...], float]], progress: Progress) -> None:
        with ThreadPoolExecutor(self._jobs) as pool:
            pending: set[Future[None]] = {pool.submit(self._one, *item, progress) for item in work}
            try:
                while pending:
                    # The time-out lets the progress line's clock move while one long file compiles.
                    done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
                    progress.tick()
                    for future in done:
                        future.result()
            except BaseException:
                self._stop()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _one(self, name: str, command: tuple[str, ...], seconds: float, progress: Progress) -> None:
        with self._lock:
            if self._stopped:
                raise _Stopped
            # A session of its own, so that stopping the driver g++ also stops the cc1plus it started.
            process = subprocess.Popen(
                command, cwd=self._root, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        progress.started(name, seconds)
        began = time.monotonic()
        output, _ = process.communicate()
        took = time.monotonic() - began
        with self._lock:
            self._running.discard(process)
            text = f"$ {shlex.join(command)}\n{output}# {name}: status {process.returncode}, {took:.1f} s\n"
            for stream in filter(None, (self._log, self._echo)):
                stream.write(text)
                stream.flush()
            if self._stopped:
                raise _Stopped
        if process.returncode != 0:
            raise CommandFailed(name, process.returncode, output)
        progress.finished(name)

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):  # ended a moment ago
                    os.killpg(process.pid, signal.SIGTERM)
