"""Whether more ranks cost accuracy: a job with 1, 2 and 4 ranks and several seeds, on Fashion-MNIST.

    python bench/accuracy_by_ranks.py --json bench/results/accuracy_by_ranks.json    # both jobs, about an hour on two idle cores
    python bench/accuracy_by_ranks.py --tiny                                         # one epoch, one seed, 1 and 2 ranks
    python bench/accuracy_by_ranks.py --seeds 3,4 --json FILE --add                  # further seeds beside those in FILE

Each run is `python -m hvdtrain.launch -n RANKS JOB` with the job's own batch size and rate per rank: the batch of all ranks grows
with their number, as it does on GPUs. Noise is what seeds differ by: 2.5 standard errors of the difference between two means of
that many runs, from the spread between seeds, pooled over the numbers of ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from turns import place

#: Jobs, what they are given, and the accuracy that they must reach.
JOBS: dict[str, tuple[tuple[str, ...], float]] = {
    "mnist_cnn": (("--epochs", "12"), 0.88),
    # The study's own SGD at a constant rate of 0.1 ends anywhere between 84 and 87 %, whatever the number of ranks.
    "mnist_mlp": (("--epochs", "8", "--optimizer", "adam", "--lr", "0.001"), 0.86),
}


def run(job: str, ranks: int, seed: int, arguments: tuple[str, ...], extra: list[str]) -> dict[str, Any]:
    """One training; its last epoch's validation accuracy and its seconds from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hvdtrain.launch", "-n", str(ranks), "--run-dir", folder]
        command += ["--launcher", "none"] if ranks == 1 else []
        command += [job, "--data", "fashion-mnist", "--seed", str(seed), *arguments, *extra]
        began = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if ended.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {ended.returncode}:\n{ended.stderr[-3000:]}")
        epochs = [json.loads(line) for line in (Path(folder) / "epochs.jsonl").read_text().splitlines()]
    last = epochs[-1]
    row = {"job": job, "ranks": ranks, "seed": seed, "val_acc": last["val_acc"], "train_loss": last["train_loss"]}
    row |= {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "epochs": len(epochs), "lr": last["lr"]}
    return {**row, "seconds": round(seconds, 1)}


def summary(rows: list[dict[str, Any]], job: str) -> dict[str, Any]:
    """Means by number of ranks, their largest difference, and what chance makes of it."""
    by_ranks: dict[int, list[float]] = {}
    for row in rows:
        if row["job"] == job:
            by_ranks.setdefault(row["ranks"], []).append(row["val_acc"])
    means = {ranks: statistics.mean(values) for ranks, values in by_ranks.items()}
    spreads = [statistics.variance(values) for values in by_ranks.values() if len(values) > 1]
    spread = math.sqrt(statistics.mean(spreads)) if spreads else None
    seeds = min(map(len, by_ranks.values()))
    return {
        "mean_val_acc": means,
        "lowest": min(min(values) for values in by_ranks.values()),
        "largest_difference": max(means.values()) - min(means.values()),
        "spread_between_seeds": spread,
        "noise": None if spread is None else 2.5 * spread * math.sqrt(2 / seeds),
        "required": JOBS[job][1],
        "longest_seconds": max(row["seconds"] for row in rows if row["job"] == job),
    }


def table(rows: list[dict[str, Any]], summaries: dict[str, dict[str, Any]]) -> str:
    """For people."""
    lines = []
    for job, found in summaries.items():
        lines.append(f"{job}: accuracy above {found['required']:.0%} is asked for; lowest {found['lowest']:.2%}")
        lines.append("  ranks  mean val_acc  by seed" + " " * 27 + "rate of the last step  seconds")
        for ranks, mean in found["mean_val_acc"].items():
            own = [row for row in rows if row["job"] == job and row["ranks"] == ranks]
            values = "  ".join(f"{row['val_acc']:.4f}" for row in own)
            seconds = max(row["seconds"] for row in own)
            lines.append(f"  {ranks:5}  {mean:12.4f}  {values:<34}{own[0]['lr']:21.5f}  {seconds:7.0f}")
        noise = found["noise"]
        told = "one seed: no noise known" if noise is None else f"{noise:.4f} would be noise"
        lines.append(f"  largest difference between means {found['largest_difference']:.4f}; {told}\n")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--job", action="append", choices=list(JOBS), help="default: all")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tiny", action="store_true", help="one epoch, seed 0, 1 and 2 ranks, the perceptron alone")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("arguments", nargs="*", help="for the job, after --, such as -- --lr-rule linear")
    parser.add_argument(
        "--add", action="store_true", help="keep the runs that the file of --json has, and do the others"
    )
    options = parser.parse_args()
    if options.add and not options.json:
        parser.error("--add needs --json FILE: the runs are added to those in it")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    jobs = options.job or (["mnist_mlp"] if options.tiny else list(JOBS))
    ranks = [int(each) for each in ("1,2" if options.tiny else options.ranks).split(",")]
    seeds = [int(each) for each in ("0" if options.tiny else options.seeds).split(",")]
    extra = [*options.arguments, *(["--epochs", "1"] if options.tiny else [])]
    rows = json.loads(options.json.read_text())["runs"] if options.add and options.json.exists() else []
    done = {(row["job"], row["ranks"], row["seed"]) for row in rows}
    # Seeds outermost: whatever else the machine does meets all numbers of ranks alike.
    for seed in seeds:
        for job in jobs:
            for count in ranks:
                if (job, count, seed) in done:
                    continue
                rows.append(run(job, count, seed, JOBS[job][0], extra))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if options.json:  # an hour's work would be lost with the last run
                    write(rows, options.json)
    print(shown(rows))
    return 0


def shown(rows: list[dict[str, Any]]) -> str:
    """The table under its title."""
    dates = sorted({row["date"] for row in rows})
    return (
        f"Fashion-MNIST, {place()}, {' to '.join(dates[:: max(1, len(dates) - 1)])}\n\n{table(rows, _summaries(rows))}"
    )


def write(rows: list[dict[str, Any]], target: Path) -> None:
    """The table (.md) and all figures (.json)."""
    rows = sorted(rows, key=lambda row: (list(JOBS).index(row["job"]), row["seed"], row["ranks"]))
    figures = {"machine": place(), "data": "Fashion-MNIST", "runs": rows, "summaries": _summaries(rows)}
    target.write_text(json.dumps(figures, indent=1) + "\n")
    text = (
        f"# Accuracy by number of ranks\n\n`python bench/accuracy_by_ranks.py --json FILE`\n\n```\n{shown(rows)}```\n"
    )
    target.with_suffix(".md").write_text(text)


def _summaries(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {job: summary(rows, job) for job in JOBS if any(row["job"] == job for row in rows)}


if __name__ == "__main__":
    sys.exit(main())
