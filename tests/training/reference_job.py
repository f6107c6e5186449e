"""What depends on how the ranks' data is divided, against plain torch in one process, which rank 0 runs after the others.

Prints a line of JSON: by case, the largest difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, Subset

import hvdtrain.torch as ht
from hvdtrain import lr
from hvdtrain._torch.batch_norm import statistics
from tests.training.scenarios import convolution, perceptron, samples

BATCH = 4
#: Samples that each rank has of its own: the last one is through first.
LENGTHS = (23, 17, 9, 2)
STARTS = (0, 23, 40, 49)
DATA = samples(51, 7)


class Stream(IterableDataset[Any]):
    """A rank's samples without a length."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        yield from (DATA[index] for index in _own(self.rank))


def _own(rank: int) -> range:
    return range(STARTS[rank], STARTS[rank] + LENGTHS[rank])


def _new(rule: str = "none") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = perceptron()
    return ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lr_rule=rule)


def _gradients(model: nn.Module, indices: list[int]) -> list[torch.Tensor]:
    x, y = (tensor[indices] for tensor in DATA.tensors)
    return list(torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters())))


def _difference(model: nn.Module, reference: nn.Module) -> float:
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def _plain() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = perceptron()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def join(world: Any, iterable: bool) -> dict[str, float]:
    model, optimizer = _new()
    own: Any = Stream(world.rank) if iterable else Subset(DATA, list(_own(world.rank)))
    loader = ht.loader(own, BATCH, shuffle=False, uneven="join")
    history = ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=2)
    reference, stepper = _plain()
    for _ in range(2):
        for step in range(-(-max(LENGTHS[: world.size]) // BATCH)):
            union = [i for rank in range(world.size) for i in _own(rank)[step * BATCH : (step + 1) * BATCH]]
            for parameter, gradient in zip(reference.parameters(), _gradients(reference, union), strict=True):
                parameter.grad = gradient
            stepper.step()
    total = sum(LENGTHS[: world.size])
    assert [entry.samples for entry in history] == [total, total]
    return {f"join_{'iterable' if iterable else 'map'}": _difference(model, reference)}


def adascale(world: Any) -> dict[str, float]:
    """The gain by the formulas of the paper, from each rank's gradients computed one after the other."""
    model, optimizer = _new("adascale")
    loader = ht.loader(Subset(DATA, range(48)), BATCH, seed=3)
    ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=2)
    reference, stepper = _plain()
    gains, scale = [], lr.AdaScale(world.size)
    from hvdtrain.data.shard import epoch_order

    for epoch in (1, 2):
        order = epoch_order(48, 3, epoch).tolist()
        for begin in range(0, 48, BATCH * world.size):
            parts = [order[begin + r * BATCH : begin + (r + 1) * BATCH] for r in range(world.size)]
            each = [_gradients(reference, part) for part in parts if part]
            if len(each) < world.size:
                continue
            mean = [torch.stack(group).mean(0) for group in zip(*each, strict=True)]
            squares = [sum(float(g.double().square().sum()) for g in gradients) for gradients in each]
            average = sum(float(g.double().square().sum()) for g in mean)
            gains.append(scale.update(sum(squares) / world.size, average))
            stepper.param_groups[0]["lr"] = 0.1 * gains[-1]
            for parameter, gradient in zip(reference.parameters(), mean, strict=True):
                parameter.grad = gradient
            stepper.step()
    assert all(1 <= gain <= world.size for gain in gains)
    assert max(gains) > 1.1
    return {"adascale": _difference(model, reference)}


def noise(world: Any) -> dict[str, float]:
    """Of the first step, the only one of two epochs that is looked at."""
    model, optimizer = _new()
    n = BATCH * world.size
    loader = ht.loader(Subset(DATA, range(n)), BATCH, shuffle=False)
    history = ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=2)
    reference, _ = _plain()
    each = [_gradients(reference, list(range(r * BATCH, (r + 1) * BATCH))) for r in range(world.size)]
    whole = _gradients(reference, list(range(n)))
    small = sum(float(g.double().square().sum()) for gradients in each for g in gradients) / world.size
    big = sum(float(g.double().square().sum()) for g in whole)
    square = (n * big - BATCH * small) / (n - BATCH)
    trace = (small - big) / (1 / BATCH - 1 / n)
    assert history[1].noise_scale is None
    if square <= 0:
        assert history[0].noise_scale is None
        return {"noise_scale": 0.0}
    found = history[0].noise_scale
    assert found is not None
    return {"noise_scale": abs(found - trace / square) / (trace / square)}


def averaged(world: Any) -> dict[str, float]:
    """Running statistics after some steps without evaluation, averaged."""

    class AnyNorm(nn.BatchNorm2d):
        def _check_input_dim(self, input: torch.Tensor) -> None:
            pass

    torch.manual_seed(5)
    model = convolution(AnyNorm)
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), lr_rule="none")
    for x, _ in ht.loader(Subset(DATA, range(48)), BATCH, uneven="drop"):
        model(x).sum().backward()
        optimizer.step()
    own = {name: value.double().clone() for name, value in statistics(model).items()}
    every = ht.gather_objects(own)
    assert any((every[0][name] != every[1][name]).any() for name in own), "or there would be nothing to average"
    ht.average_statistics(model)
    expected = {name: torch.stack([each[name] for each in every]).mean(0) for name in own}
    return {
        "averaged_statistics": max(
            float((value - expected[name]).abs().max()) for name, value in statistics(model).items()
        )
    }


def nothing_on_other_ranks(world: Any) -> dict[str, float]:
    """A batch-norm over all ranks behind a selection that is empty on all but one."""
    generator = torch.Generator().manual_seed(5)
    whole = torch.randn(6, 3, generator=generator)
    norm = ht.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)))[0]
    plain, inputs = nn.BatchNorm1d(3), []
    for each, x in ((norm, whole if world.rank == 0 else whole[:0]), (plain, whole)):
        inputs.append(x.clone().requires_grad_())
        each(inputs[-1]).pow(3).sum().div(10).backward()
    pairs = [(norm.running_mean, plain.running_mean), (norm.running_var, plain.running_var)]
    outputs = norm(whole if world.rank == 0 else whole[:0]), plain(whole)
    if world.rank == 0:
        pairs += [(inputs[0].grad, inputs[1].grad), outputs]
    differences = [float((one - other).detach().abs().max()) for one, other in pairs]
    return {"nothing_on_other_ranks": max(differences) if all(map(math.isfinite, differences)) else 1e9}


def main() -> None:
    world = ht.init()
    cases = [lambda: join(world, True), lambda: join(world, False), lambda: adascale(world)]
    cases += [lambda: noise(world), lambda: averaged(world), lambda: nothing_on_other_ranks(world)]
    found = {name: value for case in cases for name, value in case().items()}
    everybody = ht.gather_objects(found)
    if world.rank == 0:
        print(json.dumps({name: max(each[name] for each in everybody) for name in found}))


if __name__ == "__main__":
    main()
