"""What `fit` and `evaluate` were given by mistake, told before anything is trained."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hvdtrain import lr as rates
from hvdtrain._torch.early import EarlyStopping
from hvdtrain._torch.join import JoinLoader
from hvdtrain._torch.loader import Loader, TrainLoader
from hvdtrain._torch.loss_weight import adds_up
from hvdtrain._torch.start import strategy, world
from hvdtrain.errors import UserError, agreed


def refuse_another_model(model: nn.Module, ddp: DistributedDataParallel | None) -> None:
    """A model around which no DDP averages gradients, or another one does."""
    if ddp is not None and all(part is not ddp for part in model.modules()):
        raise agreed(
            UserError(
                "the model is not the one that distribute() returned for this optimizer, so DDP would not average its gradients: "
                "write model, optimizer = ht.distribute(model, optimizer), and give fit both"
            )
        )


def refuse_loaders(train: Any, validation: Any) -> None:
    """A loader that does not give each rank its part."""
    if not isinstance(train, (Loader, JoinLoader)):
        raise UserError(
            f"train is a {type(train).__name__}: fit needs to know each rank's part of every step, so make it by "
            "ht.loader(dataset, batch_size)"
        )
    refuse_for_validation(validation)


def refuse_for_validation(validation: Any) -> None:
    """A loader whose batches may come twice, only to keep ranks in step."""
    if isinstance(validation, (Loader, JoinLoader)):
        raise UserError(
            f"validation is a {type(validation).__name__}, whose batches are for training: the last ones may only keep ranks in "
            "step. Make it by ht.validation_loader(dataset, batch_size)"
        )


def refuse_numbers(epochs: int, accumulate: int, clip_norm: float | None) -> None:
    """One that is out of range."""
    if epochs < 1:
        raise UserError(f"epochs={epochs}: train for at least one")
    if accumulate < 1:
        raise UserError(f"accumulate={accumulate}: a step has at least one batch")
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise UserError(f"clip_norm={clip_norm} must be a positive number")


def refuse_sum(loss: Any, accumulate: int) -> None:
    """A loss that is no mean, where several are averaged."""
    if adds_up(loss) and (world().size > 1 or accumulate > 1):
        raise UserError(
            'the loss adds up a batch (reduction="sum"), but those of several ranks or accumulated ones are averaged: training '
            "would depend on how many they are. Take the mean, with a learning rate as many times larger as the batch has samples"
        )


def refuse_accumulated_join(train: TrainLoader, accumulate: int) -> None:
    """Steps whose last batch nobody knows to be the last, where DDP must."""
    if accumulate > 1 and train.steps is None and strategy() == "ddp":
        raise UserError(
            'accumulate with uneven="join" needs strategy "horovod": DDP must know before the last batch that it is one'
        )


def refuse_adascale(train: TrainLoader, adascale: bool) -> None:
    """A gain that is measured by how ranks' gradients differ, of ranks whose batches differ in size."""
    if adascale and not train.alike:
        raise agreed(UserError('lr_rule="adascale" needs the same batch_size on all ranks; take "linear" or "sqrt"'))


def refuse_decisions(schedule: Any, early: EarlyStopping | None, validation: Any) -> None:
    """A schedule or a stop that looks at what is not there."""
    if schedule is not None and not callable(schedule):
        raise UserError(
            f"schedule is a {type(schedule).__name__}, but must be a function of the epoch, such as hvdtrain.lr.step(30, 0.1) or "
            "lr.cosine(90). A scheduler of torch is for a loop of your own"
        )
    if isinstance(schedule, rates.Plateau) and schedule.higher_is_better:
        raise UserError(
            "Plateau(higher_is_better=True): fit feeds it with a loss, of which lower is better; leave that out"
        )
    if early is not None and early.metric.startswith("val_") and validation is None:
        raise UserError(
            f"early stopping looks at {early.metric}, which this training does not have: give fit a validation, or take "
            'EarlyStopping(metric="train_loss")'
        )
