"""Synchronised training for PyTorch.

    import hvdtrain.torch as ht

    world = ht.init()
    train = ht.loader(dataset, batch_size=32, seed=0)
    model, optimizer = ht.distribute(model, optimizer, lr_rule="linear", warmup_epochs=5)
    history = ht.fit(model, optimizer, loss, train, validation, epochs=30)

The model and the optimizer stay the objects they were: `distribute` only adds hooks. So schedulers, checkpoints,
`zero_grad(set_to_none=...)` and everything else of PyTorch work as before.
"""

from __future__ import annotations

from hvdtrain._torch.distribute import distribute, no_sync, synchronize
from hvdtrain._torch.fit import evaluate, fit, record_epoch
from hvdtrain._torch.loader import Loader, loader, validation_loader
from hvdtrain._torch.start import init, sum_over_ranks, world

__all__ = [
    "Loader",
    "distribute",
    "evaluate",
    "fit",
    "init",
    "loader",
    "no_sync",
    "record_epoch",
    "sum_over_ranks",
    "synchronize",
    "validation_loader",
    "world",
]
