"""A loader of data that each rank has of its own, as one rank sees it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import hvdtrain.torch as ht
from hvdtrain._torch.rows import samples_of
from hvdtrain.record import read_json
from tests.worlds import run_world


@pytest.fixture(autouse=True)
def _world() -> None:
    ht.init()


class Shuffled(IterableDataset[Any]):
    """64 samples in an order that is drawn while they are read."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(64))
        random.shuffle(order)
        for index in order:
            yield index, float(np.random.rand()), float(torch.rand(1))


class Counted(Dataset[Any]):
    """Knows what was read of it."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.read.append(index)
        return index, 0


def given(loader: Any, steps: int | None = None) -> list[list[float]]:
    """The samples of so many batches of an epoch, and the state of the loader as it is saved in the last one."""
    found: list[list[float]] = []
    for batch in loader:
        found += [list(map(float, sample)) for sample in zip(*batch, strict=True)]
        if steps is not None and (steps := steps - 1) == 0:
            break
    return found


def test_a_stream_that_draws_goes_on_where_it_was() -> None:
    """Every sample once, with the same random numbers, and none of those that the model draws."""
    loader = ht.loader(Shuffled(), 4, uneven="join", seed=3)
    first, second = given(loader), given(loader)
    assert sorted(index for index, *_ in first) == [*range(64)]
    assert first != second
    begun = ht.loader(Shuffled(), 4, uneven="join", seed=3)
    given(begun)
    for step, _ in enumerate(begun, 1):
        random.random(), torch.rand(3)  # of the model's own
        if step == 5:
            state = begun.state_dict(within=True)
            break
    resumed = ht.loader(Shuffled(), 4, uneven="join", seed=3)
    resumed.load_state_dict([state], 0)
    random.seed(99)
    before = random.getstate(), torch.get_rng_state()
    assert given(resumed) == second[20:]
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])


def test_what_was_given_before_is_not_read_again() -> None:
    whole = given(ht.loader(Counted(), 4, uneven="join", seed=3))
    for batches in (1, 4, 6):  # after 6 of 6 the last one is needed, to keep in step with
        data = Counted()
        resumed = ht.loader(data, 4, uneven="join", seed=3)
        consumed = min(22, 4 * batches)
        resumed.load_state_dict([{"epoch": 1, "total": 22, "batches": batches, "consumed": consumed}], 0)
        assert given(resumed) == whole[consumed:]
        assert len(data.read) == 22 - 4 * (batches - 1)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ([("a", "bbb", "cc"), torch.zeros(3)], 3),
        (["", "bbb"], 2),
        ([torch.tensor(0.5), torch.zeros(4, 2)], 4),
        ({"text": ["a", "bb"], "label": torch.zeros(2)}, 2),
        ([[torch.zeros(5, 1), torch.zeros(5)], torch.zeros(5)], 5),
        (None, 0),
        ([], 0),
    ],
)
def test_the_size_of_a_batch(batch: Any, samples: int) -> None:
    assert samples_of(batch) == samples


def test_texts_are_counted_not_their_letters() -> None:
    loader = ht.loader([("x" * n, n % 5) for n in range(10)], 4, uneven="join")  # type: ignore[arg-type]
    assert [loader.samples for _ in loader] == [4, 4, 2]


UNEQUAL = """
import json, sys, torch
from torch import nn
import hvdtrain.torch as ht
from torch.utils.data import Subset
from tests.training.scenarios import perceptron, samples
world = ht.init()
torch.manual_seed(0)
model = perceptron()
model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), lr_rule="none")
# Of each six samples the first four are rank 0's; at the end it has three more.
owners = [[n for n in range(27) if n % 6 < 4 or n > 23], [n for n in range(24) if n % 6 > 3]]
mine, batch = (owners[world.rank], (4, 2)[world.rank]) if world.size == 2 else (range(27), 6)
train = ht.loader(Subset(samples(27, 1), mine), batch, uneven="join", shuffle=False)
history = ht.fit(model, optimizer, nn.CrossEntropyLoss(), train, epochs=3, accumulate=int(sys.argv[1]), checkpoints=False)
found = [sum(parameter.double().flatten().tolist()) for parameter in model.parameters()]
if world.rank == 0:
    print(json.dumps({"found": [*found, *(entry.train_loss for entry in history)], "noise": history[-1].noise_scale}))
"""


@pytest.mark.ranks
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ranks_with_batches_of_different_sizes_train_as_one_on_their_union(accumulate: int, tmp_path: Path) -> None:
    script = tmp_path / "unequal.py"
    script.write_text(UNEQUAL)
    ends = []
    for ranks, launcher in ((1, "none"), (2, "local")):
        options = ["--launcher", launcher, "--run-dir", str(tmp_path / f"on-{ranks}")]
        ended = run_world(ranks, script, accumulate, options=options, patience=60)
        assert ended.status == 0, ended.err
        # Of a rank, in the mean: times the ranks it is what a step has.
        assert (read_json(tmp_path / f"on-{ranks}/result.json") or {})["batch_size"] == 6 / ranks
        ends.append(json.loads(ended.out.splitlines()[-1]))
    assert ends[1]["found"] == pytest.approx(ends[0]["found"], rel=1e-6, abs=1e-6)
    # It is estimated from batches of one size.
    assert ends[1]["noise"] is None


ANEW = """
import torch
import hvdtrain.torch as ht
from hvdtrain.errors import UserError
world = ht.init()
try:
    loader = ht.loader([] if world.rank == 1 else list(range(8)), 4, uneven="join")
except UserError:
    loader = ht.loader([8], 4, uneven="join")
print(f"rank {world.rank} has seen {sum(len(batch) for batch in loader)}")
"""


@pytest.mark.ranks
def test_a_rank_whose_first_loader_was_refused_makes_another(tmp_path: Path) -> None:
    script = tmp_path / "anew.py"
    script.write_text(ANEW)
    ended = run_world(2, script, options=["--launcher", "local", "--stall-timeout", "20"], patience=60)
    assert ended.status == 0, ended.err
    assert "rank 0 has seen 8" in ended.out


STEADY = """
import json, torch
from torch import nn
import hvdtrain.torch as ht
from hvdtrain._torch.distribute import synchronizer_of
from hvdtrain.errors import UserError
world = ht.init()
torch.manual_seed(0)
model = nn.Linear(3, 1)
model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), lr_rule="adascale")
alike = torch.utils.data.TensorDataset(torch.ones(9, 3), torch.ones(9, 1))
ht.fit(model, optimizer, nn.MSELoss(), ht.loader(alike, 4), epochs=2, checkpoints=False)
found = [synchronizer_of(optimizer).adascale.gain]
try:
    mine = ht.loader(alike, (2, 6)[world.rank], uneven="join")
    ht.fit(model, optimizer, nn.MSELoss(), mine, epochs=1, checkpoints=False)
except UserError as error:
    found.append(str(error))
if world.rank == 0:
    print(json.dumps(found))
"""


@pytest.mark.ranks
def test_ranks_with_different_weights_are_no_noise_to_adascale(tmp_path: Path) -> None:
    """All samples are the same, so all gradients are; in the last step of the epoch one rank has one, and the other none."""
    script = tmp_path / "steady.py"
    script.write_text(STEADY)
    ended = run_world(2, script, options=["--launcher", "local"], patience=60)
    assert ended.status == 0, ended.err
    gain, refused = json.loads(ended.out.splitlines()[-1])
    assert gain == pytest.approx(1, abs=1e-6)
    assert "needs the same batch_size on all ranks" in refused
