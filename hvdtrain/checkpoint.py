"""A folder of checkpoints that survives kill -9, a full disk and a damaged file; what is in them is the caller's.

Each save is a payload and, written last, a manifest with its checksum: a checkpoint exists when its manifest does. Payload and
manifest are written aside and renamed, under a name that no earlier save had, so no moment exists in which a kill loses the
checkpoint before. One process (rank 0) writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from hvdtrain import attempts, record
from hvdtrain.errors import UserError

_READ_BYTES = 1 << 20
#: Names of payloads, and of what is written aside on the way to one and to its manifest. The folder may be one of the user's.
_PAYLOAD = re.compile(r"\d{5,}-epoch-\d+-step-\d+\.ckpt")
_ASIDE = re.compile(r"\.\d{5,}-epoch-\d+-step-\d+\.(ckpt\.part|json\.[\d.]+)")


class CheckpointError(UserError):
    """A checkpoint cannot be written, or none can be read; says what is intact and what to do."""


@dataclass(frozen=True)
class Saved:
    """One checkpoint.

    Attributes:
        path: of the payload.
        epoch: finished epochs.
        step: optimizer steps made.
        score: higher is better; None for one that was not judged.
        facts: what the caller stored beside the payload, JSON values.
    """

    path: Path
    epoch: int
    step: int
    score: float | None
    facts: dict[str, Any]
    sequence: int
    size: int
    sha256: str

    def damage(self) -> str:
        """What is wrong with the payload on disk; empty when it is what was saved."""
        if not self.sha256:
            return "its manifest cannot be read"
        try:
            size = self.path.stat().st_size
            if size != self.size:
                return f"it has {size:,} of {self.size:,} bytes"
            return "" if _checksum(self.path) == self.sha256 else "its checksum is wrong"
        except OSError as error:
            return f"it cannot be read ({error.strerror})"


def check_keep(keep: int) -> None:
    """Refuse a number of checkpoints that would leave none to go on from.

    Raises:
        UserError: it is less than 1.
    """
    if keep < 1:
        raise UserError(f"keep={keep}: at least the newest checkpoint must stay")


class Store:
    """The checkpoints of one training.

    Args:
        folder: made at the first save.
        keep: how many of the newest to keep, at least 1; the best one is kept besides.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        check_keep(keep)
        self.folder = folder
        self.keep = keep

    def save(
        self,
        write: Callable[[IO[bytes]], None],
        *,
        epoch: int,
        step: int,
        score: float | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Saved:
        """Write a checkpoint, wait until it is on disk, then remove those that are no longer kept.

        Args:
            write: writes the payload to the file it is given (which cannot seek).
            score: of the model, higher is better; not finite counts as none.

        Raises:
            CheckpointError: it could not be written (disk full, no permission, ...); earlier ones are intact.
        """
        if (run := record.run_dir()) is not None:
            record.check_current(run)
        sequence = 1 + max((int(path.name.split("-")[0]) for path in self._manifests()), default=0)
        path = self.folder / f"{sequence:05d}-epoch-{epoch}-step-{step}.ckpt"
        aside = path.with_name(f".{path.name}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            if run is not None:
                attempts.note_checkpoints(run, self.folder)
            with open(aside, "wb") as raw:
                file = _Hashing(raw)
                write(cast("IO[bytes]", file))
                raw.flush()
                os.fsync(raw.fileno())
            os.replace(aside, path)
            facts = dict(facts or {})
            score = score if score is not None and math.isfinite(score) else None
            saved = Saved(path, epoch, step, score, facts, sequence, file.size, file.hash.hexdigest())
            _write_manifest(saved)
            _sync_folder(self.folder)
        except OSError as error:
            raise self._refused(error, path) from None
        finally:
            # Also when `write` itself fails: nothing half-written stays, and nothing without a manifest.
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
                if not _manifest(path).exists():
                    path.unlink(missing_ok=True)
        self._prune()
        return saved

    def note(self, saved: Saved, **facts: Any) -> None:
        """Add to what is stored beside the payload of `saved`.

        Raises:
            CheckpointError: it could not be written; the checkpoint is as it was.
        """
        if (run := record.run_dir()) is not None:
            record.check_current(run)
        try:
            _write_manifest(dataclasses.replace(saved, facts={**saved.facts, **facts}))
        except OSError as error:
            raise self._refused(error, saved.path) from None

    def all(self) -> list[Saved]:
        """All checkpoints, oldest first; their payloads are not looked at."""
        return [saved for path in self._manifests() if (saved := _read(path)) is not None]

    def newest(self, say: Callable[[str], None]) -> Saved | None:
        """The newest checkpoint whose payload is intact, or None if there is none at all.

        Args:
            say: is told of each damaged one that was passed over.

        Raises:
            CheckpointError: there are checkpoints, and all are damaged.
        """
        return self._first_intact(sorted(self.all(), key=lambda saved: -saved.sequence), say)

    def best(self, say: Callable[[str], None] = lambda text: None) -> Saved | None:
        """The intact one with the highest score, or None if none was judged; arguments and errors as `newest`."""
        judged = [saved for saved in self.all() if saved.score is not None]
        return self._first_intact(sorted(judged, key=lambda saved: (-(saved.score or 0.0), saved.sequence)), say)

    def _first_intact(self, candidates: list[Saved], say: Callable[[str], None]) -> Saved | None:
        damages = []
        for saved in candidates:
            if not (damage := saved.damage()):
                return saved
            damages.append(f"checkpoint {saved.path} is damaged: {damage}")
            if saved is not candidates[-1]:
                say(f"{damages[-1]}; taking the one before")
        if damages:
            raise CheckpointError(
                "\n".join([*damages, f"none is left. To train from the start, move {self.folder} away"])
            )
        return None

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob(attempts.MANIFESTS), key=lambda path: int(path.name.split("-")[0]))

    def _prune(self) -> None:
        present = self.all()
        judged = [saved for saved in present if saved.score is not None]
        best = max(judged, key=lambda saved: (saved.score, -saved.sequence), default=None)
        for saved in present[: -self.keep]:
            if saved is not best:
                # The manifest first: what is half-removed must not look like a damaged checkpoint.
                _manifest(saved.path).unlink(missing_ok=True)
                saved.path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what killed saves and removals left: parts, and payloads without a manifest."""
        for path in list(self.folder.iterdir()):
            if _ASIDE.fullmatch(path.name) or (_PAYLOAD.fullmatch(path.name) and not _manifest(path).exists()):
                path.unlink(missing_ok=True)

    def _refused(self, error: OSError, path: Path) -> CheckpointError:
        with contextlib.suppress(OSError):
            free = f"; {shutil.disk_usage(self.folder).free / 2**20:,.0f} MiB are free there"
            newest = max(self.all(), key=lambda saved: saved.sequence, default=None)
            intact = f"The one before ({newest.path.name}) is intact" if newest else "There is none before it"
            return CheckpointError(
                f"checkpoint {path} cannot be written: {error.strerror}{free}. {intact}: make room, then start again"
            )
        return CheckpointError(f"checkpoint {path} cannot be written: {error.strerror}")


@dataclass
class _Hashing:
    """A file that can only be written to, and knows the checksum of what was."""

    raw: IO[bytes]
    size: int = 0
    hash: Any = field(default_factory=hashlib.sha256)

    def write(self, data: Any) -> int:
        # Readers of the file count bytes, whatever the elements of `data` are.
        view = memoryview(data).cast("B")
        self.raw.write(view)
        self.hash.update(view)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        self.raw.flush()


def _manifest(path: Path) -> Path:
    return path.with_suffix(".json")


def _write_manifest(saved: Saved) -> None:
    names = ("epoch", "step", "score", "facts", "size", "sha256")
    record.write_json(_manifest(saved.path), {name: getattr(saved, name) for name in names})


def _read(manifest: Path) -> Saved | None:
    """None when it was removed meanwhile. One that cannot be read counts as a damaged checkpoint, known by its name alone."""
    sequence, epoch, step = (int(part) for part in manifest.stem.split("-") if part.isdigit())
    path = manifest.with_suffix(".ckpt")
    try:
        content = record.read_json(manifest)
    except (OSError, ValueError):
        return Saved(path, epoch, step, None, {}, sequence, size=0, sha256="")
    if content is None:
        return None
    return Saved(
        path,
        epoch,
        step,
        content.get("score"),
        content.get("facts", {}),
        sequence,
        content.get("size", 0),
        content.get("sha256", ""),
    )


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """A rename is safe from a power cut only when its folder has been written too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
