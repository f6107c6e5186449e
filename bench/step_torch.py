"""What a training step costs with PyTorch: hvdtrain beside what a user would write instead.

    python bench/step_torch.py --ranks 2,4 --rounds 5 --json bench/results/step_torch.json

Every contender trains the same three models on the same random data, in processes of its own, and they take turns:

    hvdtrain        `distribute` and `fit` with all that is on by default, under the launcher that `auto` picks
    hvdtrain gloo   the same without MPI
    hand-written    Horovod's own DistributedOptimizer in the shortest loop, under the launcher that `auto` picks
    hand, gloo      the same without MPI
    DDP             torch's DistributedDataParallel over Gloo in the shortest loop
    single          one process with as many threads as a rank has, and a rank's batch

An epoch's training seconds over its steps, first epoch not counted. Printed are medians over the rounds, and the median and
quartiles of the ratios within a round: above 1, ours is faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from turns import chosen, compare_steps

import hvdtrain.torch as ht

#: Contender -> launcher, and what runs in each rank.
CONTENDERS = {
    "hvdtrain": ("auto", "hvdtrain"),
    "hvdtrain gloo": ("local", "hvdtrain"),
    "hand-written": ("auto", "hand"),
    "hand, gloo": ("local", "hand"),
    "DDP": ("local", "ddp"),
    "single": ("none", "single"),
}


class Block(nn.Module):
    """Of a residual network (He et al. 2016, arXiv:1512.03385)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        first, second = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.body = nn.Sequential(first, nn.BatchNorm2d(after), nn.ReLU(), second, nn.BatchNorm2d(after))
        self.short = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def small_cnn() -> tuple[nn.Module, tuple[int, ...], int]:
    """About 0.2 million parameters on 28x28 pixels."""
    convolutions = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return (
        nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 256), nn.ReLU(), nn.Linear(256, 10)),
        (1, 28, 28),
        32,
    )


def wide_mlp() -> tuple[nn.Module, tuple[int, ...], int]:
    """Six layers of 1,024: 6.3 million parameters and little to compute, so the gradients' way counts most."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10)), (1024,), 32


def resnet18() -> tuple[nn.Module, tuple[int, ...], int]:
    """The size of a ResNet-18 (11.2 million parameters) on 32x32 pixels."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(before, after) for before, after in itertools.pairwise(widths)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32), 8


#: Model -> how to make it, and steps of an epoch.
MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[int, ...], int]], int]] = {
    "small CNN": (small_cnn, 120),
    "6 x 1024 MLP": (wide_mlp, 40),
    "ResNet-18": (resnet18, 6),
}


def by_hvdtrain(model: nn.Module, data: TensorDataset, batch: int, epochs: int) -> list[float]:
    """Seconds of a step, by epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    loader = ht.loader(data, batch, seed=0)
    history = ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=epochs, checkpoints=False)
    return [epoch.seconds / len(loader) for epoch in history]


def by_hand(model: nn.Module, data: TensorDataset, batch: int, epochs: int, contender: str) -> list[float]:
    """Seconds of a step, by epoch: the loop of any tutorial."""
    world = ht.world()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    if contender == "hand":
        import horovod.torch as hvd

        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    elif contender == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    sampler: Any = DistributedSampler(data, world.size, world.rank)
    loader = DataLoader(data, batch, sampler=sampler)
    criterion, seconds = nn.CrossEntropyLoss(), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        began, total = time.perf_counter(), 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        seconds.append((time.perf_counter() - began) / len(loader))
    return seconds


def rank(options: argparse.Namespace) -> None:
    """One rank of one contender."""
    world = ht.init({"ddp": "ddp", "single": "single"}.get(options.rank, "horovod"))
    found = {}
    for name, (make, steps) in chosen(options, MODELS).items():
        torch.manual_seed(0)
        model, shape, batch = make()
        n = batch * world.size * (2 if options.tiny else steps)
        data = TensorDataset(torch.randn(n, *shape), torch.randint(0, 10, (n,)))
        epochs = 2 if options.tiny else 4
        if options.rank == "hvdtrain":
            seconds = by_hvdtrain(model, data, batch, epochs)
        else:
            seconds = by_hand(model, data, batch, epochs, options.rank)
        found[name] = statistics.median(seconds[1:])
    if world.rank == 0:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    compare_steps(__doc__, __file__, CONTENDERS, ["hand-written", "DDP"], rank)
