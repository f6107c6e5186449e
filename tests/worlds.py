"""Starting real ranks, for all tests."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
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
    cold: bool = False,
    **environment: str,
) -> Ended:
    """Start `ranks` real ranks of a script through `python -m hvdtrain.launch` and wait for their end.

    Args:
        cold: each rank is an interpreter that the launcher starts, also where a warm process could be the rank (`tests/warm`).
    """
    command = [sys.executable, "-m", "hvdtrain.launch", "-n", str(ranks), *options, str(script), *map(str, arguments)]
    face = "" if cold else _face(script, environment.get("KERAS_BACKEND", ""))
    whole = {**os.environ, **(warm(face) if face else {}), **environment}
    began = time.monotonic()
    ended = subprocess.run(command, env=whole, capture_output=True, text=True, timeout=patience, check=False)
    return Ended(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)


#: Where how ranks start is what is tested, and with examples that users copy.
run_cold_world = functools.partial(run_world, cold=True)

#: What a rank imports first, by face of hvdtrain and backend of Keras.
_IMPORTED = {
    "torch": ("hvdtrain.torch", "horovod.torch"),
    "keras": ("hvdtrain.keras", "horovod.tensorflow"),
    "keras tensorflow": ("hvdtrain.keras", "horovod.tensorflow"),
    "keras torch": ("hvdtrain.keras", "horovod.torch"),
}
_FOLDER = Path(__file__).with_name("warm")


def warm(*faces: str) -> dict[str, str]:
    """Variables by which ranks of these faces, wherever a process with them starts some, are forked from warm processes."""
    return _variables("") | {"HVDTRAIN_TESTS_WARM": ",".join(map(_servers, faces))}


def _face(script: Path | str, backend: str) -> str:
    """Of this script, or job by name; empty where it does not say, or chooses a backend before it imports Keras."""
    if backend:
        return f"keras {backend}"
    file = script if isinstance(script, Path) else _FOLDER.parents[1] / "jobs" / f"{script}.py"
    text = file.read_text() if file.is_file() else ""
    if "KERAS_BACKEND" in text:
        return ""
    return "keras" if "hvdtrain.keras" in text else "torch" if "hvdtrain.torch" in text else ""


def _variables(backend: str) -> dict[str, str]:
    path = [str(_FOLDER), str(_FOLDER.parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # As launchers have it for ranks of one core.
    found = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    return found | ({"KERAS_BACKEND": backend} if backend else {})


@functools.cache
def _servers(face: str) -> str:
    """Addresses of two warm processes that live as long as this one."""
    folder = tempfile.mkdtemp(prefix="hvdtrain-warm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    addresses = [f"{folder}/{number}" for number in range(2)]
    environment = {**os.environ, **_variables(face.partition(" ")[2])}
    words = [sys.executable, str(_FOLDER / "server.py")]
    started = [
        subprocess.Popen([*words, each, *_IMPORTED[face]], env=environment, start_new_session=True)
        for each in addresses
    ]
    for process, address in zip(started, addresses, strict=True):
        atexit.register(process.kill)
        while not Path(address).exists():
            if process.poll() is not None:
                raise RuntimeError(f"the warm process of {face} ended with status {process.returncode}")
            time.sleep(0.05)
    return ":".join(addresses)


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
