"""A scaling study over limited links, and whether the analysis predicts its last size from the others.

    sudo python bench/slow_network.py --links 1gbit,4gbit --json bench/results/slow_network.json

One rank on each node of a test cluster whose nodes can send no faster than the link: 1, 2, 3 and 4 ranks of a network with 25 MB of
gradients and little to compute, so that the way between the nodes decides. 1 to 3 nodes are fitted, 4 are predicted, and measured.
All nodes share this machine's cores, which the measurement contains and the prediction has to cope with.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from turns import finish, machine, on_nodes, parser, spread, table, take_turns

ROOT = Path(__file__).resolve().parents[1]
NODES = (1, 2, 3, 4)
BATCH = 32


def rank(options: argparse.Namespace) -> None:
    """Seconds of a step, the median over epochs without the first."""
    import torch

    import hvdtrain.torch as ht

    world = ht.init()
    torch.manual_seed(0)
    width, steps, epochs = (256, 2, 2) if options.tiny else (1024, 8, 4)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(6)], torch.nn.Linear(width, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001)
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    n = BATCH * world.size * steps
    data = torch.utils.data.TensorDataset(torch.randn(n, width), torch.randint(0, 10, (n,)))
    train = ht.loader(data, BATCH)
    history = ht.fit(model, optimizer, torch.nn.CrossEntropyLoss(), train, epochs=epochs, checkpoints=False)
    if world.rank == 0:
        options.out.write_text(json.dumps(statistics.median(epoch.seconds / steps for epoch in history[1:])))


def step_seconds(options: argparse.Namespace, nodes: int) -> float:
    """One rank on each of so many nodes, inside the cluster that `main` has started."""
    tiny = ["--tiny"] if options.tiny else []
    environ = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return float(on_nodes(__file__, nodes, 1, "--rank", *tiny, environ=environ))


def study(options: argparse.Namespace) -> dict[int, list[float]]:
    """Samples/s by number of nodes, one for each round."""
    contenders = {str(nodes): partial(step_seconds, options, nodes) for nodes in NODES}
    turns = take_turns(contenders, options.rounds)
    return {int(name): [int(name) * BATCH / seconds for seconds in values] for name, values in turns.items()}


def predict(rates: dict[int, list[float]]) -> dict[str, float]:
    """What the analysis says of the largest number of nodes when it knows the smaller ones; samples/s."""
    sys.path.insert(0, str(ROOT))
    import analysis

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            columns = ["workload", "device", "n_gpus", "n_nodes", "per_gpu_batch", "replicate", "metric", "value"]
            writer = csv.writer(file)
            writer.writerow(columns)
            for nodes in NODES[:-1]:
                for number, value in enumerate(rates[nodes], 1):
                    writer.writerow(["mlp", "cpu", nodes, nodes, BATCH, number, "throughput", value])
        found = analysis.fit_scaling(analysis.read(path)).predict(NODES[-1], gpus_per_node=1)
    row = found.iloc[0]
    return {"value": float(row["value"]), "low": float(row["low"]), "high": float(row["high"])}


def main() -> None:
    made = parser(__doc__)
    made.add_argument(
        "--links", default="1gbit,4gbit", help="sending rates of a node, with commas (default %(default)s)"
    )
    made.add_argument("--study", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.rank:
        rank(options)
        return
    if options.tiny:
        options.rounds = 1
    if options.study:
        options.study.write_text(json.dumps(study(options)))
        return
    facts, rows, figures = machine(), [], {}
    for link in options.links.split(",")[: 1 if options.tiny else None]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "study.json"
            cluster = [sys.executable, "-m", "hvdtrain.testcluster", "run", "--name", "bench", "--link", link, "--"]
            command = [sys.executable, __file__, "--study", str(out), "--rounds", str(options.rounds)]
            words = [*cluster, *command, *(["--tiny"] if options.tiny else [])]
            if subprocess.run(words, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode != 0:
                sys.exit(1)
            rates = {int(nodes): values for nodes, values in json.loads(out.read_text()).items()}
        said, truth = predict(rates), statistics.median(rates[NODES[-1]])
        inside = said["low"] <= truth <= said["high"]
        medians = {nodes: spread(values) for nodes, values in rates.items()}
        error = said["value"] / truth - 1
        figures[link] = {"samples_per_s": medians, "predicted": said, "error": error, "inside": inside}
        shown = f"{said['value']:.0f} ({said['low']:.0f}-{said['high']:.0f})"
        rows.append([link, *(f"{medians[nodes]['median']:.0f}" for nodes in NODES), shown, f"{error:+.1%}"])
    header = ["link", *(f"{n} node{'s' * (n > 1)}, samples/s" for n in NODES), "4 predicted from 1-3 (90 %)", "error"]
    finish(options, facts, table(header, rows), {"links": figures})


if __name__ == "__main__":
    main()
