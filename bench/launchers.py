"""Gloo and MPI on this machine, side by side: the same job under `--launcher local` and `--launcher mpirun`.

    python bench/launchers.py --ranks 2,4 --rounds 5

Each round runs every combination once, in turn, so that a drift of the machine's speed meets them alike. Printed are
medians over the rounds of samples/s (median over epochs without the first), and the ratio of medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hvdtrain import record

LAUNCHERS = ("local", "mpirun")


def samples_per_second(launcher: str, ranks: int, job: str, epochs: int) -> float:
    """One run of `job`; median over its epochs without the first."""
    with tempfile.TemporaryDirectory() as folder:
        world = ["-n", str(ranks), "--launcher", launcher, "--run-dir", folder]
        command = [sys.executable, "-m", "hvdtrain.launch", *world, job, "--epochs", str(epochs)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if ended.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with status {ended.returncode}:\n{ended.stderr}")
        found = record.read_epochs(Path(folder) / "epochs.jsonl")
        return statistics.median(epoch.samples_per_second or 0.0 for epoch in found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas (default 2,4)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each combination (default 5)")
    parser.add_argument("--job", default="digits", help="job to run (default digits)")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each run, the first not counted (default 5)")
    options = parser.parse_args()
    sizes = [int(size) for size in options.ranks.split(",")]
    measured: dict[tuple[str, int], list[float]] = {(name, size): [] for size in sizes for name in LAUNCHERS}
    for round_number in range(1, options.rounds + 1):
        for (name, size), values in measured.items():
            values.append(samples_per_second(name, size, options.job, options.epochs))
            print(f"round {round_number}: {name} with {size} ranks: {values[-1]:,.0f} samples/s", file=sys.stderr)
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.processor() or platform.machine()}, {cores} cores; {options.job}, {options.rounds} rounds")
    print(f"{'CPU ranks':>9}  {'Gloo':>9}  {'MPI':>9}  MPI/Gloo   (samples/s)")
    for size in sizes:
        gloo, mpi = (statistics.median(measured[name, size]) for name in LAUNCHERS)
        print(f"{size:>9}  {gloo:>9,.0f}  {mpi:>9,.0f}  {mpi / gloo:>8.2f}")


if __name__ == "__main__":
    main()
