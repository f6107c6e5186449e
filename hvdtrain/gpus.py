"""The truth about GPUs, from NVIDIA's management library: model, driver, clock, and what they do while training."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdtrain import machine, record

#: Between two samples. Utilisation is itself a mean over up to a second.
_SAMPLE_SECONDS = 1.0
#: Between two writings; a killed rank loses no more than so much.
_WRITE_SECONDS = 30.0
FOLDER = "gpus"
#: What a sample asks NVML for and is averaged: percent, W, MHz.
_MEANS: dict[str, Callable[[Any, Any], float]] = {
    "utilisation": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
}


def describe(device: str) -> dict[str, Any]:
    """Driver, clock (MHz) and UUID of a rank's GPU; empty for the CPU, and where the library is missing.

    Args:
        device: `World.device`: "cpu" or "cuda:i", counted among the visible ones.
    """
    found = _handle(device)
    if found is None:
        return {}
    nvml, handle = found
    return {
        "gpu": _quietly(nvml, lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "uuid": _quietly(nvml, lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
        "driver": _quietly(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        "clock_mhz": _quietly(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "power_limit_w": _watts(_quietly(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
    }


class Sampler:
    """Samples one rank's GPU in a thread, to `gpus/rank-<r>.json` in the run folder.

    Means of utilisation (percent), power (W) and clock (MHz) over the samples, most memory used (MB), energy (J) since the start;
    None for what the GPU does not tell.
    """

    def __init__(self, device: str, rank: int, folder: Path) -> None:
        self._found = _handle(device)
        self._path = folder / FOLDER / f"rank-{rank}.json"
        self._stop = threading.Event()
        self._samples = 0
        #: Sum and number of what each quantity was found to be: a GPU may not have all of them (MIG, virtual ones).
        self._sums = dict.fromkeys(_MEANS, (0.0, 0))
        self._memory: float | None = None
        self._rank = rank
        self._path.unlink(missing_ok=True)  # of an earlier attempt
        if self._found is None:
            return
        nvml, handle = self._found
        self._uuid = _quietly(nvml, lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
        self._energy = self._joules()
        threading.Thread(target=self._run, name="hvdtrain-gpu-sampler", daemon=True).start()
        atexit.register(self.close)

    def close(self) -> None:
        """Write a last time."""
        if self._found is not None and not self._stop.is_set():
            self._stop.set()
            if not self._samples:  # else the GPU, which has nothing more to do, would lower the means
                self._sample()
            self._write()

    def _run(self) -> None:
        written = time.monotonic()
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._sample()
            if time.monotonic() - written > _WRITE_SECONDS or self._samples == 1:
                self._write()
                written = time.monotonic()

    def _sample(self) -> None:
        assert self._found is not None
        nvml, handle = self._found
        found = {name: _quietly(nvml, lambda ask=ask: ask(nvml, handle)) for name, ask in _MEANS.items()}
        for name, value in found.items():
            total, count = self._sums[name]
            self._sums[name] = (total, count) if value is None else (total + value, count + 1)
        memory = _quietly(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20)
        self._memory = memory if self._memory is None else max(self._memory, memory or 0.0)
        # A GPU that has fallen off the bus ends the training elsewhere, with a better message.
        self._samples += memory is not None or any(value is not None for value in found.values())

    def _write(self) -> None:
        if not self._samples:
            return
        now = self._joules()
        joules = None if now is None or self._energy is None else now - self._energy
        means = {name: total / count if count else None for name, (total, count) in self._sums.items()}
        facts = {"rank": self._rank, "uuid": self._uuid, "samples": self._samples, **means}
        facts |= {"memory_mb": self._memory, "energy_j": joules}
        with contextlib.suppress(OSError):  # a full disk must not end a training for the sake of statistics
            record.write_json(self._path, facts)

    def _joules(self) -> float | None:
        assert self._found is not None
        nvml, handle = self._found
        value = _quietly(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return None if value is None else value / 1000


_active: Sampler | None = None


def sample(device: str, rank: int, folder: Path) -> None:
    """Begin to sample this rank's GPU, if it has one."""
    global _active
    _active = Sampler(device, rank, folder)


def end_sampling() -> None:
    """Write what was sampled up to here: training is over."""
    if _active is not None:
        _active.close()


def _handle(device: str) -> tuple[ModuleType, Any] | None:
    """NVML and its handle of the device; None without a GPU, a driver or the library."""
    if not device.startswith("cuda"):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        # NVML counts all GPUs of the node, CUDA only the visible ones.
        names = machine.visible_gpus(os.environ)
        name = names[int(device.partition(":")[2] or 0)]
        if name.isdigit():
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(name))
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(name)
    except (pynvml.NVMLError, IndexError, ValueError):
        return None


def _quietly(nvml: ModuleType, ask: Any) -> Any:
    """What a GPU does not support is None."""
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
