"""Images per second of the input pipeline: decoding once, then cached epochs with full augmentation, beside what users have.

    python bench/input_pipeline.py --json bench/results/input_pipeline.json    # 2,000 JPEGs of 224 pixels, about 3 minutes
    python bench/input_pipeline.py --tiny                                      # a few images, to see it work

Contenders take turns in one run; the medians over the rounds count. Each runs once before, untimed: imports, traced graphs and
started workers are not counted. Nothing is trained: batches are made and thrown away. All have as many threads or processes as the
machine has cores.

    decode limit      libjpeg-turbo (simplejpeg): each file read and decoded into one and the same buffer
    Pillow            the same with Pillow
    first epoch       ours: decode, check, write the packed file
    read limit        rows of the packed file copied in random order, with nothing around it
    cached, plain     ours without augmentation: `hk.loader`, through the threads that `fit` gives it
    cached epoch      ours with zoom, shift, rotation and flip, likewise
    cached, tensors   the same to the end: the tensors that TensorFlow's `fit` sees
    Keras layer       `RandomAffine` as a layer on the CPU, after "cached, plain"
    (a) generator     Keras' ImageDataGenerator from the folders, same augmentation
    (b) tf.data       image_dataset_from_directory with Keras' augmentation layers
    (c) DataLoader    torch's, Pillow in worker processes, flip only
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil
from input_contenders import (
    BATCH,
    CORES,
    SIZE,
    Contender,
    Ours,
    data_loader,
    decode_limits,
    generator,
    make_tree,
    tf_data,
)
from turns import place

#: Of a turn, at least: fast contenders make several epochs, lest a moment's load from elsewhere decides.
SECONDS = 1.0


def cpu_seconds() -> float:
    """Of this process and those that it started."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


@dataclass
class Rates:
    """Images per second of each contender in each round, by the clock, and by cores' time, which other work moves less."""

    wall: dict[str, list[float]]
    core: dict[str, list[float]]

    def ratio(self, over: str, under: str, by: str) -> float:
        """Of medians."""
        rates = getattr(self, by)
        return statistics.median(rates[over]) / statistics.median(rates[under])


def measure(contenders: dict[str, Contender], rounds: int) -> Rates:
    """Each contender in each round; round 0 does not count."""
    rates = Rates({name: [] for name in contenders}, {name: [] for name in contenders})
    for number in range(rounds + 1):
        for name, each in contenders.items():
            done, seconds, busy = 0, 0.0, 0.0
            while seconds < SECONDS:
                each.before()
                began, used = time.perf_counter(), cpu_seconds()
                done += each.run()
                seconds += time.perf_counter() - began
                busy += cpu_seconds() - used
            if number:
                rates.wall[name].append(done / seconds)
                rates.core[name].append(done / max(busy, 0.01))
            told = f"round {number}" if number else "warm-up"
            print(
                f"{told}: {name:<15} {done / seconds:9,.0f} images/s {done / max(busy, 0.01):9,.0f} per core second",
                file=sys.stderr,
                flush=True,
            )
    return rates


#: What is asked of whom: (numerator, denominator, at least).
RATIOS = (
    ("first epoch", "decode limit", 0.9),
    ("first epoch", "Pillow", None),
    ("cached, plain", "read limit", 0.7),
    ("cached epoch", "read limit", None),
    ("cached epoch", "Keras layer", None),
    ("cached epoch", "(a) generator", 10.0),
    ("cached, tensors", "(a) generator", None),
    ("cached epoch", "(b) tf.data", None),
    ("cached epoch", "(c) DataLoader", None),
)


def table(rates: Rates, title: str) -> str:
    """For people."""
    lines = [title, "", " " * 17 + "images/s (lowest to highest)       per core second"]
    for name, values in rates.wall.items():
        spread = f"({min(values):,.0f} to {max(values):,.0f})"
        core = statistics.median(rates.core[name])
        lines.append(f"{name:<16} {statistics.median(values):9,.0f} {spread:<22} {core:12,.0f}")
    lines += ["", " " * 37 + "by time   by core time"]
    for over, under, least in RATIOS:
        wall, core = (rates.ratio(over, under, by) for by in ("wall", "core"))
        asked = f"   asked for: {least}" if least else ""
        lines.append(f"{f'{over} / {under}':<34} {wall:9.2f} {core:14.2f}{asked}")
    return "\n".join(lines)


def filesystem(folder: str) -> str:
    """Its kind, as "ext4" or "xfs": how fast it takes new pages decides what a first epoch costs."""
    return subprocess.check_output(["df", "--output=fstype", folder], text=True).split()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="64 images, one round")
    parser.add_argument(
        "--folder",
        type=Path,
        help="on whose file system images and packed file are put (default: the temporary directory's)",
    )
    parser.add_argument("--json", type=Path, help="write the figures here too, and the table beside it (.md)")
    options = parser.parse_args()
    if options.folder and not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: there is no such folder")
    images, rounds = (64, 1) if options.tiny else (options.images, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ThreadPoolExecutor(CORES) as pool:
        files_on = filesystem(folder)
        tree = Path(folder) / "tree"
        make_tree(tree, images)
        files = sorted(str(path) for path in tree.rglob("*.jpg"))
        contenders = {
            **decode_limits(files, pool),
            **Ours(tree, Path(folder) / "cache").contenders(pool),
            "(a) generator": generator(tree, pool),
            "(b) tf.data": tf_data(tree),
            "(c) DataLoader": data_loader(files),
        }
        rates = measure(contenders, rounds)
    date, machine = (
        f"{datetime.now(timezone.utc):%Y-%m-%d}",
        place(),
    )
    title = f"{images:,} JPEGs of {SIZE} pixels, {machine}, {files_on}, {date}; medians of {rounds} rounds"
    text = table(rates, title)
    print(text)
    if options.json:
        facts = {
            "date": date,
            "machine": machine,
            "filesystem": files_on,
            "images": images,
            "size": SIZE,
            "batch": BATCH,
        }
        ratios = {
            f"{over} / {under}": {by: rates.ratio(over, under, by) for by in ("wall", "core")}
            for over, under, _ in RATIOS
        }
        figures = {**facts, "images_per_s": rates.wall, "images_per_core_s": rates.core, "ratios": ratios}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
        shown = f"# The input pipeline\n\n`python bench/input_pipeline.py --json FILE`\n\n```\n{text}\n```\n"
        options.json.with_suffix(".md").write_text(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
