"""The thread on every rank that tells rank 0 how far it is, and ends the process when the world has ended."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from hvdtrain import record
from hvdtrain.launch.control import GONE_SECONDS, Supervisor, Verdict
from hvdtrain.launch.rendezvous import Client
from hvdtrain.stop import RESTART

INTERVAL_SECONDS = 0.5
#: Beats between two looks at whether a later attempt has begun; the launcher waits longer before it starts ranks.
_LOOK_EVERY = 4
#: A file descriptor of the job's own stderr, set by `hvdtrain.run` when it sends a rank's output to a file.
JOB_STDERR_VARIABLE = "HVDTRAIN_JOB_STDERR"


class Watchdog:
    """Beats for one rank. On rank 0 it also minds the clock of the world, through `supervisor`.

    The main thread reports by `step`, `activity` and `waiting`; plain attributes, so that reporting costs nothing. What it cannot
    report is asked of `counters`: steps so far, each of one optimizer.
    """

    def __init__(
        self, rank: int, node: str, client: Client, stall_timeout: float, supervisor: Supervisor | None
    ) -> None:
        self.step = 0
        self.beats = 0
        self.activity = "starting"
        self.waiting = False
        self.counters: list[Callable[[], int]] = []
        self._told = 0, 0
        self._rank = rank
        self._node = node
        self._client = client
        self._stall_timeout = stall_timeout
        self._supervisor = supervisor
        self._main = threading.main_thread().ident
        self._stop = threading.Event()
        self._answered = time.monotonic()
        self._closing = False
        self._folder = record.run_dir() if record.ATTEMPT_VARIABLE in os.environ else None
        self._thread = threading.Thread(target=self._watch, name="hvdtrain-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _watch(self) -> None:
        looks = 0
        while not self._stop.wait(INTERVAL_SECONDS):
            looks += 1
            if self._folder is not None and looks % _LOOK_EVERY == 0 and record.superseded(self._folder):
                # The records belong to the later attempt; a word would only confuse its log.
                leave(1)
            verdict = self._supervisor.check() if self._supervisor else None
            verdict = self._beat() or verdict
            if verdict is not None:
                self.end(verdict)
            if self._closing:
                return

    def _beat(self) -> Verdict | None:
        counted = sum(count() for count in self.counters)
        if counted > self._told[0] and self.beats == self._told[1]:
            self.activity = "training"  # what the main thread told last is over
        self._told = counted, self.beats
        try:
            answer = self._client.send(
                "beat",
                node=self._node,
                step=self.step or counted,
                beats=self.beats + counted,
                activity=self.activity,
                waiting=self.waiting,
            )
            if answer.get("stack"):
                self._client.send("stack", stack=self._stack())
        except ConnectionError as error:
            return self._unanswered(frozen=isinstance(error.__cause__, TimeoutError))
        self._answered = time.monotonic()
        # Rank 0 leaves: whoever is left finishes on its own.
        self._closing = answer["state"] == "closing"
        return Verdict(**answer["verdict"]) if answer["state"] == "end" else None

    def _unanswered(self, frozen: bool) -> Verdict | None:
        """Rank 0 did not answer: is it dead (its port is closed), frozen (its kernel still listens), or out of reach?"""
        if self._stop.is_set():
            return None
        silent = time.monotonic() - self._answered
        patience = (self._stall_timeout or float("inf")) if frozen else GONE_SECONDS
        if silent <= patience:
            return None
        if not self._client.answered:
            address = self._client.address
            return Verdict(
                self._rank,
                f"rank {self._rank} on {self._node} cannot reach rank 0 at {address.host}:{address.port}: its name leads to an "
                "address that other nodes do not reach (see /etc/hosts there), or a firewall stands between them",
            )
        if frozen:
            return Verdict(0, f"rank 0 has not answered for {silent:.0f} s: frozen, or stuck in native code")
        return Verdict(0, "rank 0 died without a word (killed, out of memory, or crashed in native code)")

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._main or 0)
        if frame is None:
            return ""
        frames = traceback.extract_stack(frame)
        # What is above the job's own code (hvdtrain.run and runpy) tells its author nothing.
        outside = [index for index, entry in enumerate(frames) if "runpy" in entry.filename]
        return "".join(traceback.format_list(frames[outside[-1] + 1 if outside else 0 :]))

    def end(self, verdict: Verdict) -> NoReturn:
        """Say why, once for the world, and end this process without asking anybody's leave: the main thread may never return."""
        # Rank 0 speaks for all; if it is the one that died, the next one does. Of whom it has never heard, it cannot speak.
        speaker = 1 if verdict.rank == 0 else 0 if self._client.answered else self._rank
        if self._rank == speaker:
            say(f"{verdict.reason}; ending all other ranks")
            if verdict.details:
                say(verdict.details)
            with contextlib.suppress(*record.UNWRITTEN):
                record.note(reason=verdict.reason)
                if verdict.status == RESTART and self._rank == 0 and (folder := record.run_dir()) is not None:
                    record.finish(folder, "preempted", RESTART, verdict.reason)
        elif self._rank != verdict.rank:
            _print(f"hvdtrain: {verdict.reason}")
        if self._supervisor:
            wait_until(self._supervisor.all_left, seconds=3.0)
        leave(verdict.status)


def leave(status: int) -> NoReturn:
    """End this process now with its output flushed, without interpreter shutdown: Horovod's would wait for dead ranks."""
    for stream in (sys.stdout, sys.stderr):
        # A full disk or a closed pipe must not keep the process alive.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def say(text: str) -> None:
    """A line for the person who reads the job's own output, whatever file this rank's stderr goes to."""
    lines = "".join(f"hvdtrain: {line}\n" for line in text.rstrip().splitlines())
    data = lines.encode(errors="backslashreplace")  # as stderr does: a file's name may be no UTF-8
    try:
        os.write(int(os.environ.get(JOB_STDERR_VARIABLE, "2")), data)
    except OSError:
        _print(lines)


def _print(text: str) -> None:
    # What a full disk does not take must not keep the process alive.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr)


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Return when `done()` is true, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
