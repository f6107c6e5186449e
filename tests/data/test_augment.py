"""One affine pass does what the study's four changes do; on both backends, in a process of each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
assert again.layers[0].zoom == 0.1
print("all as documented")
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_layer_does_what_it_says(backend: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "all as documented" in ended.stdout
