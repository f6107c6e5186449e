"""Contenders as threads of the same ranks that take turns every few steps: for differences smaller than a machine's drift.

Processes of their own, minutes apart, meet a machine at different speeds. Here only one contender is at work at any time, for
`BLOCK` steps, in an order that is drawn anew for each round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit
from turns import chosen, finish, in_ranks, machine, spread, step_parser, table

BLOCK = 10
#: The same code twice: together they are what others are compared with, and how they differ from it is noise.
REFERENCE = ("hand-written", "hand-written again")
#: Called by a contender before each of its steps, with the step's number from 0.
BeforeStep = Callable[[int], None]


class Turns:
    """Lets one contender work at a time.

    Args:
        order: whose turn comes after whose; the same on every rank.
    """

    def __init__(self, order: list[str]) -> None:
        self._order, self._now, self._ready = order, 0, set[str]()
        self._began = 0.0
        self._moved = threading.Condition()
        self.seconds: dict[str, list[float]] = {name: [] for name in order}

    def before_step(self, name: str, step: int) -> None:
        """The first block, in which steps are compiled, is everybody's own; then its turn is waited for before each other one."""
        if step == 0 or step % BLOCK:
            return
        if step > BLOCK:
            self.seconds[name].append((time.perf_counter() - self._began) / BLOCK)
            self.end()
        with self._moved:
            self._ready.add(name)
            self._moved.notify_all()
            everybody = set(self._order)
            self._moved.wait_for(lambda: self._ready == everybody and self._order[self._now] == name)
        self._began = time.perf_counter()

    def end(self) -> None:
        """The next one."""
        with self._moved:
            self._now += 1
            self._moved.notify_all()

    def wait_until_ready(self, name: str) -> None:
        """Its first block is over."""
        with self._moved:
            self._moved.wait_for(lambda: name in self._ready)


def steps(rounds: int) -> int:
    """That each contender has to make: a block of its own, one to settle, `rounds` that count, and the one with the epoch's end."""
    return BLOCK * (rounds + 3)


def take_turns(
    contenders: Mapping[str, Callable[[BeforeStep], None]], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of a step by contender and round; each makes `steps(options.rounds)`.

    Whoever is made first has been a percent slower throughout, so each start of the ranks makes them in another order.
    """
    drawn, order = random.Random(options.start), []
    made = drawn.sample(list(contenders), len(contenders))
    for _ in range(options.rounds + 2):
        order += drawn.sample(made, len(made))
    turns = Turns(order)

    def work(name: str) -> None:
        contenders[name](lambda step: turns.before_step(name, step))
        turns.end()

    threading.excepthook = _give_up
    workers = [threading.Thread(target=work, args=(name,)) for name in made]
    for name, worker in zip(made, workers, strict=True):
        worker.start()
        turns.wait_until_ready(name)
    for worker in workers:
        worker.join()
    return {name: turns.seconds[name][1:] for name in contenders}


def _give_up(failed: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(failed)
    os._exit(1)  # the others would wait for its turn to end


def times_of(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """How many times as long ours take, from what both took in each round of each start.

    Two contenders with the same code differ by a percent or two for as long as their process lives, and rounds cannot show that. So
    each start counts as one value, the ratio of its medians: given are their geometric mean, and its 90 % interval by Student's t.
    """
    logs = np.log([np.median(a) / np.median(b) for a, b in zip(ours, theirs, strict=True)])
    reach = float(stdtrit(len(logs) - 1, 0.95) * logs.std(ddof=1) / np.sqrt(len(logs)))
    ends = {"low": float(np.exp(logs.mean() - reach)), "high": float(np.exp(logs.mean() + reach))}
    return {"ratio": float(np.exp(logs.mean())), **ends, "by start": [float(each) for each in np.exp(logs)]}


def compare_steps(
    description: str | None,
    script: str,
    models: Mapping[str, Any],
    compare: Callable[[Any, argparse.Namespace], dict[str, list[float]]],
    start: Callable[[], Any],
) -> None:
    """The program of a bench of this kind, by model and number of ranks.

    Args:
        compare: in a rank: a model's entry in `models`, options -> what `take_turns` found.
        start: in a rank: starts Horovod, and returns the world.
    """
    made = step_parser(description, "2")
    made.set_defaults(rounds=6)
    made.add_argument("--starts", type=int, default=15, help="of the ranks, two or more (default %(default)s)")
    made.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--launcher", default="auto", help="local for Gloo, mpirun for MPI (default %(default)s)")
    options = made.parse_args()
    if options.rank:
        world = start()
        found = {name: compare(model, options) for name, model in chosen(options, models).items()}
        if world.rank == 0:
            options.out.write_text(json.dumps(found))
        return
    if options.tiny:
        options.rounds, options.models, options.ranks, options.starts = 1, "CNN", "2", 2
    if options.starts < 2:
        made.error("--starts: two or more, for the interval comes from how they differ")
    facts, rows, figures = machine(), [], {}
    words = ["--rank", "all", "--rounds", options.rounds]
    for ranks in map(int, options.ranks.split(",")):
        threads = {"OMP_NUM_THREADS": str(max(1, facts["cores"] // ranks))}
        for model in chosen(options, models):
            own = [*words, "--models", model]
            starts = [
                in_ranks(script, ranks, options.launcher, *own, "--start", start, environ=threads)[model]
                for start in range(options.starts)
            ]
            took = {name: [each[name] for each in starts] for name in starts[0]}
            reference = [[value for name in REFERENCE for value in each[name]] for each in starts]
            for name, seconds in took.items():
                times = spread([1e3 * value for each in seconds for value in each])
                against = times_of(seconds, reference)
                figures[f"{model}, {ranks} ranks: {name}"] = {"ms": times, f"times of {REFERENCE[0]}": against}
                shown = f"{against['ratio']:.3f} ({against['low']:.3f}-{against['high']:.3f})"
                rows.append([model, ranks, name, f"{times['median']:.1f}", shown])
    header = ["model", "CPU ranks", "contender", "ms", f"times of {REFERENCE[0]}"]
    finish(options, facts, table(header, rows), {"launcher": options.launcher, "steps": figures})
