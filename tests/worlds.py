"""Starting real ranks, for all tests."""

from __future__ import annotations

import fcntl
import functools
import os
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
    "keras tensorflow": ("hvdtrain.keras", "horovod.tensorflow"),
    "keras torch": ("hvdtrain.keras", "horovod.torch"),
}
_FOLDER = Path(__file__).with_name("warm")


def warm(*faces: str) -> dict[str, str]:
    """Variables by which ranks of these faces, wherever a process with them starts some, are forked from warm processes."""
    return _variables("") | {"HVDTRAIN_TESTS_WARM": ",".join(map(_servers, faces))}


def _face(script: Path | str, backend: str) -> str:
    """Of this script, or job by name; empty where it does not say, or chooses a backend before it imports Keras."""
    file = script if isinstance(script, Path) else _FOLDER.parents[1] / "jobs" / f"{script}.py"
    text = file.read_text() if file.is_file() else ""
    if not backend and "KERAS_BACKEND" in text:
        return ""
    if backend or "hvdtrain.keras" in text:
        return f"keras {backend or 'tensorflow'}"
    return "torch" if "hvdtrain.torch" in text else ""


def _variables(backend: str) -> dict[str, str]:
    path = [str(_FOLDER), str(_FOLDER.parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # As launchers have it for ranks of one core.
    found = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    return found | ({"KERAS_BACKEND": backend} if backend else {})


@functools.cache
def _home() -> tuple[Path, int]:
    """Where addresses of warm processes are, and whose end is theirs: all workers of pytest-xdist have the same ones."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return Path(tempfile.mkdtemp(prefix="hvdtrain-warm-")), os.getpid()
    home = Path(tempfile.gettempdir()) / f"hvdtrain-warm-{run}"
    home.mkdir(mode=0o700, exist_ok=True)
    return home, os.getppid()


@functools.cache
def _servers(face: str) -> str:
    """Addresses of two warm processes, which are started where nobody has."""
    home, owner = _home()
    addresses = [home / f"{face.replace(' ', '-')}-{number}" for number in range(2)]
    folder = os.open(home, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    if not all(address.exists() for address in addresses):
        _start(face, addresses, owner)
    os.close(folder)  # and with it the lock
    return ":".join(map(str, addresses))


def _start(face: str, addresses: Sequence[Path], owner: int) -> None:
    environment = {**os.environ, **_variables(face.partition(" ")[2])}
    words = [sys.executable, str(_FOLDER / "server.py")]
    started = [
        subprocess.Popen([*words, each, str(owner), *_IMPORTED[face]], env=environment, start_new_session=True)
        for each in addresses
    ]
    for process, address in zip(started, addresses, strict=True):
        while not address.exists():
            if process.poll() is not None:
                raise RuntimeError(f"the warm process of {face} ended with status {process.returncode}")
            time.sleep(0.05)


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
