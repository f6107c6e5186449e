"""One affine pass does what the study's four changes do; on both backends, in a process of each, and in the loader's threads."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hvdtrain.data.affine import Affine, Augmented
from hvdtrain.data.packed import Rows

CHECK = """
import keras, numpy as np
from hvdtrain.data.augment import RandomAffine
from hvdtrain.errors import UserError
rng = np.random.default_rng(0)
x = rng.integers(0, 256, (64, 12, 10, 3), np.uint8)
numpy = keras.ops.convert_to_numpy

def same(layer, training=True):
    return numpy(layer(x, training=training))

assert (same(RandomAffine(0.2, 0.2, 0.05, True, seed=1), training=False) == x).all(), "changed outside training"
plain = same(RandomAffine())
assert plain.dtype == np.uint8
assert (plain == x).all(), "nothing asked, something done"
flipped = same(RandomAffine(flip=True, seed=1))
mirrored = (flipped == x[:, :, ::-1]).all((1, 2, 3))
kept = (flipped == x).all((1, 2, 3))
assert (mirrored ^ kept).all() and 16 < mirrored.sum() < 48, mirrored.sum()
# A quarter turn, a shift by whole pixels and a zoom by two, of maps that are given.
square = x[:, :10]
class Given(RandomAffine):
    def transforms(self, n, height, width):
        full = super().transforms(n, height, width)
        return keras.ops.convert_to_tensor(np.tile(np.array(self.row, "float32"), (64, 1)))
layer = Given()
layer.row = [1, 0, 2, 0, 1, 0, 0, 0]
moved = numpy(layer(square, training=True))
assert (moved[:, :, :-2] == square[:, :, 2:]).all() and (moved[:, :, -1] == square[:, :, -1]).all()
# The random maps are what they are documented to be.
layer = RandomAffine(zoom=0.2, shift=0.1, rotation=0.05, flip=True, seed=3)
maps = numpy(layer.transforms(4000, 20, 40)).astype("float64")
a0, a1, a2, b0, b1, b2 = maps[:, :6].T
scale = np.hypot(a1, b1)
assert 1 / 1.2 - 1e-4 < scale.min() < 0.85 and 1.2 < scale.max() < 1 / 0.8 + 1e-4, (scale.min(), scale.max())
angle = np.arctan2(-a1, b1)
assert 0.3 < np.abs(angle).max() < 0.05 * 2 * np.pi + 1e-4
middle = np.array([19.5, 9.5])
shift = np.stack([a0 * 19.5 + a1 * 9.5 + a2, b0 * 19.5 + b1 * 9.5 + b2], 1) - middle
assert np.abs(shift[:, 0]).max() < 4 + 1e-3 and np.abs(shift[:, 1]).max() < 2 + 1e-3
determinant = (a0 * b1 - a1 * b0) / scale**2
assert np.allclose(np.abs(determinant), 1, atol=1e-4) and abs((determinant < 0).mean() - 0.5) < 0.05
try:
    RandomAffine(zoom=1.5)
except UserError as error:
    assert "zoom=1.5 is not a share" in str(error)
model = keras.Sequential([keras.Input((12, 10, 3), dtype="uint8"), RandomAffine(0.1, 0.1), keras.layers.Rescaling(1 / 255)])
again = keras.Sequential.from_config(model.get_config(), custom_objects={"RandomAffine": RandomAffine})
assert again.layers[0].changes.zoom == 0.1
assert (same(RandomAffine(0.2, 0.2, 0.05, True, passive=True)) == x).all(), "the loader has changed them"
# OpenCV in the loader's threads does what the layer does, where both are given the same maps: here on a smooth picture.
from hvdtrain.data.affine import Affine, warp
y, z = np.mgrid[0:40, 0:30]
smooth = np.stack([y * 6, z * 8, (y * 3 + z * 4)], -1).astype("uint8")[None].repeat(64, 0)
maps = Affine(0.2, 0.2, 0.05, True).maps(rng.uniform(-1, 1, (64, 5)), 40, 30).astype("float32")
class Random(RandomAffine):
    def transforms(self, n, height, width):
        return keras.ops.convert_to_tensor(np.pad(maps, ((0, 0), (0, 2))))
by_layer = numpy(Random()(smooth, training=True)).astype(int)
by_opencv = np.empty_like(smooth)
for image, matrix, out in zip(smooth, maps.reshape(-1, 2, 3), by_opencv):
    warp(image, matrix, out)
assert np.abs(by_layer - by_opencv).max() <= 1, np.abs(by_layer - by_opencv).max()
assert (by_opencv != smooth).any((1, 2, 3)).all()
print("all as documented")
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_layer_does_what_it_says(backend: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "all as documented" in ended.stdout


def test_what_becomes_of_an_image_depends_on_seed_epoch_and_its_number_alone() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 20, 16, 3), np.uint8)
    images.setflags(write=False)  # as mapped from a file
    rows = Rows(images, np.arange(49, 9, -1))
    changed = Augmented(rows, Affine(zoom=0.2, shift=0.2, rotation=0.05, flip=True), seed=7)
    assert changed.shape == (40, 20, 16, 3)
    assert (changed[np.arange(40)] == rows[np.arange(40)]).all()
    whole = changed.in_epoch(3, np.arange(40))
    assert whole.dtype == np.uint8
    assert len(np.unique(whole.reshape(40, -1), axis=0)) == 40
    # In other batches, by threads side by side, with epochs between them, and by another process' object.
    with ThreadPoolExecutor(4) as pool:
        parts = [(epoch, np.arange(part, 40, 8)) for part in range(8) for epoch in (3, 4)]
        given = dict(zip(range(16), pool.map(lambda part: changed.in_epoch(*part), parts), strict=True))
    for number, (epoch, indices) in enumerate(parts):
        assert (given[number] == whole[indices]).all() == (epoch == 3)
    again = Augmented(rows, Affine(zoom=0.2, shift=0.2, rotation=0.05, flip=True), seed=7)
    assert (again.in_epoch(3, np.array([11])) == whole[11]).all()
    other = Augmented(rows, Affine(zoom=0.2, shift=0.2, rotation=0.05, flip=True), seed=8)
    assert (other.in_epoch(3, np.arange(40)) != whole).any((1, 2, 3)).all()


def test_the_loaders_maps_are_spread_as_the_layers_are() -> None:
    """The layer's own maps are checked above; both come from the same formula, so what remains is what is drawn."""
    changed = Augmented(Rows(np.empty((4000, 2, 2, 3), np.uint8), np.arange(4000)), Affine(), seed=1)
    draws = changed._draws(5)
    assert draws.shape == (4000, 5)
    assert (np.abs(draws) <= 1).all()
    assert np.abs(draws.mean(0)).max() < 0.05
    assert np.abs(draws.std(0) - 3**-0.5).max() < 0.02
    assert np.abs(np.corrcoef(draws.T) - np.eye(5)).max() < 0.06
