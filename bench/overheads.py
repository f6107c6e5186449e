"""What replica check, phases and noise scale cost, in one run of real ranks.

    python bench/overheads.py --ranks 2 --steps 1500

Every step is drawn at random, on all ranks alike, to be plain or to do one of the three, so that a drift of the machine's speed
meets them alike. What is done in every k-th step only is charged with a k-th: the printed ratio is

    1 + (median of steps with it - median of plain steps) / (k x median of plain steps)
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

import hvdtrain.torch as ht
from hvdtrain._torch import replicas
from hvdtrain._torch.clock import PHASES, Clock
from hvdtrain._torch.distribute import CHECK_EVERY
from hvdtrain._torch.trainer import NOISE_EVERY
from hvdtrain.noise import NoiseScale

#: Steps between two times that it is done; the phases are timed in each.
EVERY = {"replica check": CHECK_EVERY, "noise scale": NOISE_EVERY, "phases": 1}
WARM_UP = 30


class NoClock(Clock):
    """Measures nothing."""

    def start(self, phase: str) -> None:
        """Nothing begins."""

    def stop(self, phase: str) -> None:
        """Nothing ends."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Nothing is added."""
        yield


def measure(steps: int, width: int, batch: int) -> dict[str, list[float]]:
    """Seconds of each step on this rank, by what it did besides training."""
    world = ht.init()
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, check_replicas_every=0)
    synchronizer = optimizer.hvdtrain
    x = torch.randn(batch, width, device=world.device)
    y = torch.randint(0, 10, (batch,), device=world.device)
    draw, noise = random.Random(1), NoiseScale()
    clocks = {True: Clock(world.device), False: NoClock(world.device)}
    seconds: dict[str, list[float]] = {"plain": [], **{name: [] for name in EVERY}}
    for step in range(WARM_UP + steps):
        kind = draw.choice(list(seconds))
        clock = synchronizer.clock = clocks[kind == "phases"]
        began = time.perf_counter()
        with clock.phase("data"):
            pass
        with clock.phase("forward"):
            loss = nn.functional.cross_entropy(model(x), y)
        synchronizer.exchange.measure = kind == "noise scale"
        with clock.phase("backward"):
            loss.backward()
        synchronizer.synchronize()
        if kind == "noise scale":
            local = float(synchronizer.exchange.local_square) / world.size
            noise.add(local, synchronizer.square_norm(), batch, batch * world.size)
        optimizer.step()
        optimizer.zero_grad()
        if kind == "replica check":
            replicas.check(dict(model.named_parameters()), step)
        if world.device != "cpu":
            torch.cuda.synchronize()
        if step >= WARM_UP:
            seconds[kind].append(time.perf_counter() - began)
    return seconds


def clock_seconds(repeats: int = 2000) -> float:
    """Seconds that the clock of one step takes, for they vanish among those of the step."""
    clock = Clock("cpu")
    began = time.perf_counter()
    for _ in range(repeats):
        for phase in PHASES:
            with clock.phase(phase):
                pass
    return (time.perf_counter() - began) / repeats


def report(seconds: dict[str, list[float]], ranks: int, width: int) -> None:
    """Print the ratios."""
    plain = statistics.median(seconds["plain"])
    print(f"{ranks} ranks, {len(os.sched_getaffinity(0))} cores; 6 layers of {width}; plain step {plain * 1e3:.2f} ms")
    together = 0.0
    for name, every in EVERY.items():
        extra = statistics.median(seconds[name]) - plain
        share = extra / (every * plain)
        if name != "phases":
            together += share
        times = f"in every {every}th step" if every > 1 else "in every step"
        print(f"{name:<14} {extra * 1e3:+7.3f} ms {times:<21} ratio {1 + share:.4f}   ({len(seconds[name])} steps)")
    halves = [statistics.median(seconds["plain"][half::2]) for half in (0, 1)]
    print(f"{'plain, halved':<14} {'the noise of these medians':<33} ratio {max(halves) / min(halves):.4f}")
    alone = clock_seconds()
    print(f"{'phases, alone':<14} {alone * 1e3:+7.3f} ms {'by a loop of them':<21} ratio {1 + alone / plain:.4f}")
    # The clock's own time counts: what it adds to a step is less than the noise above.
    print(f"{'together':<14} {'check, noise scale, phases alone':<33} ratio {1 + together + alone / plain:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="default 2")
    parser.add_argument("--steps", type=int, default=1500, help="default 1500")
    parser.add_argument("--width", type=int, default=512, help="of each layer (default 512)")
    parser.add_argument("--batch", type=int, default=32, help="samples per rank (default 32)")
    parser.add_argument("--rank-job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_job:
        seconds = measure(options.steps, options.width, options.batch)
        if ht.world().rank == 0:
            report(seconds, options.ranks, options.width)
        return
    command = [sys.executable, "-m", "hvdtrain.launch", "-n", str(options.ranks), __file__, *sys.argv[1:], "--rank-job"]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
