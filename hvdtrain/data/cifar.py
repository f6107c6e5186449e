"""Read CIFAR-10 as its authors publish it: the binary version and the Python version (pickled)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import IO, Any

import numpy as np

from hvdtrain.errors import UserError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXELS = 3 * 32 * 32
#: Files of each version: five for training, one for the test.
BINARY = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"
PICKLED = tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch"


def read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, shape (n, 32, 32, 3), and labels, shape (n,), of one file: rows of one byte label and 3,072 bytes colour planes.

    Raises:
        UserError: it cannot be read or is truncated.
    """
    try:
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if raw.size == 0 or raw.size % (1 + _PIXELS):
        raise UserError(
            f"{path} holds {raw.size:,} bytes, which are no whole number of images of {1 + _PIXELS:,}: it is damaged"
        )
    rows = raw.reshape(-1, 1 + _PIXELS)
    return _images(rows[:, 1:]), _labels(rows[:, 0], path)


def read_pickled(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """As `read_binary`, from one file of the Python version. Unpickles arrays and plain values only: nothing else is run.

    Raises:
        UserError: it cannot be read, asks for anything else, or holds no images.
    """
    try:
        with open(path, "rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        data, labels = np.asarray(content[b"data"], np.uint8), np.asarray(content[b"labels"], np.uint8)
        if data.ndim != 2 or data.shape != (len(labels), _PIXELS):
            raise ValueError(f"its data have the shape {data.shape}")
    except (OSError, EOFError, pickle.UnpicklingError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no batch of CIFAR-10's Python version: {error or type(error).__name__}") from None
    return _images(data), _labels(labels, path)


def _images(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.size and labels.max() >= len(CLASSES):
        raise UserError(f"{path} has a label {labels.max()}; CIFAR-10 has {len(CLASSES)} classes: it is damaged")
    return np.array(labels)


class _ArraysOnly(pickle.Unpickler):
    _LEGAL = (("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"))

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        super().__init__(file, encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        last = module.rpartition(".")[2]
        if (last, name) not in self._LEGAL or module.split(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        # The files are older than numpy's present layout.
        return super().find_class("numpy._core.multiarray" if last == "multiarray" else module, name)
