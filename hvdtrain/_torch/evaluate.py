"""Loss and accuracy of a model over the data of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from hvdtrain._torch.batch_norm import average_statistics
from hvdtrain._torch.loader import ValidationLoader
from hvdtrain._torch.loss_weight import LossWeight, Weigh
from hvdtrain._torch.meter import Meter
from hvdtrain._torch.mistakes import refuse_for_validation
from hvdtrain._torch.precision import Precision
from hvdtrain._torch.rows import pair, samples_of
from hvdtrain._torch.start import session, world


def evaluate(
    model: nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    validation: ValidationLoader,
    precision: Precision | str = "fp32",
    loss_weight: LossWeight | Weigh | None = None,
) -> tuple[float, float | None]:
    """Mean loss and accuracy over all samples of `validation`, exactly, on every rank.

    All ranks must call it. Statistics of batch-norms are averaged over the ranks first. Accuracy is None when the output is not
    one score per class, shape (n, classes), of at least two. `loss_weight` as for `fit`.
    """
    refuse_for_validation(validation)
    weigh = loss_weight if isinstance(loss_weight, LossWeight) else LossWeight(loss, loss_weight)
    if isinstance(precision, str):
        precision = Precision(precision, world().device)
    average_statistics(model)
    meter = Meter()
    # Each module's own: a part may be frozen.
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            for batch in validation:
                _, target = pair(batch)
                samples = samples_of(target)
                counts = weigh(target, samples)
                input, target = moved(batch, world().device)
                with precision.autocast():
                    output = model(input)
                    value = loss(output, target)
                meter.add(value, samples, counts)
                meter.count_hits(output, target, samples)
                session().progress("validation")
    finally:
        for module, mode in modes.items():
            if module.training != mode:
                module.train(mode)
    mean_loss, accuracy, _ = meter.over_ranks()
    return mean_loss, accuracy


def moved(batch: Any, device: str) -> tuple[Any, Any]:
    """Input and target of a batch on the device, as deep as they are made of tensors."""
    input, target = batch
    return _moved(input, device), _moved(target, device)


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if hasattr(value, "to"):  # packed sequences, graphs and the like know themselves how to
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(entry, device) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        entries = [_moved(entry, device) for entry in value]
        # A named tuple takes its fields one by one.
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    return value
