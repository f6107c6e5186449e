"""Synchronised training for Keras 3, on TensorFlow or PyTorch.

    import hvdtrain.keras as hk

    world = hk.init()
    train = hk.loader(x, y, batch_size=32, seed=0)
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.01), lr_rule="linear", warmup_epochs=5)
    model.compile(optimizer=optimizer, loss=..., metrics=[...])
    model.fit(train, validation_data=hk.validation_loader(x_val, y_val, batch_size=256), epochs=30, callbacks=hk.callbacks())

The model and the optimizer stay what they are to Keras: a saved model loads without hvdtrain.
"""

from __future__ import annotations

from hvdtrain._keras.fitting import callbacks
from hvdtrain._keras.loader import Loader, ValidationLoader, loader, validation_loader
from hvdtrain._keras.metrics import evaluate
from hvdtrain._keras.optimizer import DistributedOptimizer
from hvdtrain._keras.own_loop import Checkpoints
from hvdtrain._keras.short import compile, fit
from hvdtrain._keras.start import gather_objects, init, rank_zero_first, replicas, sum_over_ranks, world
from hvdtrain._keras.state import broadcast
from hvdtrain.errors import Diverged
from hvdtrain.own_epochs import record_epoch
from hvdtrain.stop import Stopped

__all__ = [
    "Checkpoints",
    "DistributedOptimizer",
    "Diverged",
    "Loader",
    "Stopped",
    "ValidationLoader",
    "broadcast",
    "callbacks",
    "compile",
    "evaluate",
    "fit",
    "gather_objects",
    "init",
    "loader",
    "rank_zero_first",
    "record_epoch",
    "replicas",
    "sum_over_ranks",
    "validation_loader",
    "world",
]
