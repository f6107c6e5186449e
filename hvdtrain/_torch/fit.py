"""A short training loop whose numbers are those of the whole world, and which records them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hvdtrain import record
from hvdtrain._torch.loader import Loader, ValidationLoader
from hvdtrain._torch.start import session, sum_over_ranks, world
from hvdtrain._torch.synchronizer import Synchronizer
from hvdtrain.errors import Diverged, UserError
from hvdtrain.record import Epoch, EpochLog

#: Later than any epoch: keeps all that is recorded.
_AFTER_ALL = 2**62

Loss = Callable[[Any, Any], torch.Tensor]


class _Meter:
    """Sums of loss, samples and hits of this rank; `over_ranks` gives the world's means."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.samples = 0
        self.hits = 0
        self.classified = True

    def add(self, loss: torch.Tensor, output: Any, target: Any, samples: int) -> None:
        """One batch: its mean loss and what it was computed from; `samples` of it count."""
        self.loss += float(loss.detach()) * samples
        self.samples += samples
        self.classified = self.classified and _is_classification(output, target)
        if self.classified and samples:
            self.hits += int((output.detach().argmax(dim=1) == target).sum())

    def over_ranks(self) -> tuple[float, float | None, int]:
        """Mean loss and accuracy (None where the task is not a classification) over all samples of all ranks, and their number."""
        loss, samples, hits, not_classified = sum_over_ranks([self.loss, self.samples, self.hits, not self.classified])
        if samples == 0:
            raise UserError("no rank had a sample")
        return loss / samples, None if not_classified else hits / samples, int(samples)


def _is_classification(output: Any, target: Any) -> bool:
    return (
        isinstance(output, torch.Tensor)
        and isinstance(target, torch.Tensor)
        and output.ndim == 2
        and target.ndim == 1
        and not target.is_floating_point()
    )


class _Clock:
    """Seconds by phase of one epoch, on this rank. On a GPU kernels run on after the call returns: those phases stay None."""

    def __init__(self, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self.seconds: dict[str, float] = {"data": 0.0, "forward": 0.0, "backward": 0.0}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time inside to `name`."""
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began

    def measured(self, name: str) -> float | None:
        """The phase's seconds, or None where they were not measured."""
        return self.seconds[name] if self._on_cpu or name == "data" else None


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    train: Loader,
    validation: ValidationLoader | None = None,
    *,
    epochs: int,
) -> list[Epoch]:
    """Train for `epochs` epochs; returns one record for each, the same on every rank but for times.

    Losses and accuracies are means over the samples of all ranks, exactly. Rank 0 prints a line per epoch and, under a
    launcher, appends to `epochs.jsonl`.

    Args:
        model: from `distribute`.
        optimizer: from `distribute`.
        loss: of (output, target), the mean over the batch (reduction="mean", the default in torch).
        train: from `loader`; gives (input, target).
        validation: from `validation_loader`; gives (input, target).
        epochs: how many, at least 1.

    Raises:
        UserError: an optimizer that is not from `distribute`.
        Diverged: the training loss is no longer a number.
    """
    synchronizer: Synchronizer | None = getattr(optimizer, "hvdtrain", None)
    if synchronizer is None:
        raise UserError(
            "fit needs the optimizer from hvdtrain.torch.distribute(): a plain one trains each rank by itself"
        )
    if epochs < 1:
        raise UserError(f"epochs={epochs}: train for at least one")
    synchronizer.steps_per_epoch = synchronizer.steps_per_epoch or len(train)
    log = _open_log(train)
    history = []
    for _ in range(epochs):
        entry = _epoch(model, optimizer, synchronizer, loss, train, validation)
        history.append(entry)
        if log is not None:
            log.append(entry)
        if world().rank == 0:
            print(_line(entry, epochs), flush=True)
        if entry.train_loss is None or not math.isfinite(entry.train_loss):
            raise Diverged(
                f"the training loss is {entry.train_loss} in epoch {entry.epoch} at learning rate {entry.lr:g}; "
                "try a lower --lr, --lr-rule sqrt or none, or more --warmup-epochs"
            )
    return history


def _open_log(train: Loader) -> EpochLog | None:
    folder = record.run_dir()
    if world().rank != 0 or folder is None:
        return None
    record.note(batch_size=train.batch_size, precision="fp32")
    return EpochLog(folder / "epochs.jsonl", next_epoch=train.epoch)


