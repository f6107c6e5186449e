"""Seconds by phase of an epoch, on this rank, without waiting for the device in any step."""

from __future__ import annotations

import time
from typing import Any

import torch

PHASES = ("data", "forward", "backward", "allreduce", "optimizer")
# Events that wait to be read; a read costs nothing once the device is past them.
_MOST_PENDING = 4096


class Phase:
    """The time inside is added to a clock's; made once, for a generator would be made anew in every step."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.start(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._clock.stop(self._name)


class Clock:
    """Seconds by phase.

    On a GPU a call returns long before its kernels have run, so events are put among the kernels and read later. For "data",
    too: what the host waits for while the GPU is still busy costs nothing, the GPU's own pause between two steps does.

    Args:
        device: of the model: "cpu" or "cuda:<n>".
    """

    def __init__(self, device: str) -> None:
        self._by_events = device.startswith("cuda")
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._began: dict[str, Any] = {}
        self._pending: list[tuple[str, Any, Any]] = []
        self._phases = {name: Phase(self, name) for name in PHASES}

    def start(self, phase: str) -> None:
        """The phase begins."""
        self._began[phase] = self._now()

    def stop(self, phase: str) -> None:
        """The phase that began last under this name ends."""
        began, ended = self._began.pop(phase), self._now()
        if isinstance(began, float):
            self._seconds[phase] += ended - began
            return
        self._pending.append((phase, began, ended))
        if len(self._pending) >= _MOST_PENDING:
            self._read()

    def phase(self, name: str) -> Phase:
        """Add the time inside to `name`."""
        return self._phases[name]

    def reset(self) -> None:
        """A new epoch begins."""
        self._pending.clear()
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def seconds(self, phase: str) -> float:
        """Seconds in `phase` since `reset`."""
        self._read()
        return self._seconds[phase]

    def _now(self) -> Any:
        if not self._by_events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        if self._pending:
            self._pending[-1][2].synchronize()
        for phase, began, ended in self._pending:
            self._seconds[phase] += began.elapsed_time(ended) / 1000.0
        self._pending.clear()
