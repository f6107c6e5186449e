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

from hvdtrain._torch.batch_norm import SyncBatchNorm, average_statistics, convert_sync_batchnorm
from hvdtrain._torch.checkpoints import Checkpoints, stop_requested
from hvdtrain._torch.distribute import distribute, no_sync, synchronize
from hvdtrain._torch.early import EarlyStopping
from hvdtrain._torch.evaluate import evaluate
from hvdtrain._torch.fit import fit
from hvdtrain._torch.join import JoinLoader
from hvdtrain._torch.loader import Loader, loader, validation_loader
from hvdtrain._torch.start import STRATEGIES, gather_objects, init, rank_zero_first, sum_over_ranks, world
from hvdtrain.errors import Diverged
from hvdtrain.own_epochs import record_epoch
from hvdtrain.stop import Stopped

__all__ = [
    "STRATEGIES",
    "Checkpoints",
    "Diverged",
    "EarlyStopping",
    "JoinLoader",
    "Loader",
    "Stopped",
    "SyncBatchNorm",
    "average_statistics",
    "convert_sync_batchnorm",
    "distribute",
    "evaluate",
    "fit",
    "gather_objects",
    "init",
    "loader",
    "no_sync",
    "rank_zero_first",
    "record_epoch",
    "stop_requested",
    "sum_over_ranks",
    "synchronize",
    "validation_loader",
    "world",
]
