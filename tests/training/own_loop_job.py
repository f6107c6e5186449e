"""A loop of one's own with checkpoints: trains up to `--steps`, and says where it began and ended."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

import torch
from torch import nn

import hvdtrain.torch as ht
from hvdtrain import record
from tests.training.scenarios import perceptron, samples


def facts(optimizer: torch.optim.Optimizer, model: nn.Module, scheduler: torch.optim.lr_scheduler.StepLR) -> dict:
    momenta = [state["momentum_buffer"].double().sum().item() for state in optimizer.state.values()]
    return {
        "steps": optimizer.hvdtrain.pace.steps,
        "lr": optimizer.param_groups[0]["lr"],
        "base_lrs": scheduler.base_lrs,
        "momentum": momenta,
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rule", default="linear")
    options = parser.parse_args()
    world = ht.init()
    torch.manual_seed(3)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.013, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, lr_rule=options.rule)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000)
    train = ht.loader(samples(96, 7), 2, seed=3)
    checkpoints = ht.Checkpoints(model, optimizer, train, folder=options.folder, states={"scheduler": scheduler})
    epoch = checkpoints.resume()
    began = facts(optimizer, model, scheduler)
    seen: list[list[int]] = []
    while optimizer.hvdtrain.pace.steps < options.steps:
        for x, y in train:
            seen.append(x[:, 0].tolist())
            (nn.functional.cross_entropy(model(x), y) * train.weight).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if optimizer.hvdtrain.pace.steps == options.steps:
                break
            checkpoints.stop_if_asked(epoch)
        else:
            epoch += 1
    checkpoints.save(epoch)
    everybody = ht.gather_objects([value for batch in seen for value in batch])
    if world.rank == 0:
        ended = facts(optimizer, model, scheduler)
        record.write_json(options.out, {"began": began, "ended": ended, "seen": list(chain.from_iterable(everybody))})


if __name__ == "__main__":
    main()
