"""Loops of one's own: each scenario trains on the same union of samples, whatever the number of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import ASGD, SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop, SparseAdam
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht
from tests.training.scenarios import Branching, Spectral, Words, perceptron, samples, texts

State = dict[str, torch.Tensor]
Build = tuple[Callable[[], nn.Module], Callable[[nn.Module], Optimizer], int]

#: What strategy "ddp" cannot do, and why.
HOROVOD_ONLY = {
    "rank_dependent_branches": "DDP waits for a parameter that a rank does not use",
    "branch_taken_out": "the same: not every rank uses it in every step",
    "gradients_never_zeroed": "the same: the model has such parameters",
    "sparse_adam": "the same: a rank without a lookup", "sparse_sgd": "the same", "sparse_adagrad": "the same",
    "compressed": "needs a communication hook",
    "compressed_bfloat16": "needs a communication hook",
    "compressed_complex": "needs a communication hook",
}  # fmt: skip


def _sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def _compiled() -> nn.Module:
    model = torch.compile(perceptron(), backend="aot_eager")
    assert isinstance(model, nn.Module)
    return model


SCENARIOS: dict[str, Build] = {
    "sgd_momentum": (perceptron, _sgd, 96),
    "nesterov": (perceptron, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True), 96),
    "asgd": (perceptron, lambda m: ASGD(m.parameters(), lr=0.1), 96),
    "adam": (perceptron, lambda m: Adam(m.parameters(), lr=0.01), 96),
    "adamw": (perceptron, lambda m: AdamW(m.parameters(), lr=0.01, weight_decay=0.1), 96),
    "adamw_fused": (perceptron, lambda m: AdamW(m.parameters(), lr=0.01, fused=True), 96),
    "nadam": (perceptron, lambda m: NAdam(m.parameters(), lr=0.01), 96),
    "rmsprop": (perceptron, lambda m: RMSprop(m.parameters(), lr=0.005), 96),
    "adagrad": (perceptron, lambda m: Adagrad(m.parameters(), lr=0.05), 96),
    "last_step_shared_out": (perceptron, _sgd, 100),
    "fewer_samples_than_ranks": (perceptron, _sgd, 97),
    "rank_dependent_branches": (Branching, lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01), 96),
    "double": (lambda: perceptron().double(), _sgd, 96),
    "bfloat16_on_the_wire": (lambda: perceptron().bfloat16(), lambda m: SGD(m.parameters(), lr=0.1), 96),
    "compressed": (perceptron, _sgd, 96),
    "compressed_bfloat16": (lambda: perceptron().bfloat16(), lambda m: SGD(m.parameters(), lr=0.1), 96),
    "complex": (Spectral, _sgd, 96),
    "compressed_complex": (Spectral, _sgd, 96),
    "compiled": (_compiled, _sgd, 96),
    "sparse_adam": (Words, lambda m: SparseAdam(list(m.parameters()), lr=0.05), 90),
    "sparse_sgd": (Words, lambda m: SGD(m.parameters(), lr=0.5), 90),
    "sparse_adagrad": (Words, lambda m: Adagrad(m.parameters(), lr=0.1), 90),
}


def _train(name: str, union: int, world: Any) -> State:
    build, optimizer_for, n = SCENARIOS[name]
    # Every rank begins somewhere else; only rank 0's weights may count.
    torch.manual_seed(1 if world.rank == 0 else 100 + world.rank)
    model = build()
    compression = "fp16" if name.startswith("compressed") else "none"
    model, optimizer = ht.distribute(model, optimizer_for(model), lr_rule="none", compression=compression)
    data: TensorDataset = (
        texts(n, 7)
        if name.startswith("sparse")
        else samples(n, 7, next(p.dtype for p in model.parameters() if not p.is_complex()))
    )
    loader = ht.loader(data, union // world.size, seed=3)
    loss = nn.CrossEntropyLoss()
    for _ in range(2):
        for x, y in loader:
            (loss(model(x), y) * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def _group_added_later(union: int, world: Any, before_backward: bool) -> State:
    """Or when the gradients of the step are on their way already."""
    torch.manual_seed(2)
    model = perceptron()
    optimizer = SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    trained, _ = ht.distribute(model, optimizer, lr_rule="none")
    for step, (x, y) in enumerate(ht.loader(samples(96, 7), union // world.size, seed=3)):
        loss = nn.functional.cross_entropy(trained(x), y)
        if not before_backward:
            loss.backward()
        if step == 2:
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.05})
        if before_backward:
            loss.backward()
        optimizer.step()
        model.zero_grad()
    return model.state_dict()


def _group_taken_out(union: int, world: Any, model: nn.Module, part: str) -> State:
    """Its gradients are still computed, maybe not on all ranks, and go nowhere."""
    torch.manual_seed(2)
    named = {name: list(child.parameters()) for name, child in model.named_children()}
    groups = [{"params": named.pop(part)}]
    groups.insert(0, {"params": [parameter for each in named.values() for parameter in each]})
    trained, optimizer = ht.distribute(model, SGD(groups, lr=0.1, momentum=0.9), lr_rule="none")
    for step, (x, y) in enumerate(ht.loader(samples(96, 7), union // world.size, seed=3)):
        if step == 2:
            optimizer.param_groups.pop()
        nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()
        model.zero_grad()
        assert not optimizer.hvdtrain.stop_agreed
    return model.state_dict()


def _state_kept_at_wrapping(union: int, world: Any) -> State:
    """Momentum gathered before `distribute`, by rank 0 only, must go on acting, on every rank."""
    torch.manual_seed(4)
    model = perceptron()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    if world.rank == 0:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    for x, y in ht.loader(samples(96, 7), union // world.size, seed=3):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return model.state_dict()


def _weighted(union: int, world: Any) -> State:
    """Samples of some classes come more often, and a last step is shared out."""
    torch.manual_seed(2)
    model = perceptron()
    model, optimizer = ht.distribute(model, _sgd(model), lr_rule="none")
    data = samples(100, 7)
    loader = ht.loader(data, union // world.size, seed=3, weights=1.0 + 9 * (data.tensors[1] == 2))
    for _ in range(2):
        for x, y in loader:
            (nn.functional.cross_entropy(model(x), y) * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def _between_backward_and_step(name: str, union: int, world: Any) -> State:
    """What users do there, each over the same union of samples."""
    torch.manual_seed(6)
    model = Branching() if name == "gradients_never_zeroed" else perceptron()
    rate = 0.01 if name == "gradients_never_zeroed" else 0.1
    model, optimizer = ht.distribute(model, SGD(model.parameters(), lr=rate, momentum=0.9), lr_rule="none")
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for step, (x, y) in enumerate(ht.loader(samples(96, 7), union // world.size, seed=3)):
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
            if name == "scheduler":
                scheduler.step()
            if name == "one_rank_slow" and world.rank == world.size - 1:
                time.sleep(0.03)
            if name == "gradients_never_zeroed":
                continue
        optimizer.zero_grad()
    hooks = torch.tensor([calls.count("before"), calls.count("after")])
    return {**model.state_dict(), "scale": torch.tensor(scaler.get_scale()), "hooks": hooks}


BETWEEN = ("accumulation", "clipping", "overflow_on_one_rank", "gradients_never_zeroed", "scheduler", "one_rank_slow")


def run(union: int, world: Any, strategy: str, only: list[str] | None = None) -> dict[str, State]:
    """Where each scenario ends; `only` some of them."""
    cases: dict[str, Callable[[], State]] = {
        **{name: lambda name=name: _train(name, union, world) for name in SCENARIOS},
        **{name: lambda name=name: _between_backward_and_step(name, union, world) for name in BETWEEN},
        "weighted_samples": lambda: _weighted(union, world),
        "group_added_later": lambda: _group_added_later(union, world, before_backward=True),
        "group_added_before_step": lambda: _group_added_later(union, world, before_backward=False),
        "group_taken_out": lambda: _group_taken_out(union, world, perceptron(), "2"),
        "branch_taken_out": lambda: _group_taken_out(union, world, Branching(), "rare"),
        "state_kept_at_wrapping": lambda: _state_kept_at_wrapping(union, world),
    }
    wanted = only or [name for name in cases if strategy != "ddp" or name not in HOROVOD_ONLY]
    return {name: cases[name]() for name in wanted}
