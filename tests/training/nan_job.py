"""One rank's loss becomes no number in one step in the middle of an epoch; says after which step each rank ended."""

from __future__ import annotations

import sys

import torch
from torch import nn

import hvdtrain.torch as ht
from tests.training.scenarios import perceptron, samples

world = ht.init()
model = perceptron()
model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), lr_rule="none")
calls = 0


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    value = nn.functional.cross_entropy(output, target)
    return value * float("nan") if (calls, world.rank) == (5, world.size - 1) else value


try:
    ht.fit(model, optimizer, loss, ht.loader(samples(96, 7), 4), epochs=2, precision=sys.argv[1])
except ht.Diverged:
    finite = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    print(f"rank {world.rank} ended after {optimizer.hvdtrain.pace.steps} steps, finite: {finite}", file=sys.stderr)
    raise
