"""`fit` with what it can do: each scenario trains on the same union of samples, whatever the number of ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht
from hvdtrain import lr
from hvdtrain.record import Epoch
from tests.training.scenarios import CLASSES, TOKENS, Focal, convolution, perceptron, samples, tokens

State = dict[str, torch.Tensor]
KEYS = ("epoch", "train_loss", "train_acc", "val_loss", "val_acc", "samples", "lr", "grad_norm")


#: Arguments of `fit`, and samples to train on.
SCENARIOS: dict[str, tuple[dict[str, Any], int]] = {
    "fit_uneven": ({}, 101),
    "fit_accumulate": ({"accumulate": 3}, 106),
    "fit_clip": ({"clip_norm": 0.1}, 101),
    "fit_bf16": ({"precision": "bf16"}, 96),
    "fit_fp16": ({"precision": "fp16", "clip_norm": 1.0, "accumulate": 2}, 96),
    "fit_cosine": ({"schedule": lr.cosine(3, floor=0.1)}, 101),
    "fit_adamw_step": ({"schedule": lr.step(0.5, 0.7)}, 101),
    "fit_scaled": ({"schedule": lr.exponential(0.8)}, 101),
    # A last step of two samples: on four ranks two have none that counts.
    "fit_sync_batch_norm": ({}, 98),
    "fit_class_weights": ({}, 101),
    # Whole shares of a union are of the class that weighs nothing; the last step has two samples, the first one of it.
    "fit_class_of_no_weight": ({}, 98),
    "fit_ignored_class": ({"accumulate": 2, "clip_norm": 0.1}, 101),
    "fit_padding": ({"accumulate": 3}, 106),
    "fit_focal": ({"loss_weight": len}, 101),
    "fit_loss_weight": ({"loss_weight": lambda target: (target >= 0).sum()}, 101),
}


def _mean_over_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    sums = nn.functional.cross_entropy(output, target, ignore_index=-1, reduction="sum")
    return sums / max(1, int((target >= 0).sum()))


#: Losses that divide by something else than samples.
LOSSES: dict[str, Any] = {
    "fit_class_weights": nn.CrossEntropyLoss(weight=torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0]), label_smoothing=0.1),
    "fit_class_of_no_weight": nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 2.0, 1.0, 1.0])),
    "fit_ignored_class": functools.partial(nn.functional.cross_entropy, ignore_index=1),
    "fit_padding": nn.CrossEntropyLoss(),
    "fit_focal": Focal(weight=torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0])),
    "fit_loss_weight": _mean_over_tokens,
}
#: Of these a sample is a row of tokens, padded with this.
PADDED = {"fit_padding": -100, "fit_loss_weight": -1}


def _fit(name: str, union: int, world: Any) -> tuple[State, list[dict[str, Any]]]:
    options, n = SCENARIOS[name]
    torch.manual_seed(5 if world.rank == 0 else 50 + world.rank)
    model = ht.convert_sync_batchnorm(_two_norms()) if name == "fit_sync_batch_norm" else perceptron()
    data, unseen = samples(n, 7), samples(43, 8)
    if name in PADDED:
        model = nn.Sequential(nn.Linear(8, CLASSES * TOKENS), nn.Unflatten(1, (CLASSES, TOKENS)))
        data, unseen = (tokens(each, PADDED[name]) for each in (data, unseen))
    if name == "fit_class_of_no_weight":
        data = TensorDataset(data.tensors[0], torch.arange(n) % 12 // 6 * (1 + torch.arange(n) % 4))
        data.tensors[1][-1] = 1
    rule, rate = ("linear", 0.12 / world.size) if name == "fit_scaled" else ("none", 0.1)
    if name == "fit_adamw_step":
        optimizer: torch.optim.Optimizer = AdamW(model.parameters(), lr=0.01)
    else:
        optimizer = SGD(model.parameters(), lr=rate, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, lr_rule=rule)
    loader = ht.loader(data, union // world.size, seed=3, shuffle=name != "fit_class_of_no_weight")
    validation = ht.validation_loader(unseen, 10)
    loss = LOSSES.get(name, nn.CrossEntropyLoss())
    history = ht.fit(model, optimizer, loss, loader, validation, epochs=3, **options)
    return model.state_dict(), _reported(history)


def _reported(history: list[Epoch]) -> list[dict[str, Any]]:
    """Without what an epoch has not: tokens no accuracy."""
    return [{key: value for key in KEYS if (value := getattr(entry, key)) is not None} for entry in history]


def _two_norms() -> nn.Module:
    class Both(nn.BatchNorm2d):
        def _check_input_dim(self, input: torch.Tensor) -> None:
            pass

    return convolution(Both)


def _accumulation_is_a_bigger_batch(union: int, world: Any) -> State:
    """Three batches accumulated by N ranks are one batch three times as large."""
    torch.manual_seed(5)
    model = perceptron()
    model, optimizer = ht.distribute(model, SGD(model.parameters(), lr=0.1, momentum=0.9), lr_rule="none")
    batch, accumulate = (3 * union, 1) if world.size == 1 else (union // world.size, 3)
    loader = ht.loader(samples(101, 7), batch, seed=3)
    ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=3, accumulate=accumulate)
    return model.state_dict()


def _decisions(union: int, world: Any) -> list[dict[str, Any]]:
    """A plateau that lowers the rate, and a stop before the last epoch: by the validation loss of the whole world."""
    torch.manual_seed(5)
    model = perceptron()
    model, optimizer = ht.distribute(model, SGD(model.parameters(), lr=0.5, momentum=0.9), lr_rule="none")
    loader = ht.loader(samples(60, 7), union // world.size, seed=3)
    validation = ht.validation_loader(samples(43, 8), 10)
    plateau, early = lr.Plateau(patience=0, factor=0.5), ht.EarlyStopping(patience=3)
    history = ht.fit(
        model, optimizer, nn.CrossEntropyLoss(), loader, validation, epochs=40, schedule=plateau, early_stopping=early
    )
    return _reported(history)


def run(union: int, world: Any, strategy: str) -> tuple[dict[str, State], dict[str, list[dict[str, Any]]]]:
    """Where each scenario ends, and what `fit` reported."""
    states, histories = {}, {}
    for name in SCENARIOS:
        states[name], histories[name] = _fit(name, union, world)
    states["accumulation_is_a_bigger_batch"] = _accumulation_is_a_bigger_batch(union, world)
    histories["decisions"] = _decisions(union, world)
    return states, histories
