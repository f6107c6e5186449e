"""Every way of computing the perceptron gives what numpy gives; the GPU kernels run in numba's simulator here."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from hvdtrain import engines
from hvdtrain.engines.host import NumpyEngine
from hvdtrain.errors import UserError

CHECK = """
import sys
import numpy as np
from hvdtrain import engines
from hvdtrain.engines.host import NumpyEngine
name, inputs, hidden, batch = sys.argv[1], *map(int, sys.argv[2:])
weights = engines.Weights.random(inputs, hidden, 10, seed=1)
rng = np.random.default_rng(0)
x, y = rng.random((batch, inputs), dtype=np.float32), rng.integers(0, 10, batch)
one, other = engines.create("numpy", weights), engines.create(name, weights)
for step in range(2):
    losses = one.step(x, y, 0.5), other.step(x, y, 0.5)
    assert abs(losses[0] - losses[1]) < 1e-5, losses
difference = max(np.abs(a - b).max() for a, b in zip(one.weights().arrays(), other.weights().arrays()))
moved = min(np.abs(a - b).max() for a, b in zip(one.weights().arrays(), weights.arrays()))
assert moved > 1e-3, "training changed nothing"
assert np.abs(one.logits(x) - other.logits(x)).max() < 1e-5
print(difference)
"""


# 34 and 33 are one more than a tile; 5 samples are less than one.
@pytest.mark.parametrize(
    ("name", "inputs", "hidden", "batch"),
    [("torch", 784, 64, 32), *((k, 34, 33, 5) for k in ("naive", "explicit", "tiled"))],
)
def test_an_engine_trains_as_numpy_does(name: str, inputs: int, hidden: int, batch: int) -> None:
    command = [sys.executable, "-c", CHECK, name, str(inputs), str(hidden), str(batch)]
    ended = subprocess.run(
        command,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    print(f"{name}: {ended.stdout.strip()}")
    assert float(ended.stdout) < 1e-5


def test_gradients_are_those_of_the_loss() -> None:
    """numpy's own backward pass against differences of its loss, in each kind of weight."""
    weights = engines.Weights.random(6, 5, 3, seed=2)
    rng = np.random.default_rng(1)
    x, y = rng.random((8, 6), dtype=np.float32), rng.integers(0, 3, 8)

    def loss(changed: engines.Weights) -> float:
        return engines.create("numpy", changed).step(x.astype(np.float64), y, 0.0)

    wide = engines.Weights(*(array.astype(np.float64) for array in weights.arrays()))
    engine = engines.create("numpy", wide)
    engine.step(x.astype(np.float64), y, 1.0)
    for part, (before, after) in enumerate(zip(wide.arrays(), engine.weights().arrays(), strict=True)):
        index = tuple(0 for _ in before.shape)
        sides = []
        for change in (1e-6, -1e-6):
            arrays = [array.copy() for array in wide.arrays()]
            arrays[part][index] += change
            sides.append(loss(engines.Weights(*arrays)))
        assert (before - after)[index] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-6)


def test_kernels_are_compiled_before_the_time_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba compiles a kernel when it is first started, which takes as long as hundreds of steps."""
    compiled = set()

    class Compiling(NumpyEngine):
        def step(self, x: np.ndarray, y: np.ndarray, lr: float) -> float:
            loss = super().step(x, y, lr)
            self.seconds.forward += 0 if "step" in compiled else 100
            compiled.add("step")
            return loss

        def logits(self, x: np.ndarray) -> np.ndarray:
            compiled.add("logits")
            return super().logits(x)

    monkeypatch.setitem(engines.ENGINES, "compiling", Compiling)  # type: ignore[arg-type]
    weights = engines.Weights.random(6, 5, 3, seed=2)
    x, y = np.ones((4, 6), np.float32), np.array([0, 1, 2, 0])
    engine = engines.create("compiling", weights, compiled_for=(x, y))
    assert compiled == {"step", "logits"}
    assert all(np.array_equal(a, b) for a, b in zip(engine.weights().arrays(), weights.arrays(), strict=True))
    engine.step(x, y, 0.5)
    assert engine.seconds.forward < 1


def test_an_engine_that_cannot_be_is_refused_with_the_reason() -> None:
    weights = engines.Weights.random(4, 3, 2)
    with pytest.raises(UserError, match='did you mean "tiled"'):
        engines.create("tiles", weights)
    ended = subprocess.run(
        [sys.executable, "-m", "hvdtrain.run", "mnist_mlp", "--data", "fashion-mnist", "--engine", "tiled"],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 2
    assert 'the engine "tiled" needs a GPU that numba can use' in ended.stderr
    assert "Traceback" not in ended.stderr
