"""One epoch of training after another, in step on all ranks: what `fit` drives."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hvdtrain import record
from hvdtrain._torch.batch_norm import untouched
from hvdtrain._torch.checkpoints import Checkpoints
from hvdtrain._torch.evaluate import evaluate, moved
from hvdtrain._torch.loader import TrainLoader, ValidationLoader
from hvdtrain._torch.loss_weight import LossWeight
from hvdtrain._torch.meter import Meter
from hvdtrain._torch.precision import Precision
from hvdtrain._torch.rows import leaves, pair
from hvdtrain._torch.start import world
from hvdtrain._torch.synchronizer import Synchronizer
from hvdtrain.errors import Diverged, agreed
from hvdtrain.noise import NoiseScale
from hvdtrain.record import Epoch

Loss = Callable[[Any, Any], torch.Tensor]

#: Optimizer steps between two measurements of the gradient noise.
NOISE_EVERY = 50
# Weights travel in single precision.
_EQUAL = 1e-6


@dataclass
class _Group:
    """Batches whose gradients make one optimizer step together.

    Attributes:
        weight: of this rank's; None where that is their number of samples.
        full: no rank has less to give than it could, nor than another.
    """

    batches: int = 0
    union: int = 0
    weight: float | None = None
    full: bool = True
    first_square: float | None = None


@dataclass
class Trainer:
    """The parts of one training, and its loop over one epoch."""

    model: nn.Module
    optimizer: Optimizer
    synchronizer: Synchronizer
    loss: Loss
    loss_weight: LossWeight
    train: TrainLoader
    validation: ValidationLoader | None
    precision: Precision
    accumulate: int
    clip_norm: float | None
    checkpoints: Checkpoints
    #: Of the loader, that the schedule does not count.
    epochs_before: float = 0.0

    def epoch(self, partials: list[dict[str, Any]]) -> Epoch:
        """Train for one epoch, or for what `partials`, of ranks that stopped in it, leave of it; then evaluate.

        Raises:
            Diverged: a loss is no longer a number, in this step on some rank.
            Stopped: the ranks have agreed to stop.
        """
        self._number = self.train.epoch
        self._meter, self._noise = Meter(), NoiseScale()
        self._norm: float | None = None
        elapsed = 0.0
        if partials and partials[0]:
            self._meter.load_state_dicts([each["meter"] for each in partials])
            self._noise = NoiseScale(**partials[0]["noise"])
            elapsed = float(partials[0]["seconds"])
            self._norm = partials[0].get("norm")
        # Where in the epoch the coming step begins, in fractions of it.
        self._reached = self.train.fraction if partials else 0.0
        self.synchronizer.clock.reset()
        self._began = time.perf_counter() - elapsed
        self.model.train()
        self._steps()
        train_loss, train_acc, samples = self._meter.over_ranks()
        if not self._meter.finite:
            raise self._no_number()  # on a GPU not every batch was looked at
        trained = time.perf_counter()
        # Asked to stop by now, the evaluation is left to the run that goes on.
        self._stop_if_asked()
        val_loss, val_acc = None, None
        if self.validation is not None:
            val_loss, val_acc = evaluate(self.model, self.loss, self.validation, self.precision, self.loss_weight)
        ended = time.perf_counter()
        self.synchronizer.pace.epochs_done = self._number - self.epochs_before
        clock = self.synchronizer.clock
        return Epoch(
            epoch=self._number,
            train_loss=train_loss,
            train_acc=train_acc,
            val_loss=val_loss,
            val_acc=val_acc,
            lr=self.synchronizer.pace.last_rate,
            samples=samples,
            seconds=ended - self._began,
            **{f"seconds_{phase}": clock.seconds(phase) for phase in self._phases()},
            seconds_val=ended - trained if self.validation is not None else 0.0,
            samples_per_second=samples / (trained - self._began),
            grad_norm=self._norm,
            noise_scale=self._noise.value(),
            restart=record.restart_count(),
        )

    def diverged(self) -> Epoch:
        """The record of an epoch that ended in no number."""
        return Epoch(
            epoch=self._number,
            train_loss=float("nan"),
            lr=self.synchronizer.pace.last_rate,
            seconds=time.perf_counter() - self._began,
            restart=record.restart_count(),
        )

    def _phases(self) -> tuple[str, ...]:
        """What can be told apart: DDP waits for the other ranks inside the backward pass."""
        measured = ("data", "forward", "backward", "optimizer")
        return measured if self.synchronizer.ddp is not None else (*measured, "allreduce")

    def _steps(self) -> None:
        clock, group, given = self.synchronizer.clock, _Group(), 0
        left = self.train.left
        batches = iter(self.train)
        while True:
            clock.start("data")
            batch = next(batches, None)
            if batch is not None:
                _, target = pair(batch)
                counts = self.loss_weight(target, self.train.samples)
                input, target = moved(batch, world().device)
            clock.stop("data")
            if batch is None:
                break
            given += 1
            last = group.batches + 1 == self.accumulate or given == left
            self._batch(input, target, counts, group, last)
            if last:
                self._step(group, ended=given == left)
                group = _Group()
        if group.batches:
            # Nobody could know that the epoch would end here: what was kept back goes now.
            self._step(group, ended=True)

    def _batch(self, input: Any, target: Any, counts: float | None, group: _Group, last: bool) -> None:
        """Forward and backward pass of one batch; gradients travel with the `last` one of the group.

        Args:
            counts: what the batch weighs; None for its number of samples.
        """
        clock, train = self.synchronizer.clock, self.train
        group.batches += 1
        group.union += train.union
        group.full = group.full and train.alike and train.union == train.full
        # DDP decides in the forward pass whether the backward pass will communicate.
        together = nullcontext() if last else self.synchronizer.no_sync()
        # Until the backward pass is over, it may need the statistics that the forward pass had.
        with together, nullcontext() if train.samples else untouched(self.model):
            with clock.phase("forward"), self.precision.autocast():
                output = self.model(input)
                value = self.loss(output, target)
            self._backward(value, output, target, counts, group, last)
        self._meter.count_hits(output, target, train.samples)

    def _backward(
        self, value: torch.Tensor, output: Any, target: Any, counts: float | None, group: _Group, last: bool
    ) -> None:
        train = self.train
        self._meter.add(value, train.samples, counts)
        measure = group.full and self.synchronizer.pace.steps % NOISE_EVERY == 0 and self.synchronizer.ddp is None
        weight = train.weight * train.union / train.full if self.accumulate > 1 else train.weight
        if counts is not None:
            counts /= self.loss_weight.unit(target, counts, train.samples)
            group.weight = (group.weight or 0.0) + counts
            weight *= counts / train.samples if counts else 0.0
        self.synchronizer.not_finite = not self._meter.finite
        self.synchronizer.weight = group.weight or 0.0
        if last:
            # Ranks with other weights than each other would be taken for noise: such a step keeps the gain.
            self.synchronizer.exchange.measure = measure or (self.synchronizer.adascale is not None and group.full)
            if self.synchronizer.exchange.measure:
                self.precision.tell(self.synchronizer)  # only now: reading the scale waits for a GPU
        with self.synchronizer.clock.phase("backward"):
            if weight:
                self.precision.scaled(value * weight if weight != 1.0 else value).backward()
            else:
                self.precision.scaled(value.detach())  # a scaler that has scaled nothing refuses the step
                _backward_of_nothing(output, value)
        if measure and world().size == 1 and self.accumulate > 1 and group.batches == 1:
            group.first_square = self.synchronizer.square_norm()

    def _step(self, group: _Group, ended: bool) -> None:
        synchronizer = self.synchronizer
        synchronizer.pace.epochs_done = self._number - 1 - self.epochs_before + self._reached
        self._reached = self.train.fraction
        # Within the optimizer's step: what comes after the wait for the others finds the caches empty, so little should.
        synchronizer.averaged = functools.partial(self._averaged, group, ended)
        self.precision.step(self.optimizer, self.synchronizer)
        self.optimizer.zero_grad()
        if not ended:
            self._stop_if_asked()

    def _averaged(self, group: _Group, ended: bool) -> None:
        """The gradients of a step are averaged."""
        synchronizer = self.synchronizer
        if synchronizer.diverged:
            raise self._no_number(f", step {synchronizer.pace.steps + 1}")
        with synchronizer.clock.phase("optimizer"):
            self._rescale(group)
            self._measure(group)
            if self.clip_norm is not None or ended:
                self.precision.unscale(self.optimizer)
            if ended:
                self._norm = synchronizer.square_norm() ** 0.5
            if self.clip_norm is not None:
                _clip(self.optimizer, self.clip_norm)

    def _no_number(self, step: str = "") -> Diverged:
        synchronizer = self.synchronizer
        rate = synchronizer.pace.last_rate if synchronizer.pace.steps else self.optimizer.param_groups[0]["lr"]
        return agreed(
            Diverged(
                f"the training loss is no longer a number in epoch {self._number}{step}, at learning rate {rate:g}; try a lower "
                "--lr, --lr-rule sqrt or none, or more --warmup-epochs"
            )
        )

    def _rescale(self, group: _Group) -> None:
        """Each batch was weighted by its share of a full one, or of the step's samples; together they must weigh 1."""
        supposed = self.train.full if self.accumulate > 1 else group.union
        weight = group.union if group.weight is None else self.synchronizer.weight
        group.full = group.full and math.isclose(weight, group.union, rel_tol=_EQUAL)
        if not weight or math.isclose(supposed, weight, rel_tol=_EQUAL):
            return
        for parameter in _with_gradient(self.optimizer):
            assert parameter.grad is not None
            parameter.grad.mul_(supposed / weight)

    def _measure(self, group: _Group) -> None:
        """Noise of the gradient, in steps where it is looked at."""
        synchronizer, size, batch = self.synchronizer, world().size, self.train.batch_size
        small, big = batch * (group.batches if size > 1 else 1), batch * group.batches * size
        if not synchronizer.exchange.measure or not group.full or big <= small:
            return
        unscale = synchronizer.loss_scale**-2
        if size > 1:
            # Sums of several batches travelled, not yet their mean.
            small_square = float(synchronizer.exchange.local_square) / size / group.batches**2
        elif group.first_square is not None:
            small_square = group.first_square
        else:
            return
        self._noise.add(small_square * unscale, synchronizer.square_norm() * unscale, small, big)

    def _stop_if_asked(self) -> None:
        if not self.synchronizer.stop_agreed:
            return  # in nearly every step, so nothing is gathered before
        seconds = time.perf_counter() - self._began
        partial = {
            "meter": self._meter.state_dict(),
            "noise": asdict(self._noise),
            "seconds": seconds,
            "norm": self._norm,
        }
        self.checkpoints.stop_if_asked(self._number - 1, within=True, partial=partial)


