"""One network, a perceptron with one hidden layer, computed in several ways that can be timed against each other.

    engine = engines.create("tiled", weights)
    loss = engine.step(x, y, lr=0.1)      # forward, backward, update; adds to engine.seconds
    engine.weights()                      # as arrays, to compare engines with

The published study left its backward pass without tiles, and its version with explicit memory gave wrong results, since device
memory was never cleared. Here each kernel writes every element that is read later, and the tests hold all engines against numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hvdtrain.errors import UserError, nearest


@dataclass
class Seconds:
    """Spent since the start, with the device's work finished."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True)
class Weights:
    """float32: `w1` (inputs, hidden), `b1` (hidden,), `w2` (hidden, classes), `b2` (classes,)."""

    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray

    @classmethod
    def random(cls, inputs: int, hidden: int, classes: int, seed: int = 0) -> Weights:
        """He initialisation (He et al. 2015, arXiv:1502.01852): normal with deviation sqrt(2 / inputs); no bias."""
        rng = np.random.default_rng(seed)

        def layer(n: int, m: int) -> np.ndarray:
            return np.asarray(rng.standard_normal((n, m)) * np.sqrt(2.0 / n), np.float32)

        return cls(
            layer(inputs, hidden), np.zeros(hidden, np.float32), layer(hidden, classes), np.zeros(classes, np.float32)
        )

    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of them, in order."""
        return self.w1, self.b1, self.w2, self.b2


class Engine(Protocol):
    """Trains one perceptron with plain SGD.

    Attributes:
        seconds: of forward and backward passes so far; the update counts as backward.
    """

    seconds: Seconds

    def step(self, x: np.ndarray, y: np.ndarray, lr: float) -> float:
        """One step on `x`, float32, shape (n, inputs), and labels `y`, shape (n,); returns the mean cross-entropy before it."""

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Shape (n, classes)."""

    def weights(self) -> Weights:
        """Copies of the present ones."""


def _numpy(weights: Weights) -> Engine:
    from hvdtrain.engines.host import NumpyEngine

    return NumpyEngine(weights)


def _torch(weights: Weights) -> Engine:
    from hvdtrain.engines.host import TorchEngine

    return TorchEngine(weights)


def _cuda(kind: str) -> Callable[[Weights], Engine]:
    def make(weights: Weights) -> Engine:
        from hvdtrain.engines.cuda import CudaEngine

        return CudaEngine(weights, kind)

    return make


#: By name: numpy (serial on the CPU), torch (CPU or GPU), and three ways to use a GPU by hand.
ENGINES: Mapping[str, Callable[[Weights], Engine]] = {
    "numpy": _numpy,
    "torch": _torch,
    "naive": _cuda("naive"),
    "explicit": _cuda("explicit"),
    "tiled": _cuda("tiled"),
}


def create(name: str, weights: Weights, compiled_for: tuple[np.ndarray, np.ndarray] | None = None) -> Engine:
    """The engine `name`, beginning with `weights`, which it copies.

    Args:
        compiled_for: a batch and its labels, on which another engine makes a step and is thrown away: kernels are compiled at their
            first start, which would count among the first step's seconds.

    Raises:
        UserError: unknown, or it needs a GPU or numba that is not there.
    """
    if name not in ENGINES:
        raise UserError(f'engine "{name}" is not one of {", ".join(ENGINES)}{nearest(name, ENGINES)}')
    if compiled_for is not None:
        once = ENGINES[name](weights)
        once.step(*compiled_for, lr=0.0)
        once.logits(compiled_for[0])
    return ENGINES[name](weights)


def accuracy(engine: Engine, x: Any, y: Any, batch: int = 1024) -> float:
    """Share of `x` whose largest logit is at its label."""
    hits = sum(
        int((engine.logits(x[i : i + batch]).argmax(1) == y[i : i + batch]).sum()) for i in range(0, len(x), batch)
    )
    return hits / len(x)
