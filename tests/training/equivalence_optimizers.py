"""More than one optimizer, at once or one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

import hvdtrain.torch as ht
from tests.training.equivalence_steps import State
from tests.training.scenarios import CLASSES, perceptron, samples

#: What strategy "ddp" cannot do, and why.
HOROVOD_ONLY = {"parameters_outside_the_model": "DDP averages the gradients of the model that it wraps"}


def _batches(union: int, world: Any, n: int = 96) -> ht.Loader:
    loader = ht.loader(samples(n, 7), union // world.size, seed=3)
    assert isinstance(loader, ht.Loader)
    return loader


def _begin(world: Any) -> None:
    """Every rank begins somewhere else; only rank 0's weights may count."""
    torch.manual_seed(1 if world.rank == 0 else 100 + world.rank)


def _step(*optimizers: Optimizer) -> None:
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()


def _of_one_model(union: int, world: Any) -> State:
    _begin(world)
    model = perceptron()
    first, second = SGD(model[0].parameters(), lr=0.1, momentum=0.9), Adam(model[2].parameters(), lr=0.01)
    model, first = ht.distribute(model, first, lr_rule="none")
    model, second = ht.distribute(model, second, lr_rule="none")
    for x, y in _batches(union, world):
        functional.cross_entropy(model(x), y).backward()
        _step(first, second)
    return model.state_dict()


def _of_two_models(union: int, world: Any) -> State:
    """Whose parameters have the same names."""
    _begin(world)
    encoder, head = nn.Sequential(nn.Linear(8, 6), nn.Tanh()), nn.Sequential(nn.Linear(6, CLASSES))
    encoder, first = ht.distribute(encoder, SGD(encoder.parameters(), lr=0.1), lr_rule="none")
    head, second = ht.distribute(head, SGD(head.parameters(), lr=0.2), lr_rule="none")
    for x, y in _batches(union, world):
        functional.cross_entropy(head(encoder(x)), y).backward()
        _step(second, first)
    return _both(encoder, head)


def _adversarial(union: int, world: Any) -> State:
    """The maker's loss goes back through the judge, whose gradients from it count for nothing."""
    _begin(world)
    maker = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    judge = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    maker, of_maker = ht.distribute(maker, Adam(maker.parameters(), lr=0.01), lr_rule="none")
    judge, of_judge = ht.distribute(judge, Adam(judge.parameters(), lr=0.01), lr_rule="none")
    for x, _ in _batches(union, world):
        made = maker(x)
        verdicts = judge(torch.cat([x.abs(), made.detach()])).flatten()
        real = torch.cat([torch.ones(len(x)), torch.zeros(len(x))])
        of_judge.zero_grad()
        functional.binary_cross_entropy_with_logits(verdicts, real).backward()
        of_judge.step()
        with ht.no_sync(of_judge):
            fooled = functional.softplus(-judge(made)).mean()
            fooled.backward()
        of_maker.step()
        of_maker.zero_grad()
    return _both(maker, judge)


def _replaced(union: int, world: Any) -> State:
    """The second phase of a fine-tuning: more is trained, by another optimizer."""
    _begin(world)
    model = perceptron()
    model[0].requires_grad_(False)
    trained, optimizer = ht.distribute(model, SGD(model[2].parameters(), lr=0.1), lr_rule="none")
    for phase in range(2):
        for x, y in _batches(union, world):
            functional.cross_entropy(trained(x), y).backward()
            _step(optimizer)
        if phase == 0:
            model[0].requires_grad_(True)
            trained, optimizer = ht.distribute(trained, Adam(model.parameters(), lr=0.01), lr_rule="none")
    return model.state_dict()


def _outside(union: int, world: Any) -> State:
    _begin(world)
    model, scale = perceptron(), nn.Parameter(torch.rand(CLASSES) + 0.5)
    optimizer = SGD([*model.parameters(), scale], lr=0.1)
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    for x, y in _batches(union, world):
        functional.cross_entropy(model(x) * scale, y).backward()
        _step(optimizer)
    return {**model.state_dict(), "scale": scale.detach()}


def _both(first: nn.Module, second: nn.Module) -> State:
    return {f"{n}.{name}": value for n, each in enumerate((first, second)) for name, value in each.state_dict().items()}


CASES = {
    "two_of_one_model": _of_one_model,
    "two_of_two_models": _of_two_models,
    "adversarial": _adversarial,
    "optimizer_replaced": _replaced,
    "parameters_outside_the_model": _outside,
}


def run(union: int, world: Any, strategy: str) -> dict[str, State]:
    """Where each case ends."""
    return {name: case(union, world) for name, case in CASES.items() if strategy != "ddp" or name not in HOROVOD_ONLY}
