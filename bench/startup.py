"""Seconds from the start command to the end of the first step, and what they go into.

    python bench/startup.py --ranks 2,4,8                 # ranks of this machine, under our starter and under mpirun
    sudo python bench/startup.py --ranks 2,4,8 --cluster  # under srun on a test cluster, over two nodes

    launch       from the command to the first line of Python in the last rank
    import       the framework, Keras, Horovod's extension
    init         rendezvous, Horovod's start, checks
    build        model and optimizer
    broadcast    rank 0's state to all
    first step   compiling and making one

Seconds are those of the slowest rank in each part. For many ranks see `meeting.py`.
"""

# ruff: noqa: E402  the clock starts before anything else is imported
from __future__ import annotations

import time

BEGAN = time.time()

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from turns import finish, in_cluster, in_ranks, machine, on_nodes, parser, spread, table, take_turns

PARTS = ("launch", "import", "init", "build", "broadcast", "first step")


def of_torch(marks: list[float]) -> Any:
    """`gather` of the world; appends a time after each part."""
    import torch

    import hvdtrain.torch as ht

    marks.append(time.time())
    world = ht.init()
    marks.append(time.time())
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    marks.append(time.time())
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    marks.append(time.time())
    model(torch.zeros(32, 1024)).sum().backward()
    optimizer.step()
    marks.append(time.time())
    return world, ht.gather_objects


def of_tensorflow(marks: list[float]) -> Any:
    """As `of_torch`."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import numpy as np

    import hvdtrain.keras as hk

    marks.append(time.time())
    world = hk.init()
    marks.append(time.time())
    model = keras.Sequential([keras.Input((1024,)), *[keras.layers.Dense(1024) for _ in range(6)]])
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.01), lr_rule="none")
    model.compile(optimizer, "mse", jit_compile=False)
    marks.append(time.time())
    hk.broadcast(model, optimizer)
    marks.append(time.time())
    x = np.zeros((32, 1024), "float32")
    model.train_on_batch(x, x)
    marks.append(time.time())
    return world, hk.gather_objects


def rank(options: argparse.Namespace) -> None:
    """One rank: seconds of each part, the largest over all ranks."""
    marks = [options.began, BEGAN]
    world, gather = (of_torch if options.framework == "torch" else of_tensorflow)(marks)
    gathered = gather([after - before for before, after in zip(marks, marks[1:], strict=False)])  # noqa: RUF007
    if world.rank == 0:
        slowest = [max(values) for values in zip(*gathered, strict=True)]
        options.out.write_text(json.dumps(dict(zip(PARTS, slowest, strict=True))))


def local(options: argparse.Namespace, ranks: int, launcher: str) -> dict[str, float]:
    """A start on this machine."""
    arguments = ["--rank", "--framework", options.framework, "--began", time.time()]
    return dict(in_ranks(__file__, ranks, launcher, *arguments))


def on_cluster(options: argparse.Namespace, ranks: int, mpi: list[str]) -> dict[str, float]:
    """A start over two nodes, inside the cluster that `main` has started."""
    arguments = ["--rank", "--framework", options.framework, "--began", time.time()]
    return dict(on_nodes(__file__, 2, ranks // 2, *arguments, mpi=mpi))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--ranks", default="2,4,8", help="numbers of ranks, with commas (default %(default)s)")
    made.add_argument("--framework", choices=("torch", "tensorflow"), default="torch", help="default %(default)s")
    made.add_argument("--cluster", action="store_true", help="under srun on a test cluster (needs root and SLURM)")
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--began", type=float, help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.rank:
        rank(options)
        return
    in_cluster(options.cluster)
    if options.tiny:
        options.ranks, options.rounds = "2", 1
    facts, rows, figures = machine(), [], {}
    for ranks in map(int, options.ranks.split(",")):
        starts: dict[str, Callable[[], dict[str, float]]] = {
            name: partial(on_cluster, options, ranks, mpi)
            if options.cluster
            else partial(local, options, ranks, launcher)
            for name, launcher, mpi in (("Gloo", "local", []), ("MPI", "mpirun", ["--mpi=pmix"]))
        }
        for name, results in take_turns(starts, options.rounds).items():
            parts = {part: spread([each[part] for each in results]) for part in PARTS}
            total = spread([sum(each.values()) for each in results])
            figures[f"{ranks} ranks, {name}"] = {**parts, "total": total}
            rows.append([ranks, name, *(f"{parts[part]['median']:.2f}" for part in PARTS), f"{total['median']:.2f}"])
    shown = table(["ranks", "over", *(f"{part} s" for part in PARTS), "all s"], rows)
    place = "two nodes of a test cluster" if options.cluster else "this machine"
    content = {"framework": options.framework, "place": place, "seconds": figures}
    finish(options, facts, shown, content)


if __name__ == "__main__":
    main()
