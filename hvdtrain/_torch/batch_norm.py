"""Batch-norm over ranks: statistics averaged for evaluation and saving, or computed over all ranks in every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from hvdtrain._torch import stand_in
from hvdtrain._torch.start import collectives, session, world


def average_statistics(model: nn.Module) -> None:
    """Replace the running mean and variance of every batch-norm by their averages over the ranks. All ranks must call it.

    Each rank has seen other samples, so without it each would evaluate another model. `fit` does it before each evaluation and
    `Checkpoints` before saving (in what is saved); `SyncBatchNorm` does not need it.
    """
    if world().size == 1:
        return
    flights = []
    with session().waiting(), torch.no_grad():
        for name, buffer in statistics(model).items():
            # In double precision and back: also of half-precision statistics the average is right, and the same everywhere.
            total = buffer.double().contiguous()
            flights.append((buffer, collectives().start_allreduce(total, f"statistics.{name}", average=True)))
        for buffer, flight in flights:
            buffer.copy_(collectives().wait(flight))


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """Running means and variances, by name: the buffers in which ranks differ."""
    return {
        f"{name}.{kind}".removeprefix("."): buffer
        for name, module in model.named_modules()
        if isinstance(module, _NormBase)
        for kind, buffer in (("running_mean", module.running_mean), ("running_var", module.running_var))
        if buffer is not None
    }


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """What is trained inside leaves no trace in running statistics of this rank's own; `SyncBatchNorm` has those of all."""
    own = [each for each in model.modules() if isinstance(each, _NormBase) and not isinstance(each, SyncBatchNorm)]
    # Not the count of batches, which is the same on all ranks.
    buffers = [buffer for each in own for buffer in (each.running_mean, each.running_var) if buffer is not None]
    before = [buffer.clone() for buffer in buffers]
    yield
    with torch.no_grad():
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)


class SyncBatchNorm(_BatchNorm):
    """Batch-norm whose mean and variance in training are those of all ranks' samples: N ranks compute what one rank would.

    On CPUs and GPUs; input of shape (n, channels, ...). Arguments as for `torch.nn.BatchNorm2d`. In evaluation it is that.
    """

    #: Counts instances, for names of messages that are the same on every rank.
    _made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name = f"batch norm {SyncBatchNorm._made}"
        SyncBatchNorm._made += 1

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"an input of shape (n, channels, ...) was expected, not {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalised `input`, of its shape. In training all ranks must call it, in the same order."""
        if world().size == 1 or not self.training:
            result: torch.Tensor = super().forward(input)
            return result
        self._check_input_dim(input)
        counts = not stand_in.stands_in()
        normalised, mean, variance, count = _Normalise.apply(input, self.eps, self._name, counts)  # type: ignore[no-untyped-call]
        if self.running_mean is not None and self.running_var is not None:
            self._update(mean, variance, count)
        if self.affine:
            shape = (1, -1, *[1] * (input.dim() - 2))
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        scaled: torch.Tensor = normalised
        return scaled

    @torch.no_grad()
    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        if not count:
            return
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _Normalise(Function):
    """(x - mean) / sqrt(variance + eps) with mean and variance over all ranks.

    Forward: the ranks' counts n_i, means m_i and variances v_i combine to mean = sum n_i m_i / n and
    variance = sum n_i (v_i + (m_i - mean)^2) / n (Chan et al., 1979), which loses no digits where the mean is large.
    A batch that does not count has n_i = 0, and a gradient of 0.
    Backward: dx = (dy - mean(dy) - y mean(dy y)) / sqrt(variance + eps), the means over all ranks (Ioffe and Szegedy, 2015).
    """

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, eps: float, name: str, counts: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        reduced = [axis for axis in range(input.dim()) if axis != 1]
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        if input.numel():
            variance, mean = torch.var_mean(wide, reduced, correction=0)
        else:  # nothing has no mean, and 0 times what is no number is none
            variance = mean = wide.new_zeros(input.shape[1])
        count = wide.new_tensor([input.numel() // input.shape[1] if counts else 0])
        own = torch.cat([count, mean, variance]).double().unsqueeze(0)
        with session().waiting():
            every = collectives().wait(collectives().start_allgather(own, f"{name} forward"))
        sizes, (means, variances) = every[:, :1], every[:, 1:].chunk(2, dim=1)
        total = sizes.sum()
        divisor = total.clamp(min=1)
        mean = (sizes * means).sum(0) / divisor
        variance = (sizes * (variances + (means - mean) ** 2)).sum(0) / divisor
        shape = (1, -1, *[1] * (input.dim() - 2))
        inverse = torch.rsqrt(variance + eps).to(wide.dtype)
        normalised = (wide - mean.to(wide.dtype).view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normalised, inverse)
        ctx.name, ctx.reduced, ctx.total, ctx.counts = name, reduced, float(divisor), counts
        ctx.mark_non_differentiable(mean, variance, total)
        return normalised.to(input.dtype), mean, variance, total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        normalised, inverse = ctx.saved_tensors
        gradient = gradients[0].to(normalised.dtype)
        shape = (1, -1, *[1] * (normalised.dim() - 2))
        sums = torch.cat([gradient.sum(ctx.reduced), (gradient * normalised).sum(ctx.reduced)]).double()
        with session().waiting():
            sums = collectives().wait(collectives().start_allreduce(sums, f"{ctx.name} backward", average=False))
        if not ctx.counts:
            return torch.zeros_like(gradients[0]), None, None, None
        mean, along = (sums / ctx.total).to(normalised.dtype).chunk(2)
        result = (gradient - mean.view(shape) - normalised * along.view(shape)) * inverse.view(shape)
        return result.to(gradients[0].dtype), None, None, None


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """The model with every batch-norm replaced by a `SyncBatchNorm` of the same parameters and statistics; before `distribute`."""
    if isinstance(model, _BatchNorm) and not isinstance(model, SyncBatchNorm):
        twin = SyncBatchNorm(
            model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats
        ).train(model.training)
        # The same objects, so that an optimizer made before goes on updating them.
        twin.weight, twin.bias = model.weight, model.bias
        twin.running_mean, twin.running_var = model.running_mean, model.running_var
        twin.num_batches_tracked = model.num_batches_tracked
        return twin
    for name, child in model.named_children():
        setattr(model, name, convert_sync_batchnorm(child))
    return model
