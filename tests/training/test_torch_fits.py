"""One `fit` after another, or after a loop of one's own: what the one before has left must not count."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hvdtrain.torch as ht
from hvdtrain import own_folder
from hvdtrain.errors import UserError
from tests.training.scenarios import perceptron, samples
from tests.worlds import run_world

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


DRAWN = """
import json, random
import numpy as np
import torch
from torch import nn
import hvdtrain.torch as ht
from hvdtrain.errors import UserError
from tests.training.scenarios import perceptron, samples
world = ht.init()
loss = nn.CrossEntropyLoss()
seen, ranks = {}, {}

def drawing(output, target):
    seen[name] = float(torch.rand(1)), float(np.random.rand()), random.random()
    return loss(output, target) * (float("nan") if name == "diverged" else 1.0)

torch.manual_seed(1), np.random.seed(1), random.seed(1)
for name in ("first", "second", "diverged"):
    model, optimizer = ht.distribute(*(lambda m: (m, torch.optim.SGD(m.parameters(), lr=0.1)))(perceptron()))
    try:
        ht.fit(model, optimizer, drawing, ht.loader(samples(16, 1), 4), epochs=1)
    except ht.Diverged:
        pass
    after = float(torch.rand(1)), float(np.random.rand()), random.random()
    ranks[name] = ht.gather_objects([seen.get(name), after])
if world.rank == 0:
    print(json.dumps(ranks))
"""


@pytest.mark.ranks
def test_ranks_draw_alike_after_fit_and_not_within(tmp_path: Path) -> None:
    """Or a script that splits its data anew for each `fit` would validate on what another rank trains on."""
    script = tmp_path / "drawn.py"
    script.write_text(DRAWN)
    ends = []
    for _ in range(2):  # trained already the second time
        ended = run_world(2, script, options=["--launcher", "local", "--run-dir", str(tmp_path / "run")])
        assert ended.status == 0, ended.err
        ends.append(json.loads(ended.out.splitlines()[-1]))
        assert [one[1] == other[1] for one, other in ends[-1].values()] == [True] * 3
    assert all(a != b for one, other in ends[0].values() for a, b in zip(one[0], other[0], strict=True))
    # Nor are they those of another `fit`, and in one that begins anew in a script that is started again they are.
    assert all(ends[0]["first"][rank][0] != ends[0]["second"][rank][0] for rank in (0, 1))
    assert ends[1]["diverged"] == ends[0]["diverged"]
    # What a script draws after a training is the same when it is started again.
    assert [ends[1][name][0] for name in ("first", "second")] == [
        [None, ends[0][name][0][1]] for name in ("first", "second")
    ]


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """The rates of so many steps of a loop of one's own."""
    rates = []
    for _ in range(steps):
        optimizer.zero_grad()
        LOSS(model(torch.ones(2, 8)), torch.zeros(2, dtype=torch.long)).backward()
        optimizer.step()
        rates.append(optimizer.hvdtrain.pace.last_rate)  # type: ignore[attr-defined]
    return rates


@pytest.mark.parametrize("diverges", [False, True])
def test_a_loop_after_fit_has_no_schedule_any_more(diverges: bool) -> None:
    model, optimizer = made(perceptron())
    number = float("nan") if diverges else 1.0
    with pytest.raises(ht.Diverged) if diverges else nullcontext():
        fit(model, optimizer, lambda output, target: LOSS(output, target) * number, schedule=lambda epoch: 0.5)
    assert loop(model, optimizer, 2) == [0.1, 0.1]


def test_a_warm_up_goes_on_in_a_loop_after_fit_and_in_the_next_fit() -> None:
    """From the rate of one rank to that of three, over two epochs of four steps."""
    model = perceptron()
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup_epochs=2)
    optimizer.hvdtrain.pace.scaling = 3.0
    optimizer.param_groups[0]["lr"] = 0.3
    train = ht.loader(samples(16, 1), 4)
    fit(model, optimizer, train=train, epochs=1)
    assert loop(model, optimizer, 2) == pytest.approx([0.2, 0.225])
    model.register_forward_hook(lambda *_: rates.append(optimizer.hvdtrain.pace.last_rate))
    rates: list[float] = []
    fit(model, optimizer, train=train, epochs=1)
    assert [*rates[1:], optimizer.hvdtrain.pace.last_rate] == pytest.approx([0.25, 0.275, 0.3, 0.3])