def record_epoch(
    epoch: int,
    *,
    samples: int,
    seconds: float,
    seconds_val: float = 0.0,
    train_loss: float | None = None,
    train_acc: float | None = None,
    val_loss: float | None = None,
    val_acc: float | None = None,
    lr: float | None = None,
) -> None:
    """For a loop of your own: append an epoch to the run folder's `epochs.jsonl`, which reports are made of. `fit` does it itself.

    Rank 0 writes, the others do nothing; without a run folder nobody does. Give values of the whole world
    (`sum_over_ranks`), not of one rank.

    Args:
        epoch: from 1.
        samples: trained on by all ranks together.
        seconds: of the whole epoch with its validation.
        seconds_val: of its validation.

    Raises:
        UserError: this epoch, or a later one, is recorded already.
    """
    folder = record.run_dir()
    if world().rank != 0 or folder is None:
        return
    values = {"train_loss": train_loss, "train_acc": train_acc, "val_loss": val_loss, "val_acc": val_acc, "lr": lr}
    rate = samples / (seconds - seconds_val) if seconds > seconds_val else None
    try:
        EpochLog(folder / "epochs.jsonl", next_epoch=_AFTER_ALL).append(
            Epoch(
                epoch,
                samples=samples,
                seconds=seconds,
                seconds_val=seconds_val,
                samples_per_second=rate,
                restart=record.restart_count(),
                **values,
            )
        )
    except ValueError as error:
        raise UserError(str(error)) from None


def _epoch(
    model: nn.Module,
    optimizer: Optimizer,
    synchronizer: Synchronizer,
    loss: Loss,
    train: Loader,
    validation: ValidationLoader | None,
) -> Epoch:
    number = train.epoch
    clock, meter = _Clock(world().device == "cpu"), _Meter()
    synchronizer.seconds_allreduce = synchronizer.seconds_optimizer = 0.0
    norm: float | None = None
    began = time.perf_counter()
    model.train()
    batches = iter(train)
    for step in range(1, len(train) + 1):
        with clock.phase("data"):
            input, target = _to_device(next(batches))
        with clock.phase("forward"):
            output = model(input)
            value = loss(output, target)
        with clock.phase("backward"):
            (value * train.weight).backward()
        meter.add(value, output, target, train.samples)
        optimizer.step()
        if step == len(train):
            norm = _norm(optimizer)
        optimizer.zero_grad()
    train_loss, train_acc, samples = meter.over_ranks()
    trained = time.perf_counter()
    val_loss, val_acc = evaluate(model, loss, validation) if validation is not None else (None, None)
    ended = time.perf_counter()
    on_cpu = world().device == "cpu"
    return Epoch(
        epoch=number,
        train_loss=train_loss,
        train_acc=train_acc,
        val_loss=val_loss,
        val_acc=val_acc,
        lr=synchronizer.last_rate,
        samples=samples,
        seconds=ended - began,
        seconds_data=clock.measured("data"),
        seconds_forward=clock.measured("forward"),
        seconds_backward=clock.measured("backward"),
        seconds_allreduce=synchronizer.seconds_allreduce if on_cpu else None,
        seconds_optimizer=synchronizer.seconds_optimizer if on_cpu else None,
        seconds_val=ended - trained if validation is not None else 0.0,
        samples_per_second=samples / (trained - began),
        grad_norm=norm,
        restart=record.restart_count(),
    )


def evaluate(model: nn.Module, loss: Loss, validation: ValidationLoader) -> tuple[float, float | None]:
    """Mean loss and accuracy over all samples of `validation`, exactly, on every rank.

    All ranks must call it. Accuracy is None when the output is not one score per class, shape (n, classes).
    """
    meter = _Meter()
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in validation:
                input, target = _to_device(batch)
                output = model(input)
                meter.add(loss(output, target), output, target, len(target))
                session().progress("validation")
    finally:
        model.train(was_training)
    mean_loss, accuracy, _ = meter.over_ranks()
    return mean_loss, accuracy


def _to_device(batch: Any) -> tuple[Any, Any]:
    input, target = batch
    device = world().device
    return _moved(input, device), _moved(target, device)


def _moved(value: Any, device: str) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def _norm(optimizer: Optimizer) -> float:
    """Norm of the averaged gradient of the last step, over all parameters."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm()) if gradients else 0.0


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
