"""Batches: those of a `TensorDataset` gathered at once (torch's loader takes sample by sample and stacks them), and their size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from hvdtrain.errors import UserError


class Rows(Dataset[Any]):
    """What `torch.utils.data.default_collate` makes of the samples, bit by bit, for a data set of which `are_in` says so."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        dataset: Any = self._dataset
        while isinstance(dataset, Subset):
            dataset, indices = dataset.dataset, [dataset.indices[index] for index in indices]
            # It may count from the end.
            indices = [index + len(dataset) if index < 0 else index for index in indices]
        rows = torch.tensor(indices)
        return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]


def are_in(dataset: Dataset[Any]) -> bool:
    """Are its samples, or those of which it is a subset, rows of tensors, and nothing else is done to them?"""
    whole = _whole(dataset)
    if type(whole) is not TensorDataset:
        return False
    return all(type(tensor) is torch.Tensor and tensor.layout == torch.strided for tensor in whole.tensors)


def at_once(dataset: Dataset[Any], options: dict[str, Any], device: str) -> tuple[Dataset[Any], dict[str, Any]]:
    """`dataset` and what else a `DataLoader` of batches is given, where possible so that it gathers rows.

    Rows in the host's memory that train on a GPU come pinned: a copy of others would wait for the step before.
    """
    if options.get("collate_fn") is not None or not are_in(dataset):
        return dataset, options
    pinned = {"pin_memory": True} if device != "cpu" and not _on_gpu(dataset) else {}
    return Rows(dataset), {**pinned, **options, "collate_fn": _unchanged}


def _on_gpu(dataset: Dataset[Any]) -> bool:
    whole: Any = _whole(dataset)
    return any(tensor.device.type != "cpu" for tensor in whole.tensors)


def _whole(dataset: Dataset[Any]) -> Dataset[Any]:
    """That of which it is a subset, if it is one."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def samples_of(batch: Any) -> int:
    """How many a batch holds, as the collate function made it: the length of the first of its parts that has one."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    if isinstance(batch, (list, tuple)) and any(isinstance(part, (str, bytes)) for part in batch):
        return len(batch)  # texts, which are not stacked
    if isinstance(batch, (list, tuple, Mapping)):
        parts = batch.values() if isinstance(batch, Mapping) else batch
        return next((samples for part in parts if (samples := samples_of(part))), 0)
    return len(batch) if isinstance(batch, Sized) and not isinstance(batch, (str, bytes)) else 0


def pair(batch: Any) -> tuple[Any, Any]:
    """Input and target of a batch.

    Raises:
        UserError: it is made of something else.
    """
    if not isinstance(batch, (torch.Tensor, Mapping)):
        try:
            input, target = batch
        except (TypeError, ValueError):
            pass
        else:
            return input, target
    parts = f" of {len(batch)}" if isinstance(batch, (list, tuple)) else ""
    raise UserError(
        f"fit and evaluate take batches of (input, target), not a {type(batch).__name__}{parts}: let the data set, or a "
        "collate_fn, give ((a, b), target) for a model of several inputs, (input, (a, b)) for a loss of several targets"
    )


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that a batch, or a model's output, is made of."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(part)


def _unchanged(batch: Any) -> Any:
    return batch