def scaled(**options: Any) -> tuple[nn.Module, torch.optim.SGD]:
    """As on three ranks, from the rate of one rank to theirs."""
    torch.manual_seed(0)
    model = perceptron()
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    optimizer.hvdtrain.pace.scaling = 3.0
    optimizer.param_groups[0]["lr"] = 0.3
    return model, optimizer


def test_a_loop_after_fit_that_was_stopped_goes_on_with_the_rates_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(folder: Path, stop_after: int) -> tuple[list[float], nn.Module]:
        model, optimizer = scaled(warmup_epochs=6)
        train, rates = ht.loader(samples(16, 1), 4), []
        monkeypatch.setattr(own_folder, "_given", {})  # as in a process of its own
        fit(model, optimizer, train=train, epochs=1, checkpoints=folder / "fit")
        checkpoints = ht.Checkpoints(model, optimizer, train, folder=folder / "loop", watch=False)
        for epoch in range(checkpoints.resume(), stop_after):
            rates += loop(model, optimizer, 4)
            checkpoints.save(epoch + 1)
        return rates, model

    whole, expected = script(tmp_path / "whole", 3)
    begun, _ = script(tmp_path / "halves", 2)
    rest, ended = script(tmp_path / "halves", 3)
    assert [*begun, *rest] == whole
    assert equal(ended, expected)


def test_a_loop_after_fit_must_say_how_many_steps_an_epoch_has_where_fit_could_not_tell() -> None:
    """Data of each rank's own has an unknown number, and the warm-up would stand still."""
    model, optimizer = scaled(warmup_epochs=2)
    train = ht.loader(samples(16, 1), 4, uneven="join")
    fit(model, optimizer, train=train, epochs=1)
    with pytest.raises(UserError, match="steps_per_epoch="):
        loop(model, optimizer, 1)
    model, optimizer = scaled(warmup_epochs=2, steps_per_epoch=4)
    fit(model, optimizer, train=ht.loader(samples(16, 1), 4, uneven="join"), epochs=1)
    assert loop(model, optimizer, 2) == pytest.approx([0.2, 0.225])
    model, optimizer = scaled(warmup_epochs=2)
    fit(model, optimizer, train=ht.loader(samples(16, 1), 4, uneven="join"), epochs=2)
    assert loop(model, optimizer, 2) == pytest.approx([0.3, 0.3])


def test_an_epoch_of_a_loop_after_fit_is_a_whole_one() -> None:
    """Seven sevenths, added up one by one, are less."""
    model, optimizer = made(perceptron())
    train = ht.loader(samples(28, 1), 4)
    fit(model, optimizer, train=train, epochs=1)
    loop(model, optimizer, 7)
    assert optimizer.hvdtrain.pace.epoch == 2.0  # type: ignore[attr-defined]
    rates: list[float] = []
    model.register_forward_hook(lambda *_: rates.append(optimizer.hvdtrain.pace.last_rate))  # type: ignore[attr-defined]
    fit(model, optimizer, train=train, epochs=1, schedule=lambda epoch: 0.1 if epoch >= 2 else 1.0)
    assert rates[1:] == pytest.approx([0.01] * 6)


LEFT = """
import sys
import torch
from torch import nn
import hvdtrain.torch as ht
from tests.training.scenarios import perceptron, samples
world = ht.init(sys.argv[1])
loss = nn.CrossEntropyLoss()

def trained(ranks_that_look, clears=False):
    torch.manual_seed(0)
    model = perceptron()
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    # A look at the size of gradients, without a step; under DDP all ranks must look together.
    if world.rank in ranks_that_look:
        loss(model(torch.ones(2, 8)), torch.zeros(2, dtype=torch.long)).backward()
    if clears:
        optimizer.zero_grad()
    ht.fit(model, optimizer, loss, ht.loader(samples(16, 1), 4), epochs=1, checkpoints=False)
    return [parameter.tolist() for parameter in model.parameters()]

ends = [trained([]), trained([0, 1]), trained([0, 1], clears=True)]
if sys.argv[1] == "horovod":
    ends.append(trained([0]))
print(f"all alike {all(end == ends[0] for end in ends)}")
"""


@pytest.mark.ranks
@pytest.mark.parametrize("strategy", ["horovod", "ddp"])
def test_gradients_that_are_under_way_when_fit_begins_are_not_used(strategy: str, tmp_path: Path) -> None:
    """On one rank only, too, whose messages nobody answers yet."""
    script = tmp_path / "left.py"
    script.write_text(LEFT)
    ended = run_world(2, script, strategy, options=["--launcher", "local", "--stall-timeout", "40"], patience=60)
    assert ended.status == 0, ended.err
    assert ended.out.count("all alike True") == 2
