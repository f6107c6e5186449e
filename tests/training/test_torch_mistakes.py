"""Mistakes in a script of several ranks end all of them with one message that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds import run_world

BEGIN = """
import torch
from torch import nn
import hvdtrain.torch as ht
world = ht.init()
model = nn.Linear(4, 4)
model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), check_replicas_every=5)
def backward():
    model(torch.ones(2, 4)).sum().backward()
"""
CLIPPED = "backward()\nnn.utils.clip_grad_norm_(model.parameters(), 0.1)\noptimizer.step()"
ZEROED = "backward()\noptimizer.zero_grad(set_to_none=False)\noptimizer.step()"
TWICE = "backward()\nbackward()"
SUMMED = """
train = ht.loader(torch.utils.data.TensorDataset(torch.ones(8, 4), torch.ones(8, 4)), 2)
ht.fit(model, optimizer, nn.MSELoss(reduction="sum"), train, epochs=1)
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("rest", "advice"),
    [
        (CLIPPED, "synchronize(optimizer)"),
        (ZEROED, "synchronize(optimizer)"),
        (TWICE, "no_sync(optimizer)"),
        (SUMMED, "Take the mean"),
    ],
)
def test_gradients_treated_wrongly_are_noticed(rest: str, advice: str, tmp_path: Path) -> None:
    script = tmp_path / "mistaken.py"
    script.write_text(f"{BEGIN}{rest}\nprint('went on')\n")
    ended = run_world(2, script, options=["--run-dir", str(tmp_path / "run")])
    assert ended.status == 2
    assert "went on" not in ended.out
    assert advice in ended.err


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "deviating", "after", "told"),
    [
        (3, (0,), 0, "after step 1 rank 0 holds other parameters than the other ranks (bias)"),
        (4, (2, 3), 2, "after step 5 ranks 2, 3 hold other parameters than rank 0 (bias)"),
    ],
)
def test_ranks_whose_parameters_deviate_are_named(
    ranks: int, deviating: tuple[int, ...], after: int, told: str, tmp_path: Path
) -> None:
    script = tmp_path / "deviating.py"
    script.write_text(
        f"{BEGIN}for step in range(12):\n    optimizer.zero_grad()\n"
        f"    if step == {after} and world.rank in {deviating}:\n        model.bias.data[1] += 1e-6\n"
        "    backward()\n    optimizer.step()\nprint('went on')\n"
    )
    ended = run_world(ranks, script, options=["--launcher", "local", "--run-dir", str(tmp_path / "run")])
    assert ended.status == 2
    assert "went on" not in ended.out
    assert ended.err.count(told) == 1


FIRST = """
import sys
import hvdtrain.torch as ht
from hvdtrain.errors import UserError
world = ht.init()
with ht.rank_zero_first():
    print(f"rank {world.rank} runs", file=sys.stderr, flush=True)
    if world.rank == int(sys.argv[1]):
        raise OSError(28, "No space left on device", "images.tar")
print("went on")
"""


