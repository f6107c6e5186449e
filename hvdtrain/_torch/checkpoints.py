"""Checkpoints of a torch training: everything that a resumed run needs to go on as if it had never stopped."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from hvdtrain import stop
from hvdtrain._torch import generators, payload
from hvdtrain._torch.agreement import agreed_stop
from hvdtrain._torch.alike import refuse_unlike
from hvdtrain._torch.batch_norm import statistics
from hvdtrain._torch.distribute import synchronizer_of
from hvdtrain._torch.kept import Distributed, Stateful, as_kept, kind, load_optimizer, plain, refuse_another_kind
from hvdtrain._torch.loader import TrainLoader
from hvdtrain._torch.payload import AgreedCheckpointError
from hvdtrain._torch.start import from_rank_zero, gather_objects, world
from hvdtrain.checkpoint import CheckpointError, Saved, Store
from hvdtrain.errors import UserError
from hvdtrain.own_folder import left_behind, own_folder, place

_VERSION = 1
#: Between the name of a further model and that of its buffer.
_OF = " of model: "


class Checkpoints:
    """Saves and restores a training, all ranks together; rank 0 writes. `fit` makes one by itself.

    At the same number of ranks a resumed run goes on bit by bit (on CPUs; with more than two under Gloo only when Horovod sends
    gradients one by one, HOROVOD_FUSION_THRESHOLD=0, for else the order of additions varies). At another
    number it keeps weights, momentum and steps, and takes the learning rate that the rule gives for the new number.

    Args:
        model: from `distribute`.
        optimizer: from `distribute`.
        loader: of training batches, to go on in the middle of an epoch.
        folder: None for `checkpoints` in the run folder; without one, or with False, `save` and `resume` do nothing. What another
            training of the process has, a `fit` or a loop with another optimizer or loader, is passed over: `checkpoints-2`, ...
        keep: how many of the newest to keep, besides the best.
        states: schedulers, a GradScaler, further models and optimizers, ..., by name: all that has `state_dict` and
            `load_state_dict`.
        watch: from now on a signal sets a flag only, which `stop_if_asked` looks at; False where something else does.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: TrainLoader | None = None,
        *,
        folder: Path | str | Literal[False] | None = None,
        keep: int = 2,
        states: Mapping[str, Stateful] | None = None,
        watch: bool = True,
    ) -> None:
        if loader is not None and not hasattr(loader, "facts"):
            raise UserError(
                f"loader is a {type(loader).__name__}, which cannot tell where in an epoch it is: make it by "
                "ht.loader(dataset, batch_size), or leave it out"
            )
        self._asked = asked = place(folder)
        # One that is made again for the same loop goes on with what was saved.
        chosen = own_folder(asked, _say, optimizer, loader) if asked is not None else None
        self.store = Store(chosen, keep) if chosen is not None else None
        self.history: list[dict[str, Any]] = []
        self._model = plain(model)
        self._optimizer = optimizer
        self._synchronizer = synchronizer_of(optimizer)
        self._loader = loader
        self._states = {name: as_kept(state) for name, state in (states or {}).items()}
        if watch:
            _watch()
        self.partials: list[dict[str, Any]] = []
        #: By `resume`, which can do it for as many ranks as there were.
        self.generators_restored = False

    def save(
        self, epoch: int, score: float | None = None, *, within: bool = False, partial: dict[str, Any] | None = None
    ) -> Path | None:
        """Write a checkpoint. All ranks must call it, after the same step.

        Args:
            epoch: finished epochs.
            score: of the model, higher is better; the best one is kept.
            within: the epoch after them is under way, even though its last batch was given.
            partial: what this rank has to remember of an epoch under way; plain values and tensors.

        Returns:
            Where it is, on every rank; None without a folder.

        Raises:
            CheckpointError: it could not be written, on any rank; the one before is intact.
        """
        if self.store is None:
            return None
        own = {
            "generators": generators.state(),
            "loader": self._loader.state_dict(within, epoch) if self._loader is not None else None,
            "statistics": {name: value.cpu().clone() for name, value in self._statistics().items()},
            "partial": partial,
        }
        ranks = gather_objects(own)
        problem = ""
        path: Path | None = None
        if world().rank == 0:
            try:
                path = self._write(epoch, score, ranks).path
            except CheckpointError as error:
                problem = str(error)
        problem, path = from_rank_zero((problem, path))
        if problem:
            raise AgreedCheckpointError(problem)
        return path if isinstance(path, Path) else None

    def _statistics(self) -> dict[str, torch.Tensor]:
        """Of the model, and of further ones, whose names begin with those that they have in `states`."""
        found = statistics(self._model)
        for owner, state in self._states.items():
            if isinstance(state, nn.Module):
                found |= {f"{owner}{_OF}{name}": buffer for name, buffer in statistics(state).items()}
        return found

    def _write(self, epoch: int, score: float | None, ranks: Sequence[dict[str, Any]]) -> Saved:
        assert self.store is not None
        kept = {"": self._model.state_dict(), **{name: state.state_dict() for name, state in self._states.items()}}
        for key in self._statistics():
            # As `average_statistics` would, but of the copy: the ranks go on with their own.
            total = torch.stack([rank["statistics"][key].double() for rank in ranks]).mean(0)
            owner, _, name = key.rpartition(_OF)
            if name in kept[owner]:  # a state_dict of the user's own may leave it out
                kept[owner][name] = total.to(kept[owner][name].dtype)
        model = kept.pop("")
        content = {
            "version": _VERSION,
            "size": world().size,
            "model": model,
            "optimizer": self._optimizer.state_dict(),
            "synchronizer": self._synchronizer.state_dict(),
            "states": kept,
            "kinds": {name: kind(state) for name, state in {"": self._optimizer, **self._states}.items()},
            "ranks": list(ranks),
            "history": self.history,
            "epoch": epoch,
        }
        facts = {"world_size": world().size, "rule": self._synchronizer.pace.rule}
        return self.store.save(
            lambda file: payload.write(content, file),
            epoch=epoch,
            step=self._synchronizer.pace.steps,
            score=score,
            facts=facts,
        )

    def resume(self) -> int:
        """Go on from the newest intact checkpoint, and say so. All ranks must call it, after `distribute`.

        Returns:
            Finished epochs; 0 when there is no checkpoint.

        Raises:
            CheckpointError: there are checkpoints, and none can be read or belongs to this model.
            UserError: the ranks' loaders would give them different orders.
        """
        if self._loader is not None:
            refuse_unlike(self._loader.facts())
        return self.go_on()

    def go_on(self) -> int:
        """`resume` for loaders that are known to be alike."""
        if self.store is None:
            return 0
        problem, content, path = "", None, None
        if world().rank == 0:
            try:
                saved = self.store.newest(_say)
                if saved is not None:
                    path, content = saved.path, saved.path.read_bytes()
            except (CheckpointError, OSError) as error:
                problem = str(error)
        problem, content, path = from_rank_zero((problem, content, path))
        if problem:
            raise AgreedCheckpointError(problem)
        if content is None:
            if world().rank == 0 and (told := left_behind(self._asked, self.store.folder)):
                warnings.warn(told, stacklevel=3)
            return 0
        return self._restore(payload.read(content, path), path)

    def _restore(self, content: dict[str, Any], path: Path | None) -> int:
        kinds = content.get("kinds", {})  # earlier versions did not keep them
        try:
            self._model.load_state_dict(content["model"])
            load_optimizer(self._optimizer, content["optimizer"])
            refuse_another_kind(self._optimizer, kinds.get("", ""))
        except (RuntimeError, ValueError) as error:
            raise _of_another("model or optimizer", path, error) from None
        changed = {id(self._optimizer): self._synchronizer.resume(content["synchronizer"])}
        present = {name: state for name, state in self._states.items() if name in content["states"]}
        for name, state in present.items():
            try:
                state.load_state_dict(content["states"][name])
                refuse_another_kind(state, kinds.get(name, ""))
            except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
                raise _of_another(f'"{name}"', path, error) from None
            if isinstance(state, Distributed):
                changed[state.key] = state.changed
        for state in present.values():
            _rescale_scheduler(state, changed)
        ranks, rank = content["ranks"], world().rank
        lost = ""
        if self._loader is not None and ranks[0]["loader"] is not None:
            lost = self._loader.load_state_dict([each["loader"] for each in ranks], rank)
        own = [each["partial"] for each in ranks if each["partial"] is not None]
        if len(ranks) == world().size:
            generators.restore(ranks[rank]["generators"])
            buffers = self._statistics()
            for name, value in ranks[rank]["statistics"].items():
                if name in buffers:  # or it is of a further model that is no longer kept
                    buffers[name].copy_(value)
            self.partials = own[rank : rank + 1]
            self.generators_restored = True
        elif not lost:
            # Sums over ranks come out right wherever the parts are.
            self.partials = own if rank == 0 else [{} for _ in own[:1]]
        self.history = content["history"]
        if rank == 0:
            epoch, step = content["epoch"], self._synchronizer.pace.steps
            ranks_then = "" if len(ranks) == world().size else f" of {len(ranks)} ranks"
            _say(f"going on after epoch {epoch}, step {step}, from {path}{ranks_then}{f'; {lost}' if lost else ''}")
        return int(content["epoch"])

    def stop_if_asked(self, epoch: int, score: float | None = None, **details: Any) -> None:
        """After a step or an epoch: when the ranks have agreed to stop, save and end. All ranks must call it.

        Raises:
            Stopped: ends the process with the status that means "start me again".
        """
        if not agreed_stop():
            return
        raise stopped(self.save(epoch, score, **details), self._synchronizer.pace.steps)


