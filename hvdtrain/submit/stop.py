"""Ctrl-C, SIGTERM and a closed terminal, as a flag that the loop looks at: nothing is interrupted half-way."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """While entered, signals that ask to end are counted instead of raised."""

    def __init__(self) -> None:
        self.times = 0
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether to end."""
        return self.times > 0

    @property
    def impatient(self) -> bool:
        """Whether to end at once: the user pressed Ctrl-C again."""
        return self.times > 1

    def __enter__(self) -> Stop:
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # nohup and background jobs ignore some of them on purpose
                self._before[number] = before
                signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            # Once asked, only the summary is left. One more Ctrl-C must not end it, nor Python's own end, by a signal.
            ignored = self.asked and number == signal.SIGINT
            signal.signal(number, signal.SIG_IGN if ignored else before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.times += 1
        self.signal = signal.Signals(number)
