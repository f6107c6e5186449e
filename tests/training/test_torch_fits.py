"""One `fit` after another, or after a loop of one's own: what the one before has left must not count."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hvdtrain.torch as ht
from tests.training.scenarios import perceptron, samples

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _world() -> None:
    ht.init()


def made(model: nn.Module, parameters: Any = None) -> tuple[nn.Module, torch.optim.SGD]:
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.1)
    return ht.distribute(model, optimizer)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any = LOSS, **options: Any) -> list[Any]:
    """Of two epochs, if not said otherwise, each of four steps."""
    train = options.pop("train", None) or ht.loader(samples(16, 1), 4)
    return ht.fit(model, optimizer, loss, train, **{"epochs": 2, **options})


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_gradients_of_a_phase_that_trained_the_head_only_are_not_used() -> None:
    """The rest of the model has gradients of all its steps, which its optimizer has never cleared."""
    ends = []
    for clear in (True, False):
        torch.manual_seed(0)
        model = perceptron()
        fit(*made(model, model[2].parameters()))
        assert model[0].weight.grad is not None
        if clear:
            model.zero_grad()
        fit(*made(model))
        ends.append(model)
    assert equal(*ends)


def test_gradients_of_a_loop_before_are_not_used() -> None:
    ends = []
    for clear in (True, False):
        torch.manual_seed(0)
        model, optimizer = made(perceptron())
        LOSS(model(torch.ones(2, 8)), torch.zeros(2, dtype=torch.long)).backward()
        optimizer.step()
        if clear:
            optimizer.zero_grad()
        fit(model, optimizer)
        ends.append(model)
    assert equal(*ends)


def test_a_rate_that_diverged_leaves_nothing_to_the_next_one() -> None:
    torch.manual_seed(0)
    model = perceptron()
    start, fresh = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    with pytest.raises(ht.Diverged):
        fit(*made(model), lambda output, target: LOSS(output, target) * float("nan"))
    # In the step that was refused: no number stands in the gradients.
    assert model[0].weight.grad is not None
    model.load_state_dict(start)
    fit(*made(model))
    fit(*made(fresh))
    assert equal(model, fresh)
