"""The callback that keeps `model.fit` in step: everything that all ranks do together besides averaging gradients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import keras

from hvdtrain import record, stop
from hvdtrain._keras import state
from hvdtrain._keras.backends import Wire, agreed_by
from hvdtrain._keras.checkpoints import Checkpoints, folder_for
from hvdtrain._keras.epochs import EpochMeter, Logs, effective_rate, numbers, plain
from hvdtrain._keras.further import Optimizers, accumulated_in, inner_state
from hvdtrain._keras.loader import Loader
from hvdtrain._keras.monitor import Monitor
from hvdtrain._keras.others import Others
from hvdtrain._keras.replicas import check as check_replicas
from hvdtrain._keras.start import gather_objects, session, sum_over_ranks, world
from hvdtrain._keras.told import note_settings, show_rates
from hvdtrain.errors import Diverged, agreed
from hvdtrain.record import EpochLog

#: Steps between two looks at whether the ranks' parameters are still the same.
REPLICA_EVERY = 200


class Training(keras.callbacks.Callback):  # type: ignore[misc]
    """From `callbacks()`. `fit` puts it last, so that it sees what the others did.

    Args:
        checkpoints: None: under the run folder, if there is one; a path; False: none.
        keep: newest checkpoints that stay, besides the best.
        replica_check: whether to compare the ranks' parameters every so often.
        monitor: marks the best checkpoint.
    """

    def __init__(
        self,
        checkpoints: Path | str | bool | None = None,
        keep: int = 2,
        replica_check: bool = True,
        monitor: Monitor | None = None,
    ) -> None:
        super().__init__()
        self._asked, self._keep = checkpoints, keep
        self.checkpoints = Checkpoints(None, keep)
        self.epochs_before = 0  # added to the epochs of this `fit`, where it is recorded
        self.recorded = 0  # the last epoch that the process has recorded
        self.validates = False  # whether `fit` evaluates, in some of its epochs at least
        self.left_early = False  # something of the user's ended this `fit`, before its last epoch
        self._replica_check = replica_check
        self._monitor = monitor or Monitor()
        self.others = Others()
        self.loader: Loader | None = None
        self.make_step: Any = None  # in place of the model's own train function, if anything
        self.content: dict[str, Any] | None = None
        self.history: dict[str, list[float | list[Any]]] = {}
        self.done = 0  # epochs before the first that this start trains
        self.over = False  # all that this `fit` was to train was trained before
        self._log: EpochLog | None = None
        self._meter = EpochMeter()
        self._skip = 0
        self._epoch = 0
        self._step = 0
        self._averaged = False
        self._ends = False  # a callback of this rank wants the training to end
        self._function: Any = None
        self._wires: list[Wire] = []
        self._restoring: dict[str, Any] | None = None
        self._within: tuple[dict[str, Any], dict[str, Any]] | None = None  # the state where a callback ended an epoch

    def begin(self, fit: int, recorded: int, first: int) -> None:
        """Another `fit` of this process: its number from 1, the last epoch that those before it recorded, its `initial_epoch`."""
        self.checkpoints = Checkpoints(folder_for(self._asked, number=fit), self._keep)
        self.history, self.over, self.left_early = {}, False, False
        self._within = self._restoring = None  # one before may have been broken off
        # One that begins to count at 0 is recorded after those before it; one that counts on (initial_epoch) does so itself.
        self.epochs_before = max(0, recorded - first)
        self.content = self.checkpoints.load()
        self.done = max(first, int(self.content["epoch"]) if self.content is not None else 0)
        self.recorded = max(recorded, self.epochs_before + self.done) if self.content is not None else recorded

    # --- beginning ---

    def on_train_begin(self, logs: Any = None) -> None:
        """Every rank starts from the same state: rank 0's, or that of a checkpoint."""
        inner = inner_state(self.model.optimizer)
        steps = self.params.get("steps") or (len(self.loader) if self.loader is not None else None)
        state.refuse_differing_steps(steps)
        self._meter.accumulated = accumulated_in(self.model.optimizer)
        self._optimizers = Optimizers(self.model)
        self._optimizers.begin(steps)
        if self.checkpoints.folder is not None:
            self.others.begin()
        if self.content is not None:
            self._resume(self.content, inner)
        self._wires = self._optimizers.wires
        self._wire = self._wires[0]
        for wire in self._wires:
            wire.reset_times()
        self._ends = False
        if record.run_dir() is not None and world().rank == 0:
            note_settings(self.model, self.loader)
            if not self.over:
                # What stands there from its first epoch on will be trained again; a finished `fit` leaves it to a later one.
                first = self.epochs_before + self.done + 1
                self._log = EpochLog(record.run_dir() / "epochs.jsonl", next_epoch=first)  # type: ignore[operator]
        self._optimizers.note_rate()
        show_rates(inner, self.params["epochs"], self._warmed_before())
        self._function = self.model.train_function
        self.model.train_function = self._run_step

    def _warmed_before(self) -> int:
        """Epochs that the warm-up has behind it besides those of this `fit`."""
        reached = self._optimizers.epochs_reached()
        if reached is None:
            return 0
        within = self.content is not None and self.content["consumed"]
        return (int(reached) if within else round(reached)) - self.done

    def _resume(self, content: dict[str, Any], inner: Any) -> None:
        self._optimizers.restore(content)
        ranks = content["ranks"]
        if len(ranks) == world().size:
            state.restore_own(self.model, ranks[world().rank])
        elif inner.steps_per_epoch and "steps_before" not in content:
            # From an earlier version.
            iterations = float(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            part = content["consumed"] / self.loader.n_samples if self.loader is not None else 0.0
            inner.steps_before = (content["epoch"] + part) * inner.steps_per_epoch - iterations
        self._restore_others(content)

    def _restore_others(self, content: dict[str, Any]) -> None:
        ranks = content["ranks"]
        if len(ranks) == world().size:
            self.others.restore(
                ranks[world().rank].get("callbacks", {})
            )  # an earlier version kept none of a rank's own
        self.others.restore(content["callbacks"])

    # --- one epoch ---

    @property
    def skips(self) -> bool:
        """Whether the step that begins, or ends, was made before this start."""
        return self._step < self._skip

    def before_others_begin(self, epoch: int) -> None:
        """The epoch begins, and no other callback has set its learning rate yet."""
        self._optimizers.before_schedules(self._begun(epoch))

    def _begun(self, epoch: int) -> dict[str, Any] | None:
        """The checkpoint, if it was made after this epoch had begun."""
        content = self.content
        if content is None or epoch != content["epoch"] or not (content["consumed"] or "anew" in content):
            return None
        return content

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Which samples come, and where in the epoch: Keras has just reset its metrics."""
        self._epoch, self._step, self._averaged, self._skip = epoch, 0, False, 0
        begun = self._begun(epoch)
        content = begun if begun is not None and begun["consumed"] else None  # or it begins anew
        self._optimizers.after_schedules(content)
        if self.loader is not None:
            self.loader.start(epoch + 1, content["consumed"] if content is not None else 0)
            self._skip = len(self.loader) - len(self.loader.batches())
        self._meter.begin()
        self._wire.reset_times()
        if content is not None:
            ranks = content["ranks"]
            if len(ranks) == world().size:
                self._restoring = ranks[world().rank]
                self._optimizers.restore_rate()
            # The others have just begun the epoch a second time.
            self._restore_others(content)
            state.restore_metrics(self.model, ranks)
            self._meter.restore(content["meter"])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """What this step sends beside gradients."""
        if self._restoring is not None and batch == self._skip:
            # Only now: making the epoch's iterator may draw random numbers, and did so before the checkpoint too.
            state.restore_own(self.model, self._restoring)
            self._restoring = None
        weight = 1.0
        self._part = None
        # Of data whose length Keras does not know, it begins one batch more.
        if self.loader is not None and self._skip <= batch < len(self.loader):
            self._part = self.loader.batches()[batch - self._skip]
            weight = self._part.weight
        for wire in self._wires:
            wire.start_step(weight, stop.requested() != 0, self._ends)

    def _run_step(self, data: Any) -> Any:
        """In place of the model's train function."""
        if self.skips:
            # Trained on before the checkpoint; torch has fetched the batch already, TensorFlow has not.
            if hasattr(data, "__next__"):
                next(data)
            # Of the epoch so far: the logs of the whole epoch, where no step of it is left.
            return self.model.get_metrics_result() if self._step == self._skip - 1 else {}
        if self._part is not None and self._part.samples == 0:
            # The batch only keeps this rank in step: it must leave no trace in metrics or statistics.
            kept = state.own_state(self.model)
            result = self._made(data)
            state.restore_own(self.model, kept)
            state.restore_own_metrics(self.model, kept)
            return result
        return self._made(data)

    def _made(self, data: Any) -> Any:
        return self._function(data) if self.make_step is None else self.make_step(data, self._step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """All ranks have made the same step: what they agreed on in it happens now."""
        first, self._step = self._step, batch + 1
        if world().size > 1:
            # One rank that ended by itself would leave the others waiting: all do after the step in which they learn of it.
            self._ends = self._ends or self.model.stop_training
            self.model.stop_training = False
        if first < self._skip:
            return
        self._wire.end_step()
        if self._part is not None and self._part.weight != 1.0:
            self._optimizers.check_weighting()
        # One call may make several steps (steps_per_execution).
        parts = self.loader.batches()[first - self._skip : self._step - self._skip] if self.loader is not None else []
        self._meter.add(sum(part.samples for part in parts))
        session().progress("training", self._meter.steps)
        found = agreed_by(self._wires)
        if self._replica_check and (self._meter.steps == 1 or self._meter.total_steps % REPLICA_EVERY == 0):
            check_replicas(self.model.trainable_variables, self._meter.total_steps)
        if found.diverged and not hasattr(self.model.optimizer, "inner_optimizer"):
            self._diverged(math.nan)
        if found.stop:
            self._stop_now()
        if found.end or (world().size == 1 and self.model.stop_training):
            self.model.stop_training = True
            if self.loader is not None and self.model.steps_per_execution == 1 and self._step < len(self.loader):
                # Now: the evaluation that may follow resets the metrics.
                self._within = self._state(self._epoch, self.loader.consumed(self._step - self._skip))

    def on_test_begin(self, logs: Any = None) -> None:
        """Evaluation within an epoch uses the statistics of all ranks."""
        self._average_statistics()
        self._meter.training_ends()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Alive."""
        session().progress("validation")

    def before_others(self) -> None:
        """The epoch has ended, and no other callback has changed the learning rate yet, or kept the weights."""
        self._average_statistics()
        self._note_rate()

    def _note_rate(self) -> None:
        self._meter.rate = effective_rate(self.model.optimizer)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record, save, and see whether anybody was asked to stop meanwhile."""
        logs = plain(logs or {})
        entry = self._meter.entry(self.epochs_before + epoch + 1, numbers(logs), self._wire, self.loader)
        if self._log is not None:
            self._log.append(entry)
        for key, value in logs.items():
            self.history.setdefault(key, []).append(value)
        if "loss" in logs and not math.isfinite(logs["loss"]):
            self._diverged(logs["loss"], recorded=True)
        self.recorded = self.epochs_before + epoch + 1
        # It has been asked by now. Whatever else ends a `fit` may do so for this start only, until a later one has a checkpoint.
        early = [each for each in self.others.callbacks if isinstance(each, keras.callbacks.EarlyStopping)]
        stops = any(each.stopped_epoch > 0 for each in early)
        self.left_early = not stops and (self._within is not None or epoch + 1 < self.params["epochs"])
        ended = self._state(epoch + 1, consumed=0)
        for within, whole in zip(self._within or (), ended, strict=self._within is not None):
            within["ended"] = whole  # for a later fit, once that has saved: then this one is over
        self._write(*(self._within or ended), logs, stopped_early=stops)
        self.content = self._within = None
        asked, ends = sum_over_ranks([float(stop.requested() != 0), float(self._ends or self.model.stop_training)])
        self.model.stop_training = ends > 0
        if asked > 0 and not ends and epoch + 1 < self.params["epochs"]:
            self._stopped(f"after epoch {epoch + 1}")

    def on_train_end(self, logs: Any = None) -> None:
        """Leave the model as it was."""
        self.end()
        session().progress("training", 0)  # what comes after counts its own steps

    def end(self) -> None:
        """Give the model its own train function back, and steps outside of `fit` their full weight: its last one may have none."""
        for wire in self._wires:
            wire.start_step(1.0, False, False)
        if self._function is not None:
            self.model.train_function = self._function
            self._function = None

    # --- what happens on all ranks alike ---

    def _average_statistics(self) -> None:
        if not self._averaged:
            state.average_statistics(self.model)
            self._averaged = True

    def _diverged(self, loss: float, recorded: bool = False) -> None:
        if not recorded:
            self._note_rate()
            # All ranks: the entry sums over them, though rank 0 alone writes it.
            entry = self._meter.entry(self.epochs_before + self._epoch + 1, {"loss": loss}, self._wire, self.loader)
            if self._log is not None:
                self._log.append(entry)
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        raise agreed(
            Diverged(
                f"the training loss is {loss} in epoch {self._epoch + 1} at learning rate {rate:g}; "
                "try a lower rate, another lr_rule (sqrt, none), or more warmup_epochs"
            )
        )

    def _stop_now(self) -> None:
        if self.loader is None:
            content, own = self._state(self._epoch, consumed=0)
            self._write({**content, "anew": True}, own)
            self._stopped(f"in epoch {self._epoch + 1}, which begins anew")
        # After the last step of an epoch, its end saves.
        if self._step < len(self.loader):
            self._write(*self._state(self._epoch, self.loader.consumed(self._step - self._skip)))
            self._stopped(f"after step {self._step} of epoch {self._epoch + 1}")

    def _stopped(self, where: str) -> NoReturn:
        asked = gather_objects(stop.requested())
        number = next((each for each in asked if each), 0)
        stop.agreed(number)
        ranks = [rank for rank, each in enumerate(asked) if each]
        told = f"rank {ranks[0]}" if len(ranks) == 1 else "all ranks" if len(ranks) == len(asked) else f"ranks {ranks}"
        folder = self.checkpoints.folder
        left = f"checkpoint in {folder}" if folder is not None else "no checkpoint: there is no run folder"
        self.end()
        raise stop.Stopped(f"{stop.name(number)} came to {told}; stopped {where}; {left}")

    def _state(self, epoch: int, consumed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a checkpoint after `epoch` epochs and `consumed` samples holds: the same on all ranks, and this rank's own."""
        if self.checkpoints.folder is None:
            return {}, {}
        content = {
            **self._optimizers.saved(),
            "epoch": epoch,
            "consumed": consumed,
            "meter": self._meter.saved(),
            "history": {key: list(values) for key, values in self.history.items()},
            "callbacks": self.others.learned(),
        }
        own = {
            **state.own_state(self.model),
            **self._optimizers.accumulated(),
            "callbacks": self.others.learned(here=True),
        }
        return content, own

    def _write(
        self,
        content: dict[str, Any],
        own: dict[str, Any],
        logs: Logs | None = None,
        stopped_early: bool = False,
    ) -> None:
        if self.checkpoints.folder is None:
            return
        content["stopped_early"] = stopped_early
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        score = self._monitor.score(self.model, logs or {}, self.validates)
        self.checkpoints.save(content, own, content["epoch"], step, score)
