"""How much Horovod should send as one, and how long it should wait for it: the time of a step by a setting of Horovod.

    python bench/settings.py --ranks 2,4
    python bench/settings.py --vary cycle --launcher local
    python bench/settings.py --framework tensorflow
    sudo python bench/settings.py --link 1gbit        # each rank on a node of a test cluster

Gradients that are ready at the same time travel together as long as they are no larger than HOROVOD_FUSION_THRESHOLD; for that
they are copied to a buffer and back. Ranks agree on what is ready at most every HOROVOD_CYCLE_TIME. The contenders are values of
one of them, the jobs those of `step_torch.py` and `step_keras.py` with all that is on by default, in processes of their own that
take turns. Printed are medians over the rounds, and the median of the ratios to Horovod's own value within a round: below 1 is
faster.
"""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path
from typing import Any

from turns import (
    finish,
    in_cluster,
    in_ranks,
    machine,
    on_nodes,
    passed_on,
    ratio,
    spread,
    step_parser,
    table,
    take_turns,
)

KB, MB = 2**10, 2**20
#: What can be varied: its variable, and values by what they are called; the last is Horovod's own.
SETTINGS: dict[str, tuple[str, dict[str, float]]] = {
    "fusion": (
        "HOROVOD_FUSION_THRESHOLD",
        {"64 KB": 64 * KB, "256 KB": 256 * KB, "1 MB": MB, "4 MB": 4 * MB, "128 MB": 128 * MB},
    ),
    "cycle": ("HOROVOD_CYCLE_TIME", {"0.1 ms": 0.1, "0.2 ms": 0.2, "0.5 ms": 0.5, "3 ms": 3.0, "1 ms": 1.0}),
}
SCRIPTS = {"torch": "step_torch.py", "tensorflow": "step_keras.py"}


def seconds(options: argparse.Namespace, ranks: int, variable: str, value: float) -> dict[str, float]:
    """Of a step, by model."""
    script = Path(__file__).with_name(SCRIPTS[options.framework])
    words = passed_on(options)
    environ = {"OMP_NUM_THREADS": "1", variable: str(value)}
    if options.link:
        environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        return dict(on_nodes(script, ranks, 1, "--rank", "hvdtrain", *words, environ=environ))
    return dict(in_ranks(script, ranks, options.launcher, "--rank", "hvdtrain", *words, environ=environ))


def main() -> None:
    made = step_parser(__doc__, "2")
    made.add_argument("--vary", default="fusion", choices=tuple(SETTINGS), help="(default %(default)s)")
    made.add_argument("--values", help="only these besides Horovod's own, with commas, as '1 MB,4 MB'")
    made.add_argument("--launcher", default="auto", help="local for Gloo, mpirun for MPI (default %(default)s)")
    made.add_argument("--framework", default="torch", choices=tuple(SCRIPTS), help="(default %(default)s)")
    made.add_argument(
        "--link", metavar="RATE", help="each rank on a node of its own that sends no faster, as 1gbit; over Gloo"
    )
    options = made.parse_args()
    if options.tiny:
        options.ranks, options.rounds, options.models, options.values = "2", 1, "CNN", None
    variable, values = SETTINGS[options.vary]
    own = list(values)[-1]
    chosen = [*(options.values.split(",") if options.values else list(values)[:-1]), own]
    if unknown := [name for name in chosen if name not in values]:
        made.error(f"--values {', '.join(unknown)}: there are {', '.join(values)}")
    in_cluster(options.link, "--link", str(options.link))
    facts, rows, figures = machine(), [], {}
    for ranks in map(int, options.ranks.split(",")):
        turns = {name: functools.partial(seconds, options, ranks, variable, values[name]) for name in chosen}
        took = take_turns(turns, options.rounds)
        for model in took[own][0]:
            by_name = {name: [each[model] for each in results] for name, results in took.items()}
            found: dict[str, Any] = {
                name: {"ms": spread([1e3 * each for each in times]), f"times of {own}": ratio(times, by_name[own])}
                for name, times in by_name.items()
            }
            figures[f"{model}, {ranks} ranks"] = found
            shown = [f"{each['ms']['median']:.1f}, {each[f'times of {own}']['median']:.2f}" for each in found.values()]
            rows.append([model, ranks, *shown])
    header = ["model", "CPU ranks", *(f"{name} (ms, times of {own})" for name in chosen)]
    kinds = {"varied": variable, "launcher": options.launcher, "framework": options.framework, "link": options.link}
    finish(options, facts, table(header, rows), {**kinds, "steps": figures})


if __name__ == "__main__":
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    main()
