"""Trains the same models on the same union of samples, whatever the number of ranks, and saves where they ended.

`--union` is the batch of the whole world. One process runs all scenarios: importing frameworks takes longer than training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht
from hvdtrain._torch.start import gather_objects

CLASSES = 5


class Branching(nn.Module):
    """`rare` is used only for samples whose first feature exceeds 1.5, `never` not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, CLASSES)
        self.rare = nn.Linear(8, CLASSES)
        self.never = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[:, 0] > 1.5
        output = self.base(x)
        if chosen.any():
            output = output + chosen[:, None] * self.rare(x)
        return output


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, CLASSES))


Build = tuple[Callable[[], nn.Module], Callable[[nn.Module], Optimizer], int]

SCENARIOS: dict[str, Build] = {
    "sgd_momentum": (perceptron, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9), 96),
    "adam": (perceptron, lambda m: Adam(m.parameters(), lr=0.01), 96),
    "adamw": (perceptron, lambda m: AdamW(m.parameters(), lr=0.01, weight_decay=0.1), 96),
    "last_step_shared_out": (perceptron, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9), 100),
    "fewer_samples_than_ranks": (perceptron, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9), 97),
    "rank_dependent_branches": (Branching, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01), 96),
    "double": (lambda: perceptron().double(), lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9), 96),
    "bfloat16_on_the_wire": (lambda: perceptron().bfloat16(), lambda m: SGD(m.parameters(), lr=0.1), 96),
}


def samples(n: int, seed: int, dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    return TensorDataset(x.to(dtype), torch.randint(0, CLASSES, (n,), generator=generator))


def train(name: str, union: int, world: object) -> dict[str, torch.Tensor]:
    build, optimizer_for, n = SCENARIOS[name]
    # Every rank begins somewhere else; only rank 0's weights may count.
    torch.manual_seed(1 if world.rank == 0 else 100 + world.rank)
    model = build()
    model, optimizer = ht.distribute(model, optimizer_for(model), lr_rule="none")
    dtype = next(model.parameters()).dtype
    loader = ht.loader(samples(n, 7, dtype), union // world.size, seed=3)
    loss = nn.CrossEntropyLoss()
    for _ in range(3):
        for x, y in loader:
            (loss(model(x), y) * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def group_added_later(union: int, world: object) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    model = perceptron()
    optimizer = SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    ht.distribute(model, optimizer, lr_rule="none")
    loader = ht.loader(samples(96, 7, torch.float32), union // world.size, seed=3)
    for step, (x, y) in enumerate(loader):
        if step == 2:
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.05})
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        model.zero_grad()
    return model.state_dict()


def state_kept_at_wrapping(union: int, world: object) -> dict[str, torch.Tensor]:
    """Momentum gathered before `distribute`, by rank 0 only, must go on acting, on every rank."""
    torch.manual_seed(4)
    model = perceptron()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    if world.rank == 0:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    ht.distribute(model, optimizer, lr_rule="none")
    for x, y in ht.loader(samples(96, 7, torch.float32), union // world.size, seed=3):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return model.state_dict()


def steps_of(name: str, union: int, world: object) -> dict[str, torch.Tensor]:
    """What users do between backward and step, each over the same union of samples."""
    torch.manual_seed(6)
    model = Branching() if name == "gradients_never_zeroed" else perceptron()
    rate = 0.01 if name == "gradients_never_zeroed" else 0.1
    optimizer = SGD(model.parameters(), lr=rate, momentum=0.9)
    ht.distribute(model, optimizer, lr_rule="none")
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for step, (x, y) in enumerate(ht.loader(samples(96, 7, torch.float32), union // world.size, seed=3)):
        loss = nn.functional.cross_entropy(model(x), y)
        if name == "accumulation":
            if step % 2 == 0:
                with ht.no_sync(optimizer):
                    (loss / 2).backward()
                continue
            (loss / 2).backward()
            optimizer.step()
        elif name == "clipping":
            loss.backward()
            ht.synchronize(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        elif name == "overflow_on_one_rank":
            if step == 2 and world.rank == world.size - 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            ht.synchronize(optimizer)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
            continue
        optimizer.zero_grad()
    return {**model.state_dict(), "scale": torch.tensor(scaler.get_scale())}


STEPS = ("accumulation", "clipping", "overflow_on_one_rank", "gradients_never_zeroed")


def metrics(union: int, world: object) -> list[dict[str, float]]:
    """What `fit` reports over samples that do not divide by anything."""
    torch.manual_seed(5)
    model = perceptron()
    model, optimizer = ht.distribute(model, SGD(model.parameters(), lr=0.1), lr_rule="none")
    loader = ht.loader(samples(101, 7, torch.float32), union // world.size, seed=3)
    validation = ht.validation_loader(samples(43, 8, torch.float32), 10)
    history = ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, validation, epochs=3)
    keys = ("epoch", "train_loss", "train_acc", "val_loss", "val_acc", "samples", "lr", "grad_norm")
    return [{key: getattr(entry, key) for key in keys} for entry in history]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--union", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    world = ht.init()
    ended = {name: train(name, options.union, world) for name in SCENARIOS}
    ended["group_added_later"] = group_added_later(options.union, world)
    ended["state_kept_at_wrapping"] = state_kept_at_wrapping(options.union, world)
    ended |= {name: steps_of(name, options.union, world) for name in STEPS}
    sums = {name: [tensor.double().sum().item() for tensor in state.values()] for name, state in ended.items()}
    alike = all(each == sums for each in gather_objects(sums))
    history = metrics(options.union, world)
    if world.rank == 0:
        torch.save({name: {k: v.double() for k, v in state.items()} for name, state in ended.items()}, options.out)
        options.out.with_suffix(".json").write_text(json.dumps({"alike": alike, "metrics": history}))


if __name__ == "__main__":
    main()
