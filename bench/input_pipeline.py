"""Images per second of the input pipeline: decoding once, then cached epochs with full augmentation, beside what users have.

    python bench/input_pipeline.py                     # 2,000 JPEGs of 224 pixels, 3 rounds, about 5 minutes on two cores
    python bench/input_pipeline.py --images 60 --rounds 1

Contenders take turns in one run; the medians over the rounds count. Nothing is trained: batches are made and thrown away.

    decode limit    Pillow's libjpeg-turbo on all cores: each file decoded, nothing kept
    first epoch     ours: decode, resize, write the packed file
    read limit      ours without augmentation: batches picked from the packed file
    cached epoch    ours: the same with zoom, shift, rotation and flip
    (a) generator   Keras' ImageDataGenerator from the folders, same augmentation
    (b) tf.data     image_dataset_from_directory with Keras' augmentation layers
    (c) DataLoader  torch's, Pillow in two workers, flip only
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

BATCH, SIZE, CLASSES = 32, 224, 20


def make_tree(root: Path, images: int) -> None:
    """JPEGs of 20 to 30 KB, as photographs of this size have."""
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


def _decode_only(paths: list[str]) -> int:
    from PIL import Image

    for path in paths:
        with Image.open(path) as image:
            image.load()
    return len(paths)


def decode_limit(files: list[str], pool: ProcessPoolExecutor) -> int:
    """All files once."""
    return sum(pool.map(_decode_only, [files[i::16] for i in range(16)]))


class Ours:
    """The packed file and the two ways to read it."""

    def __init__(self, tree: Path, cache: Path) -> None:
        import tensorflow as tf

        from hvdtrain.data.augment import RandomAffine
        from hvdtrain.data.folders import scan
        from hvdtrain.world import detect

        os.environ["HVDTRAIN_CACHE"] = str(cache)
        self._cache, self._tree, self._world = cache, scan(tree), detect()
        layer = RandomAffine(zoom=0.2, shift=0.2, rotation=0.05, flip=True)
        self._augment = tf.function(lambda images: layer(images, training=True), reduce_retracing=True)
        self.packed: Any = None

    def first_epoch(self) -> int:
        from hvdtrain.data.packed import pack

        shutil.rmtree(self._cache, ignore_errors=True)
        self.packed = pack(self._tree, SIZE, self._world, lambda value: [value])
        return len(self._tree.files)

    def _batches(self) -> Iterator[np.ndarray]:
        order = np.random.default_rng(0).permutation(len(self._tree.files))
        for begin in range(0, len(order), BATCH):
            yield self.packed.images[order[begin : begin + BATCH]]

    def read(self) -> int:
        return sum(len(batch) for batch in self._batches())

    def cached_epoch(self) -> int:
        return sum(int(self._augment(batch).shape[0]) for batch in self._batches())


def generator(tree: Path) -> int:
    """(a)"""
    from keras.src.legacy.preprocessing.image import ImageDataGenerator

    options = {
        "zoom_range": 0.2,
        "width_shift_range": 0.2,
        "height_shift_range": 0.2,
        "rotation_range": 18,
        "horizontal_flip": True,
    }
    flow = ImageDataGenerator(**options).flow_from_directory(str(tree), (SIZE, SIZE), batch_size=BATCH)
    return sum(len(flow[index][0]) for index in range(len(flow)))


def tf_data(tree: Path) -> int:
    """(b)"""
    import keras
    import tensorflow as tf

    layers = keras.layers
    flip, turn = layers.RandomFlip("horizontal"), layers.RandomRotation(0.05)
    augment = keras.Sequential([flip, turn, layers.RandomZoom(0.2), layers.RandomTranslation(0.2, 0.2)])
    data = keras.utils.image_dataset_from_directory(str(tree), image_size=(SIZE, SIZE), batch_size=BATCH, verbose=False)
    data = data.map(lambda x, y: (augment(x, training=True), y), tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return sum(int(x.shape[0]) for x, _ in data)


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


def data_loader(files: list[str]) -> int:
    """(c)"""
    from torch.utils.data import DataLoader

    loader = DataLoader(_Files(files), batch_size=BATCH, shuffle=True, num_workers=2, multiprocessing_context="spawn")
    return sum(len(batch) for batch in loader)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, ProcessPoolExecutor(os.cpu_count()) as pool:
        tree = Path(place) / "tree"
        make_tree(tree, options.images)
        files = sorted(str(path) for path in tree.rglob("*.jpg"))
        ours = Ours(tree, Path(place) / "cache")
        contenders: dict[str, Callable[[], int]] = {
            "decode limit": lambda: decode_limit(files, pool),
            "first epoch": ours.first_epoch,
            "read limit": ours.read,
            "cached epoch": ours.cached_epoch,
            "(a) generator": lambda: generator(tree),
            "(b) tf.data": lambda: tf_data(tree),
            "(c) DataLoader": lambda: data_loader(files),
        }
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(options.rounds):
            for name, run in contenders.items():
                began = time.perf_counter()
                done = run()
                rates[name].append(done / (time.perf_counter() - began))
                print(f"round {number + 1}: {name:<15} {rates[name][-1]:9,.0f} images/s", file=sys.stderr, flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {
        "first epoch / decode limit": medians["first epoch"] / medians["decode limit"],
        "cached epoch / read limit": medians["cached epoch"] / medians["read limit"],
        "cached epoch / (a)": medians["cached epoch"] / medians["(a) generator"],
        "cached epoch / (b)": medians["cached epoch"] / medians["(b) tf.data"],
        "cached epoch / (c)": medians["cached epoch"] / medians["(c) DataLoader"],
    }
    print(f"{options.images} JPEGs of {SIZE} pixels, {os.cpu_count()} cores, median of {options.rounds} rounds")
    for name, value in medians.items():
        print(f"{name:<28} {value:10,.0f} images/s   ({min(rates[name]):,.0f} to {max(rates[name]):,.0f})")
    for name, value in ratios.items():
        print(f"{name:<28} {value:10.2f}")
    if options.json:
        facts = {"images": options.images, "cores": os.cpu_count(), "machine": platform.machine()}
        options.json.write_text(
            json.dumps({**facts, "images_per_s": rates, "medians": medians, "ratios": ratios}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
