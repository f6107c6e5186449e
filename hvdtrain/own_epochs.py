"""Epochs of a loop of one's own, for the report; the same with either framework."""

from __future__ import annotations

from hvdtrain import launch, record
from hvdtrain.errors import UserError
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

    Rank 0 writes, the others do nothing; without a run folder nobody does. Give values of the whole world
    (`sum_over_ranks`), not of one rank.

    Args:
        epoch: from 1.
        samples: trained on by all ranks together.
        seconds: of the whole epoch with its validation.
        seconds_val: of its validation.

    Raises:
        UserError: this process has recorded this epoch, or a later one; or `init()` was not called.
    """
    if launch.active is None:
        raise UserError("call init() first: it finds this rank's place")
    folder = record.run_dir()
    if launch.active.world.rank != 0 or folder is None:
        return
    # With the first one of this start: what stands from it on is of an earlier start, and is trained again.
    path = folder / "epochs.jsonl"
    first = _AFTER_ALL if path in EpochLog.opened else epoch
    values = {"train_loss": train_loss, "train_acc": train_acc, "val_loss": val_loss, "val_acc": val_acc, "lr": lr}
    rate = samples / (seconds - seconds_val) if seconds > seconds_val else None
    try:
        EpochLog(path, next_epoch=first).append(
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
