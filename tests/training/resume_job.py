"""A training with all that has a state, which signals interrupt in each attempt but the last one."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

import hvdtrain.torch as ht
from hvdtrain import lr, record
from hvdtrain._torch.start import gather_objects
from tests.training.scenarios import CLASSES, convolution, samples

#: By attempt: signals, rank (from the end when negative), and where: the n-th training step, evaluation or loaded sample.
INTERRUPTIONS = [
    (("SIGTERM", "SIGUSR1"), -1, "step", 4),
    (("SIGUSR1",), 0, "evaluation", 2),
    (("SIGUSR2",), -1, "data", 9),
]


class Interrupt:
    """Sends this attempt's signals to this process when it has come to the place."""

    def __init__(self, wanted: bool) -> None:
        attempt, world = record.restart_count(), ht.world()
        self.plan = INTERRUPTIONS[attempt] if wanted and attempt < len(INTERRUPTIONS) else None
        if self.plan is not None and self.plan[1] % world.size != world.rank:
            self.plan = None
        self.counts = {"step": 0, "evaluation": 0, "data": 0}
        self.main = os.getpid()

    def __call__(self, place: str) -> None:
        self.counts[place] += 1
        if self.plan is None or self.plan[2] != place or self.counts[place] != self.plan[3]:
            return
        # As a signal to the process group: loader workers get it too.
        everybody = [psutil.Process(self.main), *psutil.Process(self.main).children()]
        for name in self.plan[0]:
            for process in everybody:
                process.send_signal(getattr(signal, name))


class Augmented(Dataset[Any]):
    """Draws from the generators of Python, numpy and torch."""

    def __init__(self, data: Dataset[Any], interrupt: Interrupt) -> None:
        self.data = data
        self.interrupt = interrupt

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        self.interrupt("data")
        x, y = self.data[index]
        return x + 0.1 * (random.random() + np.random.rand() + torch.rand(8)), y


class Model(nn.Module):
    """With batch-norms, whose statistics differ between ranks, and dropout."""

    def __init__(self, interrupt: Interrupt) -> None:
        super().__init__()
        self.body = convolution(_AnyNorm)
        self.drop = nn.Dropout(0.2)
        self.interrupt = interrupt
        self.drawn: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.interrupt("step" if self.training else "evaluation")
        if self.training:
            self.drawn = [random.random(), float(np.random.rand()), float(torch.rand(1))]
        return self.body(self.drop(x))


class _AnyNorm(nn.BatchNorm2d):
    def _check_input_dim(self, input: torch.Tensor) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--join", type=int, help="how many of the samples are rank 0's own")
    parser.add_argument("--interrupted", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    world = ht.init()
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    interrupt = Interrupt(options.interrupted)
    model = Model(interrupt)
    assert CLASSES == 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    model, optimizer = ht.distribute(
        model, optimizer, lr_rule="adascale" if world.size > 1 else "auto", warmup_epochs=1
    )
    data: Any = Augmented(samples(104, 7), interrupt)
    if options.join:
        data = Subset(data, range(options.join) if world.rank == 0 else range(options.join, 104))
    uneven: Any = "join" if options.join else "pad"
    train = ht.loader(data, 4, seed=3, uneven=uneven, num_workers=options.workers)
    validation = ht.validation_loader(samples(43, 8), 5)
    history = ht.fit(
        model, optimizer, nn.CrossEntropyLoss(), train, validation, epochs=options.epochs,
        precision="fp16", accumulate=2, clip_norm=1.0, schedule=lr.Plateau(patience=0, factor=0.5),
        early_stopping=ht.EarlyStopping(patience=10),
    )  # fmt: skip
    state = [*model.state_dict().values(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    digest = hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in state)).hexdigest()
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(1))]
    everybody = gather_objects({"digest": digest, "drawn": model.drawn, "drawn afterwards": drawn})
    if world.rank == 0:
        numbers = (
            "epoch",
            "train_loss",
            "train_acc",
            "val_loss",
            "val_acc",
            "lr",
            "samples",
            "grad_norm",
            "noise_scale",
        )
        record.write_json(
            options.out,
            {"ranks": everybody, "history": [[getattr(entry, key) for key in numbers] for entry in history]},
        )


if __name__ == "__main__":
    main()
