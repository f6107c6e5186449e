"""Starting jobs of a few lines through the real commands, in an environment that no launcher has touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

_OTHERS = ("SLURM", "OMPI_", "PMI", "HOROVOD_", "HVDTRAIN_", "OMP_", "MKL_")


def environment(**added: str) -> dict[str, str]:
    """This process's own variables without any launcher's, and no GPUs; then `added`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    return {**own, "CUDA_VISIBLE_DEVICES": "", **added}


def run(module: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments...` to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=environment(**variables), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@contextmanager
def started(
    *command: object, ignored: Collection[signal.Signals] = (), **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is surely gone afterwards; `command` follows the interpreter. It is born with signals `ignored`."""

    def dispositions() -> None:
        # A test run in the background, or by nohup, has some ignored, and its children inherit that.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=environment(**variables),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=dispositions,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `condition` becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met


def script(folder: Path, text: str) -> Path:
    """A job with this text, in a folder whose name needs quoting."""
    path = folder / "my $(job)'s.py"
    path.write_text(text)
    return path
