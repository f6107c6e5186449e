"""How much Horovod should send as one: the time of a step by its fusion threshold, in bytes.

    python bench/fusion.py --ranks 2,4 --json bench/results/fusion.json
    python bench/fusion.py --launcher local
    python bench/fusion.py --framework tensorflow
    sudo python bench/fusion.py --link 1gbit        # each rank on a node of a test cluster

Gradients that are ready at the same time travel together as long as they are no larger than this; for that they are copied to a
buffer and back. The contenders are thresholds, the jobs those of `step_torch.py` and `step_keras.py` with all that is on by
default, in processes of their own that take turns. Printed are medians over the rounds, and the median of the ratios to Horovod's
own 128 MB within a round: below 1 is faster.
"""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path
from typing import Any

from turns import finish, in_cluster, in_ranks, machine, on_nodes, ratio, spread, step_parser, table, take_turns

KB, MB = 2**10, 2**20
HOROVODS_OWN = 128 * MB
THRESHOLDS = {"64 KB": 64 * KB, "256 KB": 256 * KB, "1 MB": MB, "4 MB": 4 * MB, "128 MB": HOROVODS_OWN}
SCRIPTS = {"torch": "step_torch.py", "tensorflow": "step_keras.py"}


def seconds(options: argparse.Namespace, ranks: int, threshold: int) -> dict[str, float]:
    """Of a step, by model."""
    script = Path(__file__).with_name(SCRIPTS[options.framework])
    words = [*(["--tiny"] if options.tiny else []), *(["--models", options.models] if options.models else [])]
    environ = {"OMP_NUM_THREADS": "1", "HOROVOD_FUSION_THRESHOLD": str(threshold)}
    if options.link:
        environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        return dict(on_nodes(script, ranks, 1, "--rank", "hvdtrain", *words, environ=environ))
    return dict(in_ranks(script, ranks, options.launcher, "--rank", "hvdtrain", *words, environ=environ))


def main() -> None:
    made = step_parser(__doc__, "2")
    made.add_argument("--launcher", default="auto", help="local for Gloo, mpirun for MPI (default %(default)s)")
    made.add_argument("--framework", default="torch", choices=tuple(SCRIPTS), help="(default %(default)s)")
    made.add_argument(
        "--link", metavar="RATE", help="each rank on a node of its own that sends no faster, as 1gbit; over Gloo"
    )
    made.add_argument("--thresholds", default=",".join(THRESHOLDS), help="(default %(default)s)")
    options = made.parse_args()
    if options.tiny:
        options.ranks, options.rounds, options.models, options.thresholds = "2", 1, "CNN", "1 MB,128 MB"
    names = [name for name in THRESHOLDS if name in options.thresholds.split(",")]
    if "128 MB" not in names or len(names) < 2:
        made.error(f"--thresholds: 128 MB and others of {', '.join(THRESHOLDS)}")
    in_cluster(options.link, "--link", str(options.link))
    facts, rows, figures = machine(), [], {}
    for ranks in map(int, options.ranks.split(",")):
        turns = {name: functools.partial(seconds, options, ranks, THRESHOLDS[name]) for name in names}
        took = take_turns(turns, options.rounds)
        for model in took["128 MB"][0]:
            by_name = {name: [each[model] for each in results] for name, results in took.items()}
            found: dict[str, Any] = {
                name: {
                    "ms": spread([1e3 * each for each in values]),
                    "times of 128 MB": ratio(values, by_name["128 MB"]),
                }
                for name, values in by_name.items()
            }
            figures[f"{model}, {ranks} ranks"] = found
            shown = [f"{each['ms']['median']:.1f}, {each['times of 128 MB']['median']:.2f}" for each in found.values()]
            rows.append([model, ranks, *shown])
    table_of = table(["model", "CPU ranks", *(f"{name} (ms, times of 128 MB)" for name in names)], rows)
    kinds = {"launcher": options.launcher, "framework": options.framework, "link": options.link}
    finish(options, facts, table_of, {**kinds, "steps": figures})


if __name__ == "__main__":
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    main()
