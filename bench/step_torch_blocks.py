"""A step of PyTorch beside hand-written ones, on a machine whose speed drifts from second to second.

    python bench/step_torch_blocks.py --ranks 2,4 --models CNN,MLP --json bench/results/step_torch_blocks.json

The contenders are threads of the same ranks, which talk over what `auto` picks, and take turns every ten steps (`blocks.py`):

    hvdtrain            `distribute` and `fit` with all that is on by default
    hand-written        Horovod's own DistributedOptimizer in the shortest loop
    hand-written again  the same once more: what of a difference is noise

DDP is compared in processes of its own (`step_torch.py`): beside Horovod in one process it takes longer than there.
Printed are medians, and their ratio to that of both hand-written ones together over all starts, with a 90 % interval: above 1 is
slower.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from blocks import REFERENCE, BeforeStep, compare_steps, steps, take_turns
from step_torch import MODELS, by_hand, by_hvdtrain
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht

CONTENDERS: dict[str, Callable[..., Any]] = {
    "hvdtrain": by_hvdtrain,
    **dict.fromkeys(REFERENCE, functools.partial(by_hand, contender="hand")),
}


def compare(model: Any, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of a step by contender and round."""
    make, world = model[0], ht.world()
    _, shape, batch = make()
    torch.manual_seed(0)
    n = batch * world.size * steps(options.rounds)
    data = TensorDataset(torch.randn(2048, *shape)[torch.arange(n) % 2048], torch.randint(0, 10, (n,)))

    def taking_turns(run: Callable[..., Any], before_step: BeforeStep) -> None:
        made, number = make()[0], itertools.count()
        made.register_forward_pre_hook(lambda *_: before_step(next(number)))
        run(made, data, batch, 1)

    return take_turns({name: functools.partial(taking_turns, run) for name, run in CONTENDERS.items()}, options)


if __name__ == "__main__":
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    compare_steps(__doc__, __file__, MODELS, compare, ht.init)
