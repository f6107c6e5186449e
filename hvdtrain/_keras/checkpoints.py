"""Checkpoints of a Keras training: rank 0 writes what all ranks give, and all ranks learn whether it could."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import IO, Any

from hvdtrain._keras.start import from_rank_zero, gather_objects, world
from hvdtrain.checkpoint import CheckpointError, Store, check_keep
from hvdtrain.errors import UserError, agreed
from hvdtrain.own_folder import own_folder, place

#: Of each `fit` of this process that something of the user's ended before its last epoch, until a later training has a checkpoint.
_left_early: list[Checkpoints] = []
_MODULES = ("numpy", "ml_dtypes", "builtins", "collections", "_codecs")


class Checkpoints:
    """Saves and loads; every method must be called by all ranks.

    Args:
        folder: for the files; None saves nothing.
        keep: how many of the newest stay, besides the best.
    """

    def __init__(self, folder: Path | None, keep: int) -> None:
        self.folder = folder
        check_keep(keep)
        self._store = Store(folder, keep) if folder is not None else None

    def save(self, content: dict[str, Any], own: dict[str, Any], epoch: int, step: int, score: float | None) -> None:
        """Write `content`, the same on every rank, and each rank's `own`.

        Raises:
            CheckpointError: rank 0 could not; the one before is intact.
        """
        if self._store is None:
            return
        ranks = gather_objects(own)
        problem = ""
        if world().rank == 0:
            try:
                # Once this training has a checkpoint, the next start must not train those before it any further.
                for before in _left_early:
                    before._mark_over()
                facts = {"framework": "keras", "world_size": world().size}
                self._store.save(
                    lambda file: pickle.dump({**content, "ranks": ranks}, file, protocol=5),
                    epoch=epoch,
                    step=step,
                    score=score,
                    facts=facts,
                )
            except CheckpointError as error:
                problem = str(error)
        _raise_everywhere(problem, "checkpoint written")
        _left_early.clear()

    def leave_early(self) -> None:
        """A callback has ended this `fit`: the next start goes on with it, unless a later training has saved by then."""
        if self._store is not None:
            _left_early.append(self)

    def _mark_over(self) -> None:
        assert self._store is not None
        saved = max(self._store.all(), key=lambda each: each.sequence, default=None)
        if saved is not None:
            self._store.note(saved, over=True)

    def load(self) -> dict[str, Any] | None:
        """The newest intact checkpoint, or None; rank 0 reads it for all.

        Raises:
            CheckpointError: all are damaged.
        """
        if self._store is None:
            return None
        problem, content = "", None
        if world().rank == 0:
            try:
                saved = self._store.newest(_say)
                if saved is not None:
                    content = _read(saved.path)
                    over = content.get("stopped_early", False) or saved.facts.get("over", False)
                    content = {**(_at_the_end(content) if over else content), "stopped_early": over}
            except UserError as error:
                problem = str(error)
        _raise_everywhere(problem, "checkpoint read")
        loaded: dict[str, Any] | None = from_rank_zero(content, "checkpoint")
        return loaded


def _raise_everywhere(problem: str, what: str) -> None:
    if problem := from_rank_zero(problem, what):
        raise agreed(CheckpointError(problem))


def _at_the_end(content: dict[str, Any]) -> dict[str, Any]:
    """Of the epoch that a callback ended in its middle, where nothing goes on from there any more."""
    if "ended" not in content:
        return content
    return {**content["ended"], "ranks": [rank["ended"] for rank in content["ranks"]]}


class _Unpickler(pickle.Unpickler):
    """Reads arrays and plain values: a file that asks for anything else is not one of ours."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in _MODULES or name in ("eval", "exec", "getattr", "__import__", "open"):
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return super().find_class(module, name)


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = _unpickle(file)
    except (pickle.UnpicklingError, EOFError, ImportError, AttributeError) as error:
        raise UserError(f"{path} is not a checkpoint of hvdtrain.keras: {error}") from None
    if not isinstance(content, dict) or "weights" not in content:
        raise UserError(f"{path} is not a checkpoint of hvdtrain.keras")
    return content


def _unpickle(file: IO[bytes]) -> Any:
    return _Unpickler(file).load()


def folder_for(asked: Path | str | bool | None, *training: object, number: int = 1) -> Path | None:
    """None: beside the records, when there are any. False: nowhere. Each training of a process has a folder of its own.

    Args:
        training: what makes a loop the same one when it asks again; nothing for a `fit`.
        number: of the `fit`, from 1.
    """
    wanted = place(None if asked is True else asked)
    return own_folder(wanted, _say, *training, number=number) if wanted is not None else None


def _say(text: str) -> None:
    if world().rank == 0:
        print(f"hvdtrain: {text}", flush=True)
