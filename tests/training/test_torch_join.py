"""A loader of data that each rank has of its own, as one rank sees it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import hvdtrain.torch as ht
from hvdtrain._torch.rows import samples_of


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
