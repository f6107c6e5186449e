"""Says how far the build is: one line that is rewritten on a terminal, a line now and then on a pipe."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from typing import TextIO

PIPE_INTERVAL = 10.0


def clock(seconds: float) -> str:
    """``75`` -> ``1m15s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Progress:
    """Percent by expected compile time, elapsed time, and what is being compiled."""

    def __init__(self, total: float, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._total = max(total, 1e-9)
        self._stream = stream
        self._now = now
        self._began = now()
        self._said = self._began
        self._done = 0.0
        self._active: dict[str, tuple[float, float]] = {}
        self._live = stream.isatty()
        self._lock = threading.RLock()

    def started(self, name: str, seconds: float) -> None:
        """A part that is expected to take ``seconds`` began."""
        with self._lock:
            self._active[name] = (self._now(), seconds)
            self.tick()

    def finished(self, name: str) -> None:
        """A part is done."""
        with self._lock:
            self._done += self._active.pop(name)[1]
            self.tick()

    def tick(self) -> None:
        """Say where we are, if it is time to."""
        with self._lock:
            now = self._now()
            if not self._live and now - self._said < PIPE_INTERVAL:
                return
            self._said = now
            line = self.line()
            if self._live:
                width = shutil.get_terminal_size().columns - 1
                self._stream.write("\r" + line[:width].ljust(width))
            else:
                self._stream.write(line + "\n")
            self._stream.flush()

    def line(self) -> str:
        """The line, e.g. ``compiling  43%  51s  torch, core``."""
        now = self._now()
        # A part on its way counts by its time, but is never done before it says so.
        partly = sum(min(now - began, 0.9 * seconds) for began, seconds in self._active.values())
        percent = min(100, int(100 * (self._done + partly) / self._total))
        return f"compiling {percent:3d}%  {clock(now - self._began)}  {', '.join(self._active)}".rstrip()

    def close(self) -> None:
        """Leave the terminal's line empty for what comes next."""
        with self._lock:
            if self._live:
                width = shutil.get_terminal_size().columns - 1
                self._stream.write("\r" + " " * width + "\r")
                self._stream.flush()
