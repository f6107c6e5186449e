"""The studies' augmentation, zoom, shift, rotation and flip, as random affine maps; and their way through the CPU.

    changed = Augmented(rows, Affine(zoom=0.2, shift=0.2, rotation=0.05, flip=True), seed=7)
    changed.in_epoch(3, np.array([5, 8]))        # uint8, shape (2, height, width, 3)

What becomes of an image depends on seed, epoch and its number alone: not on the number of ranks, the batch, or where a run was
interrupted. On a GPU the same maps are drawn by `hvdtrain.data.augment.RandomAffine`.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from hvdtrain.data.packed import Rows
from hvdtrain.errors import UserError

#: Numbers that a map is made of: zoom, rotation, shift to the right, shift down, flip.
DRAWS = 5
#: Keeps these numbers apart from the order of the samples, which comes from (seed, epoch).
_STREAM = 0xAFF1


@dataclass(frozen=True)
class Affine:
    """How much images are changed.

    Args:
        zoom: largest change of scale, as a share: 0.2 for 0.8 to 1.2.
        shift: largest way in each direction, as a share of the edge.
        rotation: largest angle in either direction, as a share of a full turn.
        flip: left and right exchanged, every other time.

    Raises:
        UserError: a share that is not in [0, 1).
    """

    zoom: float = 0.0
    shift: float = 0.0
    rotation: float = 0.0
    flip: bool = False

    def __post_init__(self) -> None:
        for name in ("zoom", "shift", "rotation"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} is not a share in [0, 1)")

    def maps(self, draws: Any, height: int, width: int, ops: ModuleType = np) -> Any:
        """From pixels of the result to those of the image, about its middle: (a0, a1, a2, b0, b1, b2), shape (n, 6).

        Pixel (x, y) of the result is taken from (a0 x + a1 y + a2, b0 x + b1 y + b2).

        Args:
            draws: uniform in [-1, 1), shape (n, 5).
            ops: what computes: numpy, or keras.ops.
        """
        scale = 1.0 / (1.0 + draws[:, 0] * self.zoom)
        angle = draws[:, 1] * (self.rotation * 2 * math.pi)
        right, down = draws[:, 2] * (self.shift * width), draws[:, 3] * (self.shift * height)
        one = ops.ones_like(scale)
        mirror = ops.where(draws[:, 4] < 0, -one, one) if self.flip else one
        cosine, sine = ops.cos(angle) * scale, ops.sin(angle) * scale
        # x_in = middle + A (x_out - middle) + shift.
        x, y = (width - 1) / 2, (height - 1) / 2
        a0, a1, b0, b1 = cosine * mirror, -sine, sine * mirror, cosine
        return ops.stack([a0, a1, x - a0 * x - a1 * y + right, b0, b1, y - b0 * x - b1 * y + down], axis=1)


class Augmented:
    """Images that differ from epoch to epoch, for loaders; indexed as usual, they are what they were.

    Args:
        rows: uint8, shape (n, height, width, 3).
        seed: the same on every rank.
    """

    def __init__(self, rows: Rows, changes: Affine, seed: int) -> None:
        self._rows, self._changes, self._seed = rows, changes, seed
        self.shape, self.dtype = rows.shape, rows.dtype
        self._drawn: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._rows[index]

    def in_epoch(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """The images `indices` as `epoch` has them. Threads may call it side by side."""
        height, width = self.shape[1:3]
        maps = self._changes.maps(self._draws(epoch)[indices], height, width)
        batch = self._rows.empty(len(indices))
        for index, matrix, out in zip(indices, maps.reshape(-1, 2, 3), batch, strict=True):
            warp(self._rows.view(index), matrix, out)
        return batch

    def _draws(self, epoch: int) -> np.ndarray:
        drawn = self._drawn
        if drawn is None or drawn[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch, _STREAM])
            drawn = self._drawn = (epoch, generator.random((len(self), DRAWS)) * 2 - 1)
        return drawn[1]


class _Scratch(threading.local):
    """Two images of four channels for each thread."""

    shape: tuple[int, int] = (0, 0)

    def of(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        if shape != self.shape:
            self.shape = shape
            self._pair = np.empty((*shape, 4), np.uint8), np.empty((*shape, 4), np.uint8)
        return self._pair


_scratch = _Scratch()


def warp(image: np.ndarray, matrix: np.ndarray, out: np.ndarray) -> None:
    """`image` under a map of `Affine.maps` into `out`; both uint8, shape (height, width, 3), contiguous. Lets other threads run.

    Between pixels it interpolates linearly; what lies outside takes the nearest edge pixel.
    """
    cv2 = opencv()
    before, after = _scratch.of(image.shape[:2])
    # OpenCV moves pixels of four bytes more than twice as fast as those of three, the way there and back included.
    cv2.cvtColor(image, cv2.COLOR_RGB2RGBA, dst=before)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    cv2.warpAffine(before, matrix, before.shape[1::-1], dst=after, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    cv2.cvtColor(after, cv2.COLOR_RGBA2RGB, dst=out)


_opencv: Any = None


def opencv() -> Any:
    """The module, with one thread for each call: the loader's threads are the parallel ones.

    Raises:
        UserError: it is not installed.
    """
    global _opencv
    if _opencv is None:
        try:
            import cv2
        except ImportError as error:
            raise UserError(
                f"images are changed by OpenCV where there is no GPU: {error}. Type: pip install 'hvdtrain[data]'"
            ) from None
        cv2.setNumThreads(1)
        _opencv = cv2
    return _opencv
