"""Seconds that commands take which start, look at, and report on many cells.

    python bench/control.py
    sudo python bench/control.py --cluster    # also submits 64 cells to a test cluster, beside submitit's own job array

Each is a process of its own, from start to end, as typed. Beside ours: `python -c pass`, below which no Python program can go,
submitit's import and, where `torchx` is on the PATH or given, torchx' own help, script and submission of one job (it has no
grids, so that 64 cells are 64 times that).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from turns import finish, in_cluster, machine, parser, spread, table, take_turns

ROOT = Path(__file__).resolve().parents[1]
GRID = ["--job", "digits", "--gpus", "1,2,4,8", "--lr-rule", "linear,sqrt", "--seeds", "8", "--epochs", "1"]

#: One job for torchx.
TORCHX = ["utils.python", "--script", "nothing.py"]
#: submitit's own way to hand in as many calls: an array.
SUBMITIT = """
import sys, submitit
executor = submitit.AutoExecutor(folder=sys.argv[1])
executor.update_parameters(timeout_min=1, slurm_time="1", tasks_per_node=1)
with executor.batch():
    jobs = [executor.submit(print, number) for number in range(int(sys.argv[2]))]
print(len({job.job_id for job in jobs}))
"""


def seconds(command: list[str], folder: Path) -> float:
    """Of one run, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    took = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return took


def make_study(folder: Path, cells: int) -> Path:
    """A finished study of so many cells, written by what writes studies."""
    from hvdtrain import record

    study = folder / "runs" / "many"
    record.write_json(study / "study.json", {"study": "many"})
    for number in range(cells):
        ranks = 2 ** (number % 4)
        cell = study / f"n{ranks}-s{number}"
        record.write_json(cell / "cell.json", {"name": cell.name, "gpus": ranks, "epochs": 10, "cluster": "local"})
        record.begin(cell, {"world_size": ranks, "device": "cpu"})
        log = record.EpochLog(cell / "epochs.jsonl")
        for epoch in range(1, 11):
            log.append(
                record.Epoch(epoch, seconds=10 / ranks, samples_per_second=100.0 * ranks, val_acc=1 - 0.5 / epoch)
            )
        record.finish(cell, "completed", 0, "")
    return study


def submission(folder: Path, cells: int) -> Callable[[], float]:
    """Hands in `cells` cells that need no framework, each time as a study of a new name."""
    grid = [
        "--job",
        "nothing.py",
        "--gpus",
        "1,2,4,8",
        "--gpu-type",
        "t4",
        "--seeds",
        str(cells // 4),
        "--cluster",
        "slurm",
    ]

    return lambda: seconds(
        [sys.executable, "-m", "hvdtrain.submit", *grid, "--study", f"study{time.time_ns()}"], folder
    )


def alone(submit: Callable[[], float]) -> Callable[[], float]:
    """`submit`, whose jobs are gone before anything else is measured: dozens of them would run on the cores of this machine."""

    def submit_and_clear() -> float:
        took = submit()
        subprocess.run(["scancel", "--me"], check=False)
        while subprocess.run(["squeue", "--me", "--noheader"], capture_output=True, check=True).stdout:
            time.sleep(0.5)
        return took

    return submit_and_clear


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--cluster", action="store_true", help="submit to a test cluster too (needs root and SLURM)")
    made.add_argument(
        "--torchx", metavar="PROGRAM", default=shutil.which("torchx"), help="default: the one on the PATH"
    )
    options = made.parse_args()
    in_cluster(options.cluster, "--accounting")  # without it torchx fails after it has submitted
    cells = 64
    if options.tiny:
        options.rounds, cells = 1, 8
    facts = machine()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "nothing.py").write_text(
            '"""Nothing."""\nfrom hvdtrain import job\njob.parser(__doc__, epochs=1, batch_size=32, lr=0.1).parse_args()\n'
        )
        many = 40 if options.tiny else 1000
        study = make_study(folder, many)
        lab = str(ROOT / "analysis" / "reference" / "caltech256_lab.csv")
        python = [sys.executable, "-m"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "submit --help": [*python, "hvdtrain.submit", "--help"],
            "submit --dry-run, 64 cells": [*python, "hvdtrain.submit", *GRID, "--dry-run"],
            f"status, {many:,} cells": [*python, "hvdtrain", "status", str(study)],
            "report of the published lab": [*python, "analysis", "report", lab, "--out", str(folder / "report")],
            "import submitit": [sys.executable, "-c", "import submitit"],
        }
        if options.torchx:
            commands["torchx --help"] = [options.torchx, "--help"]
            commands["torchx --dryrun, 1 job"] = torchx = [options.torchx, "run", "-s", "slurm", "--dryrun", *TORCHX]
        contenders: dict[str, Callable[[], float]]
        contenders = {name: partial(seconds, command, folder) for name, command in commands.items()}
        if options.cluster:
            array = [sys.executable, "-c", SUBMITIT, str(folder / "submitit"), str(cells)]
            contenders[f"submit {cells} cells to SLURM"] = alone(submission(folder, cells))
            contenders[f"submitit, array of {cells}"] = alone(partial(seconds, array, folder))
            if options.torchx:
                one = [word for word in torchx if word != "--dryrun"]
                contenders["torchx, 1 job to SLURM"] = alone(partial(seconds, one, folder))
        figures = {name: spread(values) for name, values in take_turns(contenders, options.rounds).items()}
    rows = [[name, f"{each['median']:.2f}", f"{each['low']:.2f}-{each['high']:.2f}"] for name, each in figures.items()]
    finish(options, facts, table(["command", "s", "quartiles"], rows), {"seconds": figures})


if __name__ == "__main__":
    main()