def _of_another(what: str, path: Path | None, error: Exception) -> AgreedCheckpointError:
    """Of a script that was changed since."""
    explained = isinstance(error, (RuntimeError, ValueError)) and str(error)
    told = str(error).splitlines()[0] if explained else f"{type(error).__name__}: {error}"
    return AgreedCheckpointError(
        f"checkpoint {path} is of another {what} ({told}). To train from the start, move its folder away"
    )


def stopped(path: Path | None, step: int) -> stop.Stopped:
    """What all ranks raise after an agreed stop."""
    left = f"checkpoint {path}" if path is not None else "no checkpoint, for there is no folder for one"
    return stop.Stopped(f"all ranks stopped after step {step}, asked by {stop.name(agreed_stop())}; {left}")


def stop_requested() -> bool:
    """Have all ranks agreed, in the last `optimizer.step()`, to stop because one was asked to? The same on every rank."""
    _watch()
    return agreed_stop() != 0


_watched = False


def _watch() -> None:
    """Signals set a flag from now on, which `optimizer.step()` carries to all ranks."""
    global _watched
    if not _watched:
        stop.watch_always()
        _watched = True


def _rescale_scheduler(state: Stateful, changed: Mapping[int, list[float]]) -> None:
    """torch's schedulers remember the rates that they began with; some are made of others.

    Args:
        changed: factors by group, by the id of the optimizer.
    """
    for part in getattr(state, "_schedulers", ()):
        _rescale_scheduler(part, changed)
    factors = changed.get(id(getattr(state, "optimizer", None)))
    for name in ("base_lrs", "max_lrs"):
        rates = getattr(state, name, None)
        if rates is not None and factors is not None:
            setattr(state, name, [rate * factor for rate, factor in zip(rates, factors, strict=True)])


def _say(text: str) -> None:
    if world().rank == 0:
        print(text, file=sys.stderr, flush=True)
