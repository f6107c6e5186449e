"""Where the time of one default step goes: phases as the records have them, and the costliest functions.

    python bench/profile_step.py --ranks 2 --model "6 x 1024 MLP"

`fit` with all that is on by default trains a model of step_torch.py. The phases come from an epoch without a profiler; what they
leave is the loop itself. The functions come from another epoch under Python's profiler, which makes small functions look dearer
than they are: it is for their order, not for their seconds.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
from pathlib import Path
from typing import Any

import torch
from step_torch import MODELS
from torch import nn
from turns import finish, in_ranks, machine, parser, table

import hvdtrain.torch as ht

PHASES = ("data", "forward", "backward", "allreduce", "optimizer")


def rank(options: argparse.Namespace) -> None:
    """Milliseconds of a step by phase, and functions by their own time."""
    world = ht.init()
    make, steps = MODELS[options.model]
    torch.manual_seed(0)
    model, shape, batch = make()
    steps = 2 if options.tiny else steps
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    n = batch * world.size * steps
    loader = ht.loader(torch.utils.data.TensorDataset(torch.randn(n, *shape), torch.randint(0, 10, (n,))), batch)
    last = ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=3, checkpoints=False)[-1]
    phases = {phase: 1e3 * (getattr(last, f"seconds_{phase}") or 0.0) / steps for phase in PHASES}
    phases["rest of the loop"] = 1e3 * last.seconds / steps - sum(phases.values())
    profile = cProfile.Profile()
    profile.enable()
    ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=1, checkpoints=False)
    profile.disable()
    stats: Any = pstats.Stats(profile)
    found = [
        (own / steps * 1e3, calls / steps, f"{Path(file).name}:{line} {name}" if line else name)
        for (file, line, name), (_, calls, own, _, _) in stats.stats.items()
    ]
    if world.rank == 0:
        options.out.write_text(json.dumps({"phases": phases, "functions": sorted(found, reverse=True)[:15]}))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, default=2, help="default %(default)s")
    made.add_argument("--model", choices=MODELS, default="6 x 1024 MLP", help="default %(default)s")
    made.add_argument("--launcher", default="auto", help="of python -m hvdtrain.launch (default %(default)s)")
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.rank:
        rank(options)
        return
    facts = machine()
    words = ["--rank", "--model", options.model, *(["--tiny"] if options.tiny else [])]
    found = in_ranks(__file__, options.ranks, options.launcher, *words)
    whole = sum(found["phases"].values())
    rows = [[phase, f"{value:.2f}", f"{value / whole:.0%}"] for phase, value in found["phases"].items()]
    shown = table(["phase", "ms in a step", "share"], rows)
    functions = [[name, f"{own:.3f}", f"{calls:.1f}"] for own, calls, name in found["functions"]]
    shown += "\n\n" + table(["function, under the profiler", "own ms in a step", "calls"], functions)
    finish(options, facts, shown, {"model": options.model, "ranks": options.ranks, **found})


if __name__ == "__main__":
    main()
