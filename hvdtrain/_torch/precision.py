"""Number formats of training: single precision, or autocast to bfloat16 or to half precision with loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.optim import Optimizer

from hvdtrain._torch.synchronizer import Synchronizer
from hvdtrain.errors import UserError, nearest

_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = tuple(_TYPES)


class Precision:
    """Autocast and, for half precision, the scaling of the loss that keeps small gradients from vanishing.

    The scaler looks at gradients averaged over the ranks, so an overflow on one rank makes all skip the same step.

    Args:
        name: one of `PRECISIONS`.
        device: "cpu" or "cuda:<n>".

    Raises:
        UserError: another name.
    """

    def __init__(self, name: str, device: str) -> None:
        if name not in _TYPES:
            raise UserError(f'precision="{name}" is not one of {", ".join(PRECISIONS)}{nearest(name, PRECISIONS)}')
        self._type = _TYPES[name]
        self._device = device.split(":")[0]
        self.scaler = torch.amp.GradScaler(self._device) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[None]:
        """Around forward pass and loss."""
        return nullcontext() if self._type is None else torch.autocast(self._device, dtype=self._type)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """To call `backward()` on."""
        if self.scaler is None:
            return loss
        scaled: torch.Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: Optimizer) -> None:
        """Gradients, averaged before, as they are without scaling."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer, synchronizer: Synchronizer) -> None:
        """The optimizer's step, left out when a gradient has overflown."""
        if self.scaler is None:
            optimizer.step()
            return
        synchronizer.synchronize()
        self.scaler.step(optimizer)
        self.scaler.update()

    def tell(self, synchronizer: Synchronizer) -> None:
        """By what the gradients of the coming backward pass are scaled."""
        if self.scaler is not None:
            synchronizer.loss_scale = float(self.scaler.get_scale())
