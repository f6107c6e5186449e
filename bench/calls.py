"""What a rank pays to start one allreduce with PyTorch: Horovod's Python, and its compiled function called as `fit` calls it.

    python bench/calls.py --ranks 2 --json bench/results/calls.json

Between the backward passes of two layers this is time in which nothing is computed. Both start the same small message in turns and
wait for its end, which is not timed. Printed are medians over the calls of rank 0, with quartiles, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from turns import finish, in_ranks, machine, spread, step_parser, table

import hvdtrain.torch as ht

WARM_UP = 50


def seconds(calls: int) -> dict[str, list[float]]:
    """Of each start, by contender, on this rank."""
    ht.init()
    import horovod.torch as hvd

    from hvdtrain._torch.collectives import Horovod

    ours, tensor = Horovod(), torch.zeros(16)
    contenders: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "hvdtrain": (lambda: ours.start_allreduce(tensor, "direct", True), ours.wait),
        "Horovod's Python": (lambda: hvd.allreduce_async_(tensor, name="public", op=hvd.Average), hvd.synchronize),
    }
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(WARM_UP + calls):
        for name, (start, wait) in contenders.items():
            began = time.perf_counter()
            handle = start()
            found[name].append(time.perf_counter() - began)
            wait(handle)
    return {name: values[WARM_UP:] for name, values in found.items()}


def main() -> None:
    made = step_parser(__doc__, "2")
    made.set_defaults(rounds=1)
    made.add_argument("--calls", type=int, default=400, help="of each contender in a round (default %(default)s)")
    options: argparse.Namespace = made.parse_args()
    if options.rank:
        found = seconds(options.calls)
        if ht.world().rank == 0:
            options.out.write_text(json.dumps(found))
        return
    if options.tiny:
        options.ranks, options.rounds, options.calls = "2", 1, 5
    facts, rows, figures = machine(), [], {}
    for ranks in map(int, options.ranks.split(",")):
        words = ["--rank", "all", "--calls", options.calls]
        turns = [
            in_ranks(__file__, ranks, "auto", *words, environ={"OMP_NUM_THREADS": "1"}) for _ in range(options.rounds)
        ]
        took = {name: spread([1e6 * value for each in turns for value in each[name]]) for name in turns[0]}
        shortest = took["hvdtrain"]["median"]
        figures[f"{ranks} ranks"] = took
        for name, each in took.items():
            shown = f"{each['median']:.1f} ({each['low']:.1f}-{each['high']:.1f})"
            rows.append([ranks, name, shown, f"{each['median'] / shortest:.2f}"])
    header = ["CPU ranks", "contender", "us", "times of hvdtrain"]
    finish(options, facts, table(header, rows), {"calls": figures})


if __name__ == "__main__":
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    main()