def _backward_of_nothing(output: Any, value: torch.Tensor) -> None:
    """Of a batch that weighs nothing: gradients of zero, as others wait for what layers send in the backward pass.

    Its loss may be the mean of nothing, which is no number, and 0 times that is none either.
    """
    parts = [part for part in leaves(output) if part.requires_grad]
    if value.requires_grad:  # else it is a constant, for want of something to compute it from
        parts = _reached(value, parts)
    if parts:
        torch.autograd.backward(parts, [torch.zeros_like(part) for part in parts])
    elif value.requires_grad:
        (value * 0.0).backward()


def _reached(value: torch.Tensor, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those of a model's outputs that the loss was computed from: what only the others lead to has no part in the backward pass."""
    wanted = {(part.grad_fn, part.output_nr): part for part in outputs if part.grad_fn is not None}
    found, seen = [], set()
    ahead: list[tuple[Any, int]] = [(value.grad_fn, value.output_nr)]
    while ahead:
        place = ahead.pop()
        if place[0] is None or place in seen:
            continue
        seen.add(place)
        if place in wanted:
            found.append(wanted[place])
        else:
            ahead += place[0].next_functions
    return found


def _with_gradient(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


def _clip(optimizer: Optimizer, most: float) -> None:
    """Scale the averaged gradient down to this norm; the same on every rank."""
    nn.utils.clip_grad_norm_(list(_with_gradient(optimizer)), most)
