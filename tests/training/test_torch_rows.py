"""Batches that are gathered at once must be those that torch stacks from single samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

import hvdtrain.torch as ht
from hvdtrain._torch import rows
from hvdtrain._torch.exchange import Exchange


@pytest.fixture(autouse=True)
def _world() -> None:
    ht.init()


def tensors() -> TensorDataset:
    """Of several types and shapes; the second is no block of memory, the last has no columns."""
    drawn = torch.Generator().manual_seed(0)
    pictures = torch.rand(50, 1, 4, 4, generator=drawn)
    return TensorDataset(
        pictures, pictures.flip(3).transpose(2, 3), torch.arange(50), pictures[:, 0, 0] > 0.5, torch.rand(50).bfloat16()
    )


def subset(indices: Any) -> Subset[Any]:
    return Subset(tensors(), indices)


DATA: dict[str, Dataset[Any]] = {
    "tensors": tensors(),
    "subset": subset(range(5, 45)),
    "from the end": subset([-1, 3, -50, 3]),
    "numpy": subset(np.arange(10)[::-1]),
    "tensor": subset(torch.arange(7)),
    "twice": Subset(subset(list(range(40, 0, -1))), [3, 1, 4, 1, 5, 9, 2, 6]),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_torchs(name: str, workers: int) -> None:
    data = DATA[name]
    assert rows.are_in(data)
    stacked = list(DataLoader(data, 3))
    gathered = list(ht.loader(data, 3, shuffle=False, num_workers=workers))
    assert same(gathered, stacked)
    assert same(list(ht.validation_loader(data, 3, num_workers=workers)), stacked)
    assert same(list(ht.loader(data, 3, shuffle=False, uneven="join", num_workers=workers)), joined(data))


def same(ours: list[Any], theirs: list[Any]) -> bool:
    assert len(ours) == len(theirs)
    assert [type(batch) for batch in ours] == [type(batch) for batch in theirs]
    pairs = [(a, b) for first, second in zip(ours, theirs, strict=True) for a, b in zip(first, second, strict=True)]
    return all(a.dtype == b.dtype and a.is_contiguous() and torch.equal(a, b) for a, b in pairs)


def joined(data: Any) -> list[Any]:
    """As "join" gives them, which stacks each time anew."""
    return list(ht.loader(data, 3, shuffle=False, uneven="join", collate_fn=default_collate))


def test_a_batch_is_no_view_of_the_data() -> None:
    data = tensors()
    (batch,) = ht.loader(data, 50, shuffle=False)
    batch[0].zero_()
    assert data.tensors[0].sum() > 0


class Doubled(TensorDataset):
    """Does something to its samples."""

    def __getitem__(self, index: int) -> Any:
        return tuple(2 * each for each in super().__getitem__(index))


def test_what_a_data_set_does_to_its_samples_is_done() -> None:
    data = Doubled(torch.arange(6))
    assert not rows.are_in(data)
    assert not rows.are_in(Subset(data, [0]))
    (batch,) = ht.loader(data, 6, shuffle=False)
    assert batch[0].tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("index", [50, -51])
def test_a_row_that_is_not_there_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="out of range"):
        list(ht.loader(subset([0, index]), 2))


def test_a_collate_function_is_given_samples() -> None:
    (batch,) = ht.loader(
        TensorDataset(torch.arange(4)), 4, shuffle=False, collate_fn=lambda found: [type(found[0]), len(found)]
    )
    assert batch == [tuple, 4]


def test_rows_for_a_gpu_come_pinned() -> None:
    """Unless the user says otherwise, or the loader does not gather them."""
    tensors = TensorDataset(torch.zeros(4, 2))
    assert "pin_memory" not in rows.at_once(tensors, {}, "cpu")[1]
    assert rows.at_once(tensors, {}, "cuda:0")[1]["pin_memory"]
    assert not rows.at_once(tensors, {"pin_memory": False}, "cuda:0")[1]["pin_memory"]
    assert "pin_memory" not in rows.at_once(tensors, {"collate_fn": list}, "cuda:0")[1]


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_gradients_of_channels_last_weights_can_travel(compression: str) -> None:
    gradient = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert Exchange({}, set(), "", compression)._wire(gradient).is_contiguous()
