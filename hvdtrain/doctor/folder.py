"""Checks of the folder where studies are kept: what the records rely on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from hvdtrain.doctor.check import REGISTRY, Context, Finding, failed, ok, skipped, warning
from hvdtrain.launch.preflight import RENDEZVOUS_DIR_VARIABLE, LaunchError, meeting_file

_PART = "node"
_FREE_GB = 5
_SKEW_SECONDS = 5.0
#: Where file systems of one machine usually are.
_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/scratch/local", "/local")
_UNFOUND = "ranks that plain srun starts without a run folder would not find rank 0, which says there where it is"


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder of our own where `folder` is, or would be; gone afterwards."""
    base = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    place = base / f".hvdtrain-doctor-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@REGISTRY.add(_PART, "run-folder")
def run_folder(context: Context) -> Finding:
    """Can records be written there, and is there room?"""
    try:
        with _scratch(context.folder) as place:
            (place / "probe").write_bytes(b"x" * 4096)
            free = shutil.disk_usage(place).free / 1e9
    except OSError as error:
        return failed(
            f"{context.folder} cannot be written: {error.strerror}",
            "nothing would be recorded",
            "give --out a folder that you may write",
        )
    if free < _FREE_GB:
        return warning(
            f"{free:.1f} GB are free in {context.folder}",
            "checkpoints fill a disk",
            "free some, or use --out elsewhere",
        )
    return ok(f"{context.folder.absolute()} can be written, {free:,.0f} GB free")


@REGISTRY.add(_PART, "atomic-rename")
def atomic_rename(context: Context) -> Finding:
    """Does a rename replace a file in one step? Records and checkpoints rely on it."""
    try:
        with _scratch(context.folder) as place:
            for text in ("old", "new"):
                (place / "aside").write_text(text)
                os.replace(place / "aside", place / "file")
            good = (place / "file").read_text() == "new" and not (place / "aside").exists()
    except OSError as error:
        return failed(
            f"renaming in {context.folder} fails: {error.strerror}",
            "records and checkpoints are written so",
            "use --out on another file system",
        )
    if not good:
        return failed(
            f"renaming in {context.folder} lost a file", "checkpoints would be lost", "use --out on another file system"
        )
    return ok("a rename replaces a file in one step")


@REGISTRY.add(_PART, "file-locks")
def file_locks(context: Context) -> Finding:
    """Do locks work? Two submits at once on a study are kept apart by one."""
    try:
        with _scratch(context.folder) as place, open(place / "lock", "w") as first, open(place / "lock") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return ok("a second lock on a file is refused")
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            return skipped(f"{context.folder} cannot be written")
    return warning(
        f"{context.folder} is on a file system without locks",
        "two submits at once on one study would not notice each other",
        "give each its own --study",
    )


@REGISTRY.add(_PART, "file-clock")
def file_clock(context: Context) -> Finding:
    """Does the file system's clock agree with this machine's?"""
    try:
        with _scratch(context.folder) as place:
            before = time.time()
            (place / "probe").touch()
            skew = (place / "probe").stat().st_mtime - (before + time.time()) / 2
    except OSError:
        return skipped(f"{context.folder} cannot be written")
    if abs(skew) > _SKEW_SECONDS:
        return warning(
            f"the file system's clock is {skew:+.1f} s off",
            "what is newer than what would be judged wrongly",
            "ask the administrator about NTP",
        )
    return ok(f"the file system's clock is {skew:+.1f} s off")


@REGISTRY.add(_PART, "meeting-folder")
def meeting_folder(context: Context) -> Finding:
    """Can rank 0 say where it is, in a folder that all nodes see?"""
    try:
        place = meeting_file().parent.absolute()
    except LaunchError as error:
        return warning(str(error), _UNFOUND, f"export {RENDEZVOUS_DIR_VARIABLE}=...")
    given = bool(os.environ.get(RENDEZVOUS_DIR_VARIABLE))
    # Ranks of a study meet in its folder, unless the variable names another; those that plain srun starts, in the home.
    local = [path for path in ([place] if given else [place, context.folder.absolute()]) if _of_one_machine(path)]
    if local and "HVDTRAIN_TESTCLUSTER" not in os.environ:
        return warning(
            f"{local[0]} looks like a folder of this machine alone",
            "ranks on other nodes would wait for a file that they never see",
            f"keep studies on the shared file system (--out), or set {RENDEZVOUS_DIR_VARIABLE}",
        )
    try:
        with _scratch(place) as probe:
            (probe / "address").write_text("here")
    except OSError as error:
        told = (
            f"{place} cannot be written: {error.strerror}",
            "ranks would not find rank 0, which says there where it is" if given else _UNFOUND,
            f"set {RENDEZVOUS_DIR_VARIABLE} to a folder that all nodes see and may write",
        )
        return failed(*told) if given else warning(*told)
    return ok(f"ranks meet in {place}")


def _of_one_machine(path: Path) -> bool:
    return any(str(path) == each or str(path).startswith(each + "/") for each in _LOCAL)