@pytest.mark.ranks
@pytest.mark.parametrize("failing", [0, 1, 9])
def test_a_download_that_fails_ends_all_ranks_with_its_message(failing: int, tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(FIRST)
    ended = run_world(2, script, failing, options=["--launcher", "local"])
    if failing == 9:
        assert ended.status == 0, ended.err
        assert ended.err.index("rank 0 runs") < ended.err.index("rank 1 runs")
        assert ended.out.count("went on") == 2
        return
    assert ended.status == 2
    assert "went on" not in ended.out
    assert f"rank {failing} on " in ended.err
    assert ended.err.count("No space left on device: 'images.tar'") == 1
    # Nobody begins what failed already.
    assert ("rank 1 runs" in ended.err) == (failing == 1)


@pytest.mark.ranks
@pytest.mark.parametrize(("launcher", "precision"), [("local", "fp32"), ("mpirun", "fp16")])
def test_a_loss_that_is_no_number_on_one_rank_ends_all_before_that_step(
    launcher: str, precision: str, tmp_path: Path
) -> None:
    job = Path(__file__).with_name("nan_job.py")
    ended = run_world(2, job, precision, options=["--launcher", launcher, "--run-dir", str(tmp_path)])
    assert ended.status == 1
    told = ended.err + (tmp_path / "log" / "rank-1.log").read_text()
    for rank in (0, 1):
        assert f"rank {rank} ended after 4 steps, finite: True" in told
    assert ended.err.count("no longer a number in epoch 1, step 5, at learning rate 0.1") == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "diverged"


@pytest.mark.ranks
def test_single_is_one_process(tmp_path: Path) -> None:
    ended = run_world(2, "digits", "--strategy", "single")
    assert ended.status == 2
    assert ended.err.count('strategy "single" is one process, but 2 ranks were started') == 1


UNLIKE = """
import torch
from torch import nn
import hvdtrain.torch as ht
from hvdtrain.errors import UserError
from tests.training.scenarios import perceptron, samples
world = ht.init()
model = perceptron()
model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
other = world.rank == 1

def told(name, train, own_loop=False, **options):
    try:
        if own_loop:
            ht.Checkpoints(model, optimizer, train, folder=False).resume()
        else:
            ht.fit(model, optimizer, nn.CrossEntropyLoss(), train, checkpoints=False, **{"epochs": 1, **options})
        lines.append(f"{name} went on")
    except UserError as error:
        lines.append(f"{name} {error.agreed} {error}")

lines = []
data = samples(16, 1)
for own_loop in (False, True):
    peeked = ht.loader(data, 2)
    if world.rank == 0:
        next(iter(peeked))
    told("peeked", peeked, own_loop)
    told("seeds", ht.loader(data, 2, seed=world.rank), own_loop)
told("lengths", ht.loader(samples(16 + 4 * other, 1), 2))
told("batches", ht.loader(data, 2 + other))
told("weights", ht.loader(data, 2, weights=[1.0 + other] * 8 + [1.0] * 8))
told("kinds", ht.loader(data, 2, uneven="pad" if other else "drop"))
told("epochs", ht.loader(data, 2), epochs=1 + other)
told("accumulated", ht.loader(data, 2), accumulate=1 + other)
both = ht.loader(data, 2)
next(iter(both))
told("both", both)
told("join", ht.loader(samples(16 + 4 * other, 1), 2, uneven="join", seed=world.rank))
for line in sum(ht.gather_objects(lines), []):
    if world.rank == 0:
        print(line)
"""


@pytest.mark.ranks
def test_ranks_that_would_train_on_different_orders_are_told_what_differs(tmp_path: Path) -> None:
    script = tmp_path / "unlike.py"
    script.write_text(UNLIKE)
    ended = run_world(2, script, options=["--launcher", "local"])
    assert ended.status == 0, ended.err
    told = ended.out.splitlines()
    expected = {
        "peeked": "epoch is 2 on rank 0 but 1 on rank 1",
        "seeds": "seed is 0 on rank 0 but 1 on rank 1",
        "lengths": "number of samples is 16 on rank 0 but 20 on rank 1",
        "batches": "batch_size is 2 on rank 0 but 3 on rank 1",
        "weights": "checksum of weights is",
        "kinds": "uneven is drop on rank 0 but pad on rank 1",
        "epochs": "epochs is 1 on rank 0 but 2 on rank 1",
        "accumulated": "accumulate is 1 on rank 0 but 2 on rank 1",
    }
    for name, what in expected.items():
        lines = [line for line in told if line.startswith(f"{name} ")]
        assert len(lines) == (4 if name in ("peeked", "seeds") else 2), told
        assert all(line.startswith(f"{name} True {what}") for line in lines), lines
    assert [told.count(f"{name} went on") for name in ("both", "join")] == [2, 2]


OUTSIDE_DDP = """
import torch
from torch import nn
import hvdtrain.torch as ht
from hvdtrain.errors import UserError
from tests.training.scenarios import perceptron, samples
world = ht.init("ddp")
train, loss = ht.loader(samples(16, 1), 2), nn.CrossEntropyLoss()

def made(frozen=False):
    model = perceptron()
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, *ht.distribute(model, optimizer)

def told(name, call):
    try:
        call()
        said = "went on"
    except UserError as error:
        said = f"{error.agreed} {error}"
    for line in ht.gather_objects(f"{name} {said}"):
        if world.rank == 0:
            print(line)

plain, model, optimizer = made(frozen=True)
ht.fit(model, optimizer, loss, train, epochs=1)
plain[0].requires_grad_(True)
told("unfrozen", lambda: ht.fit(model, optimizer, loss, train, epochs=1))
model, again = ht.distribute(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
told("again", lambda: ht.fit(model, again, loss, train, epochs=1))
_, model, optimizer = made()
factor = nn.Parameter(torch.ones(5))
optimizer.add_param_group({"params": [factor]})
told("added", lambda: ht.fit(model, optimizer, lambda output, y: loss(output * factor, y), train, epochs=1))
plain, model, optimizer = made()
told("plain", lambda: ht.fit(plain, optimizer, loss, train, epochs=1))
told("wrapped", lambda: ht.fit(nn.Sequential(model), optimizer, loss, train, epochs=1))
"""


@pytest.mark.ranks
def test_what_ddp_does_not_average_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "outside.py"
    script.write_text(OUTSIDE_DDP)
    ended = run_world(2, script, options=["--launcher", "local"], patience=60)
    assert ended.status == 0, ended.err
    told = [
        line for line in ended.out.splitlines() if line.split()[0] in ("unfrozen", "again", "added", "plain", "wrapped")
    ]
    expected = [
        "unfrozen True 0.weight and 1 more of this SGD came to be trained after distribute(), and DDP averages only what was",
        "again went on",
        "added True unnamed.4 of this SGD came to be trained after",
        "plain True the model is not the one that distribute() returned",
        "wrapped went on",
    ]
    assert len(told) == 2 * len(expected)
    for number, start in enumerate(expected):
        assert all(line.startswith(start) for line in told[2 * number : 2 * number + 2]), told


BROKEN_OFF = """
import time
import torch
from torch.utils.data import IterableDataset
import hvdtrain.torch as ht
world = ht.init()

class Own(IterableDataset):
    def __iter__(self):
        for number in range(12 - 4 * world.rank):
            if number == 4 and world.rank == 1:
                time.sleep(0.5)  # a file that is slow to open
            yield number, number

train = ht.loader(Own(), 2, uneven="join")
epochs = []
for step, _ in enumerate(ht.loader(Own(), 2, uneven="join")):
    if step == 1:
        break  # of a phase before
for epoch in range(4):
    epochs.append([])
    for step, _ in enumerate(train):
        if step == 1 and epoch < 3:
            break
        epochs[-1].append(train.union)
print(f"given {epochs}")
both = [ht.loader(Own(), 2, uneven="join") for _ in range(2)]
print(f"both {[sum(loader.union for loader in both) for _ in zip(*both)]}")
"""


@pytest.mark.ranks
def test_a_join_that_is_broken_off_begins_again_though_a_rank_is_slow(tmp_path: Path) -> None:
    """The others are told what comes after a break, too, and the slow rank has not told it when the next epoch begins."""
    script = tmp_path / "broken_off.py"
    script.write_text(BROKEN_OFF)
    ended = run_world(2, script, options=["--launcher", "local"], patience=60)
    assert ended.status == 0, ended.err
    assert ended.out.count("given [[4], [4], [4], [4, 4, 4, 4, 2, 2]]") == 2
    assert ended.out.count("both [8, 8, 8, 8, 4, 4]") == 2


OF_ONE_RANK = """
import torch
from torch import nn
import hvdtrain.torch as ht
from tests.training.scenarios import perceptron, samples
world = ht.init()
model = perceptron()
model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
seen = []

def loss(output, target):
    seen.append(0)
    if len(seen) == 2 and world.rank == 1:
        raise ht.Diverged("the loss of rank 1 is above all bounds")
    return nn.functional.cross_entropy(output, target)

ht.fit(model, optimizer, loss, ht.loader(samples(16, 1), 4), epochs=1, checkpoints=False)
"""


@pytest.mark.ranks
def test_a_loss_that_calls_it_diverged_on_one_rank_ends_all_at_once(tmp_path: Path) -> None:
    """That rank must not wait for the others, which wait for its gradients."""
    script = tmp_path / "of_one_rank.py"
    script.write_text(OF_ONE_RANK)
    ended = run_world(2, script, options=["--launcher", "local", "--stall-timeout", "40"], patience=60)
    assert "the loss of rank 1 is above all bounds" in ended.err
    assert ended.status == 1
    assert ended.seconds < 30
