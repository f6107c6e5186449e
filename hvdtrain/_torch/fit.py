"""A short training loop whose numbers are those of the whole world, and which records them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hvdtrain import lr as rates
from hvdtrain import record, stop
from hvdtrain._torch import generators, mistakes
from hvdtrain._torch.alike import refuse_unlike
from hvdtrain._torch.checkpoints import Checkpoints
from hvdtrain._torch.early import EarlyStopping
from hvdtrain._torch.kept import Stateful
from hvdtrain._torch.loader import TrainLoader, ValidationLoader
from hvdtrain._torch.loss_weight import LossWeight, Weigh
from hvdtrain._torch.precision import Precision
from hvdtrain._torch.start import world
from hvdtrain._torch.synchronizer import Synchronizer
from hvdtrain._torch.trainer import Loss, Trainer
from hvdtrain.checkpoint import Store
from hvdtrain.errors import Diverged, UserError
from hvdtrain.own_folder import own_folder, place
from hvdtrain.record import Epoch, EpochLog

#: Calls of `fit` in this process, and the last epoch that they recorded.
_fits = 0
_recorded = 0


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    train: TrainLoader,
    validation: ValidationLoader | None = None,
    *,
    epochs: int,
    precision: str = "fp32",
    accumulate: int = 1,
    clip_norm: float | None = None,
    loss_weight: Weigh | None = None,
    schedule: rates.Schedule | None = None,
    early_stopping: EarlyStopping | int | None = None,
    checkpoints: Path | str | bool | None = None,
) -> list[Epoch]:
    """Train for `epochs` epochs; returns one record for each, the same on every rank but for times.

    Losses and accuracies are means over the samples of all ranks, exactly. Rank 0 prints a line per epoch and, under a
    launcher, appends to `epochs.jsonl`.

    Each rank draws random numbers of its own while it trains; afterwards all go on with those of rank 0.

    A checkpoint is written after each epoch, and when a signal (SIGTERM, SIGUSR1, SIGUSR2, on any rank) asks to stop: then after
    the step under way, on all ranks. Started again, training goes on from the newest one.

    Args:
        model: from `distribute`.
        optimizer: from `distribute`.
        loss: of (output, target), the mean over the batch (reduction="mean", the default in torch). Of torch's cross entropy and
            negative log-likelihood it is known what they divide by where classes are weighted or ignored.
        train: from `loader`; gives (input, target), each a tensor, or a tuple, list or dictionary of them for model and loss.
        validation: from `validation_loader`; gives (input, target).
        epochs: how many, at least 1; those trained before an interruption count.
        precision: "fp32", or autocast to "bf16", or to "fp16" with loss scaling.
        accumulate: batches per rank whose gradients make one step.
        clip_norm: largest norm of the averaged gradient.
        loss_weight: of a batch's target (not yet on the GPU): what a loss of your own divides by where that is not the number of
            samples, as the number of tokens that are not padding. So means over ranks' batches are means over their union. One that
            derives from torch's with a `forward` of its own must have it, where it may weight or ignore classes.
        schedule: factor for the rate by epoch (see `hvdtrain.schedule`); a `Plateau` is fed with the validation loss, without
            validation with the training loss.
        early_stopping: an `EarlyStopping`, or epochs without a better validation loss that are accepted.
        checkpoints: their folder; None for `checkpoints` in the run folder if there is one (`checkpoints-2` in the second `fit` of
            a script, and so on), False for none. A folder that another `fit` or loop of the script was given becomes `FOLDER-2`.

    Raises:
        UserError: an optimizer that is not from `distribute`, an argument that is out of range, or ranks that were given other
            arguments than each other.
        Diverged: the training loss is no longer a number.
        CheckpointError: one could not be written or read.
        Stopped: a signal asked for it; ends the process with the status that means "start me again".
    """
    global _recorded
    synchronizer: Synchronizer | None = getattr(optimizer, "hvdtrain", None)
    if synchronizer is None:
        raise UserError(
            "fit needs the optimizer from hvdtrain.torch.distribute(): a plain one trains each rank by itself"
        )
    early = EarlyStopping(early_stopping) if isinstance(early_stopping, int) else early_stopping
    mistakes.refuse_another_model(model, synchronizer.ddp)
    mistakes.refuse_loaders(train, validation)
    mistakes.refuse_numbers(epochs, accumulate, clip_norm)
    mistakes.refuse_sum(loss, accumulate)
    mistakes.refuse_accumulated_join(train, accumulate)
    mistakes.refuse_adascale(train, synchronizer.adascale is not None)
    mistakes.refuse_decisions(schedule, early, validation)
    refuse_unlike({"epochs": epochs, "accumulate": accumulate, **train.facts()})
    if early is not None:
        early.reset()  # another `fit` may have had it
    formats = Precision(precision, world().device)
    states: dict[str, Stateful | None] = {"scaler": formats.scaler, "early_stopping": early}
    states["schedule"] = schedule if isinstance(schedule, rates.Plateau) else None
    if train.steps is not None:
        synchronizer.pace.steps_per_epoch = synchronizer.pace.steps_per_epoch or -(-train.steps // accumulate)
    saver = _saver(model, optimizer, train, checkpoints, {name: each for name, each in states.items() if each})
    weight = LossWeight(loss, loss_weight)
    trainer = Trainer(
        model, optimizer, synchronizer, loss, weight, train, validation, formats, accumulate, clip_norm, saver
    )
    final = train.epoch + epochs - 1
    # A loader of its own begins to count at 1, and its epochs are recorded after those of the `fit` before.
    shift = max(0, _recorded - (train.epoch - 1))
    with stop.watching(), generators.alike_afterwards(), synchronizer.driven(schedule):
        # The loader may have been through epochs before, this optimizer perhaps not: schedule and warm-up count its own.
        trainer.epochs_before = train.epoch - 1 - synchronizer.pace.trained
        finished = saver.go_on()
        if finished or saver.partials:
            synchronizer.pace.epochs_done = synchronizer.pace.origin[1]
        history = [Epoch(**entry) for entry in saver.history]
        if finished >= final or (early is not None and early.stopped):
            _say(f"trained already: {len(history)} epochs are on record; nothing is left to do")
            _recorded = max(_recorded, history[-1].epoch + shift if history else 0)
            return history
        if not saver.generators_restored:
            generators.differ_by_rank(train.seed, _fits, synchronizer.pace.steps)
        _show_rates(synchronizer, round(final - trainer.epochs_before))
        log = _open_log(train, precision, accumulate, shift)
        # What an earlier phase, a loop or a step that diverged has left is no part of the first step.
        synchronizer.forget()
        for number in range(train.epoch, final + 1):
            entry = _epoch(trainer, log, saver.partials, shift)
            saver.partials = []
            history.append(entry)
            saver.history.append(dataclasses.asdict(entry))
            _recorded = entry.epoch + shift
            if log is not None:
                log.append(dataclasses.replace(entry, epoch=_recorded))
            _say(_line(entry, final))
            if isinstance(schedule, rates.Plateau):
                schedule.update(_watched(entry))
            over = early is not None and early.update(entry)
            saver.stop_if_asked(number, _score(entry))
            saver.save(number, _score(entry))
            if over and early is not None and number < final:
                _say(f"stopped early: {early.metric} has not improved for {early.patience + 1} epochs")
                break
    return history


def _epoch(trainer: Trainer, log: EpochLog | None, partials: list[dict[str, Any]], shift: int) -> Epoch:
    try:
        return trainer.epoch(partials)
    except Diverged:
        if log is not None:
            entry = trainer.diverged()
            log.append(dataclasses.replace(entry, epoch=entry.epoch + shift))
        raise


def _saver(
    model: nn.Module, optimizer: Optimizer, train: TrainLoader, folder: Path | str | bool | None, states: dict[str, Any]
) -> Checkpoints:
    global _fits
    _fits += 1
    if folder is True:
        raise UserError("checkpoints=True: give the folder, or leave it out to take the run folder's")
    saver = Checkpoints(model, optimizer, train, folder=False, states=states, watch=False)
    asked = place(folder)
    if asked is not None:
        # What those before it have left is another training's, though it may be of the same optimizer and loader.
        saver.store = Store(own_folder(asked, _say, number=_fits if folder is None else 1))
    return saver


def _show_rates(synchronizer: Synchronizer, epochs: int) -> None:
    """Print the rates to come, and note them for the report."""
    if world().rank != 0:
        return
    warmup = synchronizer.pace.warmup_epochs
    if synchronizer.pace.warmup_steps and synchronizer.pace.steps_per_epoch:
        warmup = synchronizer.pace.warmup_steps / synchronizer.pace.steps_per_epoch
    base = synchronizer.pace.base_rates[0]
    plan = rates.table(
        base, synchronizer.pace.rule, world().size, epochs, warmup_epochs=warmup, schedule=synchronizer.pace.schedule
    )
    record.note(lr_table=[dataclasses.astuple(row) for row in plan])
    gain = ", times its gain in each step" if synchronizer.adascale is not None else ""
    _say(f"learning rate ({base:g} for one rank, rule {synchronizer.pace.rule}, {world().size} ranks{gain}):")
    for line in rates.describe(plan):
        _say(line)


def _open_log(train: TrainLoader, precision: str, accumulate: int, shift: int) -> EpochLog | None:
    folder = record.run_dir()
    if world().rank != 0 or folder is None:
        return None
    # On each of them in the mean: reports multiply it by the ranks.
    each = train.full // world().size if train.full % world().size == 0 else None
    record.note(batch_size=each, precision=precision, accumulate=accumulate)
    return EpochLog(folder / "epochs.jsonl", next_epoch=train.epoch + shift)


def _watched(entry: Epoch) -> float:
    """What a plateau looks at."""
    value = entry.val_loss if entry.val_loss is not None else entry.train_loss
    return float("nan") if value is None else value


def _score(entry: Epoch) -> float | None:
    """Of the model after this epoch, higher is better."""
    if entry.val_acc is not None:
        return entry.val_acc
    return None if entry.val_loss is None else -entry.val_loss


def _say(text: str) -> None:
    if world().rank == 0:
        print(text, flush=True)


def _line(entry: Epoch, epochs: int) -> str:
    parts = [f"epoch {entry.epoch}/{epochs}", f"loss {entry.train_loss:.4f}"]
    if entry.train_acc is not None:
        parts.append(f"acc {entry.train_acc:.4f}")
    if entry.val_loss is not None:
        parts.append(f"val_loss {entry.val_loss:.4f}")
    if entry.val_acc is not None:
        parts.append(f"val_acc {entry.val_acc:.4f}")
    parts += [f"lr {entry.lr:.4g}", f"{entry.seconds:.2f} s", f"{entry.samples_per_second:.0f} samples/s"]
    return "  ".join(parts)
