"""What a `fit` tells of itself when it starts: to the report, and on rank 0's screen."""

from __future__ import annotations

import dataclasses
from typing import Any

from hvdtrain import lr as rates
from hvdtrain import record
from hvdtrain._keras.further import accumulated_in
from hvdtrain._keras.loader import Loader
from hvdtrain._keras.optimizer import Synchronization
from hvdtrain._keras.start import in_process, replicas, world


def note_settings(model: Any, loader: Loader | None) -> None:
    """For the report."""
    names = {"mixed_float16": "fp16", "mixed_bfloat16": "bf16", "float32": "fp32"}
    policy = str(model.dtype_policy.name)
    batch = loader.batch_size // in_process() if loader is not None else None
    record.note(batch_size=batch, precision=names.get(policy, policy), accumulate=accumulated_in(model.optimizer))


def show_rates(inner: Synchronization, epochs: int, before: int) -> None:
    """Print the rates to come, and note them for the report. A schedule of Keras is known step by step only.

    Args:
        epochs: the last of this `fit`, from 1.
        before: how many more the warm-up has behind it: of an earlier `fit`; negative where this one does not count from 1.
    """
    if world().rank != 0 or inner.base_rate is None:
        return
    size = replicas()
    rows = rates.table(inner.base_rate, inner.rule, size, epochs + before, warmup_epochs=inner.warmup_epochs)
    plan = [dataclasses.replace(row, epoch=row.epoch - before) for row in rows[max(0, before) :]]
    record.note(lr_table=[dataclasses.astuple(row) for row in plan])
    print(f"hvdtrain: learning rate ({inner.base_rate:g} for one rank, rule {inner.rule}, {size} ranks):")
    for line in rates.describe(plan):
        print(f"hvdtrain: {line}", flush=True)
