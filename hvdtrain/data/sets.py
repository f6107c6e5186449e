"""Data sets that fit into memory, by name: images as bytes, with the split that their authors made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvdtrain.data import cifar
from hvdtrain.data.idx import read_idx
from hvdtrain.data.sources import locate
from hvdtrain.errors import UserError, nearest


@dataclass(frozen=True)
class ImageSet:
    """Images, uint8, shape (n, height, width, channels), and labels, int64, shape (n,).

    Attributes:
        classes: how many.
        synthetic: made up, so accuracy means nothing.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    synthetic: bool = False


#: What `load` knows.
NAMES = ("mnist", "fashion-mnist", "cifar10", "digits", "synthetic")


def load(name: str, data_dir: str | Path | None = None) -> ImageSet:
    """The data set `name`; "digits" comes with scikit-learn, "synthetic" is made up.

    Args:
        name: of `NAMES`.
        data_dir: folder that holds it; default: see `hvdtrain.data.sources.locate`.

    Raises:
        UserError: an unknown name, data that are not there (says how to get them), or damaged files.
    """
    if name not in NAMES:
        raise UserError(f'data set "{name}" is not one of {", ".join(NAMES)}{nearest(name, NAMES)}')
    if name == "digits":
        return _digits()
    if name == "synthetic":
        return synthetic()
    folder = locate(name, data_dir)
    return _cifar10(folder) if name == "cifar10" else _idx(folder)


def synthetic(n: int = 2048, shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, seed: int = 0) -> ImageSet:
    """Noise with a bright stripe whose place is the class: a network can learn it, and no accuracy on it means anything.

    Args:
        n: images for training; a quarter as many for the test.
        shape: height, width, channels.
    """
    rng = np.random.default_rng(seed)

    def part(number: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, classes, number)
        images = rng.integers(0, 128, (number, *shape), np.uint8)
        rows = labels * shape[0] // classes
        images[np.arange(number), rows] += 100
        return images, labels.astype(np.int64)

    x_train, y_train = part(n)
    x_test, y_test = part(max(1, n // 4))
    return ImageSet(x_train, y_train, x_test, y_test, classes, synthetic=True)


def _digits() -> ImageSet:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    return ImageSet(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), 10)


def _idx(folder: Path) -> ImageSet:
    parts: list[np.ndarray] = []
    for prefix in ("train", "t10k"):
        images, labels = (
            read_idx(_either(folder / f"{prefix}-{kind}-ubyte")) for kind in ("images-idx3", "labels-idx1")
        )
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise UserError(
                f"{folder}: {prefix} has images of shape {images.shape} and labels of shape {labels.shape}; they do not belong "
                "together"
            )
        parts += [images[..., None], labels.astype(np.int64)]
    x_train, y_train, x_test, y_test = parts
    return ImageSet(x_train, y_train, x_test, y_test, 10)


def _either(path: Path) -> Path:
    return path if path.exists() else path.with_name(f"{path.name}.gz")


def _cifar10(folder: Path) -> ImageSet:
    for below in ("", "cifar-10-batches-bin", "cifar-10-batches-py"):
        for (training, test), read in ((cifar.BINARY, cifar.read_binary), (cifar.PICKLED, cifar.read_pickled)):
            place = folder / below
            if all((place / name).exists() for name in (*training, test)):
                batches = [read(place / name) for name in training]
                x_train, y_train = (np.concatenate(part) for part in zip(*batches, strict=True))
                x_test, y_test = read(place / test)
                return ImageSet(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), 10)
    raise AssertionError("located, but not there")
