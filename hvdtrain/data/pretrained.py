"""Weights that Keras downloads: once for all who share the folder, under their name when they are whole, else anew.

`keras.utils.get_file` writes straight to a file's own name and takes any file of that name for finished. Where nodes share a home
folder one would load what another has just begun, and what a killed process left would fail in every later run. (This can go when
Keras writes aside and renames.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from hvdtrain.data.alive import alive
from hvdtrain.errors import UserError

Made = TypeVar("Made")
_ASIDE = ".fetching-"
_POLL_SECONDS = 0.5


def folder() -> Path:
    """Where Keras keeps weights, as `get_file` finds it."""
    home = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    if not os.access(home, os.W_OK):
        home = Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()) / ".keras"
    return home / "models"


def load(make: Callable[[], Made], files: Any, named: str) -> Made:
    """What `make` makes with weights from a file, or from the network.

    Args:
        files: Keras' module whose `get_file` downloads.
        named: the options that asked for it.

    Raises:
        UserError: it cannot be had; says why, and what to do.
    """
    got = _Files(files.get_file)
    original, files.get_file = files.get_file, got
    try:
        try:
            return make()
        except (OSError, ValueError, KeyError) as error:
            # A number is of the file system, which a new file would not change.
            if getattr(error, "errno", None) or not got.removed_last():
                raise
        return make()
    # That there is no network Keras says by a plain Exception.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = (
            f". Where nodes have no way out, fetch the weights once on the login node (they stay in {folder()}), or name a file: "
            "--weights FILE; --weights none begins at random"
        )
        raise UserError(f"{named}: {reason}{advice if got.asked else ''}") from error
    finally:
        files.get_file = original


class _Files:
    """Takes the place of `get_file`.

    Attributes:
        asked: whether a file was asked for.
    """

    def __init__(self, get_file: Callable[..., str]) -> None:
        self._get_file = get_file
        self.asked = False
        self._last: tuple[Path, tuple[int, ...]] | None = None

    def __call__(self, fname: str, origin: str, **options: Any) -> str:
        self.asked, self._last = True, None
        place = folder()
        path = place / fname
        if not path.exists():
            with _alone(place) as alone:
                if not path.exists():
                    self._download(path, origin, options, alone)
        # What is there needs no lock, nor a folder that may be written to; but where Keras knows the checksum, and it is another,
        # it writes the file anew.
        checked = options.get("file_hash") or options.get("md5_hash")
        with _alone(place) if checked else contextlib.nullcontext():
            self._get_file(fname, origin, **options | {"cache_subdir": str(place)})
        self._last = path, _identity(path)
        return str(path)

    def _download(self, path: Path, origin: str, options: dict[str, Any], alone: bool) -> None:
        if alone:  # those of processes that were killed
            for old in path.parent.glob(f"{_ASIDE}*"):
                shutil.rmtree(old, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=path.parent) as aside, _watched(Path(aside)):
            os.replace(self._get_file(path.name, origin, **options | {"cache_subdir": aside}), path)

    def removed_last(self) -> bool:
        """Remove the file that was asked for last, which cannot be loaded; unless another process has replaced it since."""
        if self._last is None:
            return False
        path, known = self._last
        with _alone(path.parent), contextlib.suppress(FileNotFoundError):
            if _identity(path) == known:
                path.unlink()
        return True


@contextlib.contextmanager
def _watched(aside: Path) -> Iterator[None]:
    """While what lies in `aside` grows the world is alive, however long it takes: Keras tells nothing until a file is whole."""
    over = threading.Event()

    def watch() -> None:
        known = 0
        while not over.wait(_POLL_SECONDS):
            if (now := _bytes_in(aside)) > known:
                alive("fetching weights")
            known = now

    thread = threading.Thread(target=watch, name="hvdtrain-download", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes_in(folder: Path) -> int:
    with contextlib.suppress(OSError):  # one that was there a moment ago
        return sum(path.stat().st_size for path in folder.iterdir())
    return 0


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()  # a number of a file is soon given to the next one
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """One process at a time, on whatever node; says whether it is so, for not every file system has locks."""
    with contextlib.ExitStack() as opened:
        try:
            place.mkdir(parents=True, exist_ok=True)
            file = opened.enter_context(open(place / ".hvdtrain.lock", "w", encoding="utf-8"))
            locked = _locked(file, place)
        except OSError:
            locked = False
        yield locked


def _locked(file: IO[str], place: Path) -> bool:
    known = None
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if known is None:
                print(f"waiting for another process that fetches weights to {place}", flush=True)
            # Who waits for a download that stands still is not alive either: it may be the other node's of this very world.
            if (now := sum(map(_bytes_in, place.glob(f"{_ASIDE}*")))) > (known or 0):
                alive("waiting for weights")
            known = now
            time.sleep(_POLL_SECONDS)
