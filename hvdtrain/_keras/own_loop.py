"""Checkpoints and agreed stops for Keras loops of one's own; `fit` has its own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras

from hvdtrain import stop
from hvdtrain._keras import checkpoints as files
from hvdtrain._keras import state
from hvdtrain._keras.start import gather_objects, session, sum_over_ranks, world
from hvdtrain.errors import UserError
from hvdtrain.own_folder import left_behind, place


class Checkpoints:
    """Saves and restores a loop of one's own after whole epochs; every method must be called by all ranks.

        checkpoints = hk.Checkpoints(model, optimizer)
        for epoch in range(checkpoints.resume() + 1, 31):
            ...
            checkpoints.save(epoch)
            checkpoints.stop_if_asked(epoch)

    From its making on a signal (SIGTERM, SIGUSR1, SIGUSR2) only asks: `stop_if_asked` answers.

    Args:
        model: built.
        optimizer: from `DistributedOptimizer`.
        folder: for the files; None: under the run folder, if there is one. What another training of the process has, a `fit` or a
            loop with another model or optimizer, is passed over: `FOLDER-2`, ...
        keep: how many of the newest stay, besides the best.
    """

    def __init__(self, model: Any, optimizer: Any, folder: Path | str | None = None, *, keep: int = 2) -> None:
        self._model, self._optimizer = model, optimizer
        self._asked = place(folder)
        self._files = files.Checkpoints(files.folder_for(folder, model, optimizer), keep)
        self._saved = 0
        stop.watch_always()

    def resume(self) -> int:
        """Give every rank rank 0's state, or that of the newest intact checkpoint; returns the epochs that it has behind it.

        On another number of ranks weights, momentum and steps stay, and the learning rate is the one for that number.

        Raises:
            UserError: the checkpoint is of another model or optimizer.
        """
        state.broadcast(self._model, self._optimizer)
        content = self._files.load()
        if content is None:
            if world().rank == 0 and (told := left_behind(self._asked, self._files.folder)):
                warnings.warn(told, stacklevel=2)
            return 0
        if content["consumed"]:
            raise UserError(
                f"the newest checkpoint in {self._files.folder} lies within an epoch of model.fit, which alone can go on from it"
            )
        state.restore_shared(self._model, self._optimizer, content)
        state.restore_accumulated(self._optimizer, [each.get("accumulated") for each in content["ranks"]])
        if len(content["ranks"]) == world().size:
            state.restore_own(self._model, content["ranks"][world().rank])
        self._saved = int(content["epoch"])
        if world().rank == 0:
            print(f"hvdtrain: going on after epoch {self._saved}, from {self._files.folder}", flush=True)
        return self._saved

    def save(self, epoch: int, score: float | None = None) -> None:
        """Write what all ranks share, and what each has of its own.

        Args:
            epoch: how many are done.
            score: of the model, the higher the better; the best is kept.

        Raises:
            CheckpointError: rank 0 could not; the one before is intact.
        """
        session().progress("saving")
        state.average_statistics(self._model)
        shared = state.shared_state(self._model, self._optimizer)
        content = {**shared, "epoch": epoch, "consumed": 0, "meter": {}, "history": {}, "callbacks": {}}
        step = int(keras.ops.convert_to_numpy(self._optimizer.iterations))
        own = {**state.own_state(self._model), "accumulated": state.accumulated(self._optimizer)}
        self._files.save(content, own, epoch, step, score)
        self._saved = epoch

    def stop_if_asked(self, epoch: int) -> None:
        """After an epoch: when any rank was asked to stop, save (unless that is done) and end all of them.

        Raises:
            Stopped: ends the process with the status that means "start me again".
        """
        if sum_over_ranks([float(stop.requested() != 0)])[0] == 0:
            return
        if self._saved != epoch:
            self.save(epoch)
        number = next(each for each in gather_objects(stop.requested()) if each)
        stop.agreed(number)
        folder = self._files.folder
        left = f"checkpoint in {folder}" if folder is not None else "no checkpoint: there is no run folder"
        raise stop.Stopped(f"all ranks stopped after epoch {epoch}, asked by {stop.name(number)}; {left}")
