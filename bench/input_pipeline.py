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
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil

# Started as a file, only its own folder is on the path; from a checkout without installation the rest is beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BATCH, SIZE, CLASSES, CORES = 32, 224, 20, len(os.sched_getaffinity(0))
ZOOM, SHIFT, TURN = 0.2, 0.2, 0.05
#: Of a turn, at least: fast contenders make several epochs, lest a moment's load from elsewhere decides.
SECONDS = 1.0
#: Batches of a turn of the slow contenders, which would take half a minute for an epoch.
FEW = 16


@dataclass
class Contender:
    """`run` makes one epoch, or a few batches, and returns how many images it made; `before` is not timed."""

    run: Callable[[], int]
    before: Callable[[], object] = lambda: None


def make_tree(root: Path, images: int) -> None:
    """JPEGs of 15 to 25 KB, as photographs of this size have."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(images):
        folder = root / f"{number % CLASSES:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8)).resize(
            (SIZE, SIZE), Image.Resampling.BICUBIC
        )
        noisy = np.asarray(coarse, np.int16) + rng.normal(0, 6, (SIZE, SIZE, 3)).astype(np.int16)
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(folder / f"{number:05d}.jpg", quality=88)


def decode_limits(files: list[str], pool: ThreadPoolExecutor) -> dict[str, Contender]:
    """Each file once, nothing kept."""
    import simplejpeg
    from PIL import Image

    own = threading.local()

    def turbo(paths: list[str]) -> int:
        if not hasattr(own, "pixels"):
            own.pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for path in paths:
            with open(path, "rb") as file:
                simplejpeg.decode_jpeg(file.read(), "RGB", buffer=own.pixels)
        return len(paths)

    def pillow(paths: list[str]) -> int:
        for path in paths:
            with Image.open(path) as image:
                image.load()
        return len(paths)

    parts = [files[begin : begin + 16] for begin in range(0, len(files), 16)]
    return {
        "decode limit": Contender(lambda: sum(pool.map(turbo, parts))),
        "Pillow": Contender(lambda: sum(pool.map(pillow, parts))),
    }


class Ours:
    """The packed file and the ways to read it."""

    def __init__(self, tree: Path, cache: Path) -> None:
        import hvdtrain.keras as hk
        from hvdtrain.data.folders import scan

        os.environ["HVDTRAIN_CACHE"] = str(cache)
        self._cache, self._tree, self._world = cache, scan(tree), hk.init("single")
        self.first_epoch()

    def forget(self) -> None:
        """What was packed before."""
        self._pixels: Any = None
        shutil.rmtree(self._cache, ignore_errors=True)

    def first_epoch(self) -> int:
        from hvdtrain.data.packed import pack

        self._packed = pack(self._tree, SIZE, self._world, lambda value: [value])
        return len(self._tree.files)

    def read_limit(self, pool: ThreadPoolExecutor) -> Contender:
        pixels, order = np.asarray(self._packed.images), np.random.default_rng(0).permutation(len(self._tree.files))
        own = threading.local()

        def copy(rows: np.ndarray) -> int:
            if not hasattr(own, "batch"):
                own.batch = np.empty((BATCH, *pixels.shape[1:]), np.uint8)
            np.take(pixels, rows, axis=0, out=own.batch[: len(rows)], mode="clip")
            return len(rows)

        parts = [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]
        return Contender(lambda: sum(pool.map(copy, parts)))

    def epochs(self, augmented: bool) -> Callable[[str], int]:
        """A function that reads one epoch as "arrays" or "tensors"."""
        from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

        import hvdtrain.keras as hk
        from hvdtrain.data.affine import Affine, Augmented
        from hvdtrain.data.packed import Rows

        rows: Any = Rows(self._packed.images, self._packed.good)
        x = Augmented(rows, Affine(ZOOM, SHIFT, TURN, flip=True), seed=0) if augmented else rows
        loader = hk.loader(x, self._packed.labels, batch_size=BATCH, workers=CORES, max_queue_size=8)
        adapter = PyDatasetAdapter(loader)
        tensors = adapter.get_tf_dataset()

        def epoch(what: str) -> int:
            loader.start(loader.epoch + 1)
            batches: Iterator[Any] = (
                (loader[step] for step in range(len(loader))) if what == "arrays" else iter(tensors)
            )
            return sum(int(x.shape[0]) for x, _ in batches)

        return epoch

    def contenders(self, pool: ThreadPoolExecutor) -> dict[str, Contender]:
        import tensorflow as tf

        from hvdtrain.data.augment import RandomAffine

        plain, changed = self.epochs(augmented=False), self.epochs(augmented=True)
        layer = tf.function(RandomAffine(ZOOM, SHIFT, TURN, flip=True), reduce_retracing=True)
        order = np.random.default_rng(0).permutation(len(self._tree.files))
        parts = [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]

        def by_layer() -> int:
            return sum(int(layer(self._packed.images[rows], training=True).shape[0]) for rows in parts[:FEW])

        return {
            "first epoch": Contender(self.first_epoch, self.forget),
            "read limit": self.read_limit(pool),
            "cached, plain": Contender(lambda: plain("arrays")),
            "cached epoch": Contender(lambda: changed("arrays")),
            "cached, tensors": Contender(lambda: changed("tensors")),
            "Keras layer": Contender(by_layer),
        }


def generator(tree: Path, pool: ThreadPoolExecutor) -> Contender:
    """(a), in as many threads as ours."""
    from keras.src.legacy.preprocessing.image import ImageDataGenerator

    options = {"zoom_range": ZOOM, "width_shift_range": SHIFT, "height_shift_range": SHIFT}
    changes = ImageDataGenerator(**options, rotation_range=360 * TURN, horizontal_flip=True)
    flow = changes.flow_from_directory(str(tree), (SIZE, SIZE), batch_size=BATCH)
    return Contender(lambda: sum(pool.map(lambda index: len(flow[index][0]), range(min(FEW, len(flow))))))


def tf_data(tree: Path) -> Contender:
    """(b)"""
    import keras
    import tensorflow as tf

    layers = keras.layers
    flip, turn = layers.RandomFlip("horizontal"), layers.RandomRotation(TURN)
    augment = keras.Sequential([flip, turn, layers.RandomZoom(ZOOM), layers.RandomTranslation(SHIFT, SHIFT)])
    data = keras.utils.image_dataset_from_directory(str(tree), image_size=(SIZE, SIZE), batch_size=BATCH, verbose=False)
    data = data.map(lambda x, y: (augment(x, training=True), y), tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    few = data.take(FEW)
    return Contender(lambda: sum(int(x.shape[0]) for x, _ in few))


class _Files:
    def __init__(self, files: list[str]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        import torch
        from PIL import Image, ImageOps

        with Image.open(self._files[index]) as image:
            pixels = image.convert("RGB").resize((SIZE, SIZE))
        if index % 2:
            pixels = ImageOps.mirror(pixels)
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float()


def data_loader(files: list[str]) -> Contender:
    """(c)"""
    from torch.utils.data import DataLoader, RandomSampler

    options: dict[str, Any] = {"multiprocessing_context": "spawn", "persistent_workers": True}
    images = _Files(files)
    few = RandomSampler(images, num_samples=min(len(files), FEW * BATCH))
    loader = DataLoader(images, batch_size=BATCH, sampler=few, num_workers=CORES, **options)
    return Contender(lambda: sum(len(batch) for batch in loader))


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="64 images, one round")
    parser.add_argument("--json", type=Path, help="write the figures here too, and the table beside it (.md)")
    options = parser.parse_args()
    images, rounds = (64, 1) if options.tiny else (options.images, options.rounds)
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(CORES) as pool:
        tree = Path(place) / "tree"
        make_tree(tree, images)
        files = sorted(str(path) for path in tree.rglob("*.jpg"))
        contenders = {
            **decode_limits(files, pool),
            **Ours(tree, Path(place) / "cache").contenders(pool),
            "(a) generator": generator(tree, pool),
            "(b) tf.data": tf_data(tree),
            "(c) DataLoader": data_loader(files),
        }
        rates = measure(contenders, rounds)
    date, machine = f"{datetime.now(timezone.utc):%Y-%m-%d}", f"{CORES} cores, no GPU"
    title = f"{images:,} JPEGs of {SIZE} pixels, {machine}, {date}; medians of {rounds} rounds, contenders taking turns"
    text = table(rates, title)
    print(text)
    if options.json:
        facts = {"date": date, "machine": machine, "images": images, "size": SIZE, "batch": BATCH}
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
