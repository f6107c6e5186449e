"""Epochs of a loop of one's own, for the report; the same with either framework."""

from __future__ import annotations

import math

from hvdtrain import launch, record
from hvdtrain.errors import Diverged, UserError
from hvdtrain.record import Epoch, EpochLog

#: Later than any epoch: keeps all that is recorded.
_AFTER_ALL = 2**62


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

    Rank 0 writes, the others do not; without a run folder nobody does. All ranks must call it, with values of the whole world
    (`sum_over_ranks`), not of one rank: a `train_loss` that is no number ends them all, as in `fit`.

    Args:
        epoch: from 1.
        samples: trained on by all ranks together.
        seconds: of the whole epoch with its validation.
        seconds_val: of its validation.
        train_acc, val_acc: fractions of one.

    Raises:
        UserError: this process has recorded this epoch, or a later one; an accuracy is no fraction; or `init()` was not called.
        Diverged: on rank 0 `train_loss` is no longer a number; the epoch is on record. Left alone it ends all ranks.
    """
    if launch.active is None:
        raise UserError("call init() first: it finds this rank's place")
    launch.active.progress("training")
    values = {"train_loss": train_loss, "train_acc": train_acc, "val_loss": val_loss, "val_acc": val_acc, "lr": lr}
    if launch.active.world.rank == 0:
        for name in ("train_acc", "val_acc"):
            given = values[name]
            if given is not None and (given < 0 or given > 1):
                raise UserError(f"{name}={given:g} in epoch {epoch} is no fraction of one; give 98.2 % as 0.982")
    if launch.active.world.rank == 0 and (folder := record.run_dir()) is not None:
        # With the first one of this start: what stands from it on is of an earlier start, and is trained again.
        path = folder / "epochs.jsonl"
        first = _AFTER_ALL if path in EpochLog.opened else epoch
        rate = samples / (seconds - seconds_val) if seconds > seconds_val else None
        entry = Epoch(
            epoch,
            samples=samples,
            seconds=seconds,
            seconds_val=seconds_val,
            samples_per_second=rate,
            restart=record.restart_count(),
            **values,
        )
        try:
            EpochLog(path, next_epoch=first).append(entry)
        except ValueError as error:
            raise UserError(str(error)) from None
    if launch.active.world.rank == 0 and train_loss is not None and not math.isfinite(train_loss):
        at = f" at learning rate {lr:g}" if lr is not None else ""
        # Not agreed: the others may not have called this, or with a value of their own. Rank 0 tells them.
        raise Diverged(
            f"the training loss is {train_loss} in epoch {epoch}{at}; "
            "try a lower rate, another lr_rule (sqrt, none), or more warmup_epochs"
        )
