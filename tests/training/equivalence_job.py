"""Trains the same models on the same union of samples, whatever the number of ranks, and saves where they ended.

`--union` is the batch of the whole world. One process runs all scenarios: importing frameworks takes longer than training.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import hvdtrain.torch as ht
from hvdtrain._torch.start import gather_objects
from tests.training import equivalence_fit, equivalence_optimizers, equivalence_steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--union", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strategy", default="horovod")
    parser.add_argument("--cases", nargs="+", help="of equivalence_steps only")
    options = parser.parse_args()
    world = ht.init(options.strategy)
    ended = equivalence_steps.run(options.union, world, options.strategy, options.cases)
    histories = {}
    if not options.cases:
        fitted, histories = equivalence_fit.run(options.union, world, options.strategy)
        ended |= fitted | equivalence_optimizers.run(options.union, world, options.strategy)
    # DDP and torch.compile put words before the names.
    plain = {
        case: {key.replace("module.", "").replace("_orig_mod.", ""): _doubles(value) for key, value in state.items()}
        for case, state in ended.items()
    }
    sums = {case: [tensor.sum().item() for tensor in state.values()] for case, state in plain.items()}
    differing = [case for case in sums if any(each[case] != sums[case] for each in gather_objects(sums))]
    if world.rank == 0:
        torch.save(plain, options.out)
        options.out.with_suffix(".json").write_text(json.dumps({"differing": differing, "histories": histories}))


def _doubles(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


if __name__ == "__main__":
    main()
