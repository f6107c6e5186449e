"""The contenders of `input_pipeline.py`: each makes images, and is told apart there."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

# Started as a file, only its own folder is on the path; from a checkout without installation the rest is beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BATCH, SIZE, CLASSES, CORES = 32, 224, 20, len(os.sched_getaffinity(0))
ZOOM, SHIFT, TURN = 0.2, 0.2, 0.05
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
