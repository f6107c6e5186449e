"""Starting real ranks, for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """A world that has ended: status, what it printed, how long it took."""

    status: int
    out: str
    err: str
    seconds: float


def run_world(
    ranks: int,
    script: Path | str,
    *arguments: object,
    options: Sequence[str] = (),
    patience: float = 120.0,
    **environment: str,
) -> Ended:
    """Start `ranks` real ranks of a script through `python -m hvdtrain.launch` and wait for their end."""
    command = [sys.executable, "-m", "hvdtrain.launch", "-n", str(ranks), *options, str(script), *map(str, arguments)]
    began = time.monotonic()
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=patience, check=False
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)


def still_running(mark: str) -> list[str]:
    """Command lines of living processes that contain `mark`: nothing may stay behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found
