"""The perceptron in GPU kernels of one's own, written with numba: naive, with explicit memory, and with tiles in shared memory.

All three share the small kernels and differ in what the study compared: where arrays live, and how a matrix product is made.

naive     one thread per element of the product; arrays in unified memory, which moves by itself
explicit  the same kernels; arrays in device memory, copied by hand
tiled     32 x 32 tiles in shared memory, for the forward and the backward products; arrays in device memory

Without a GPU they run in numba's simulator (NUMBA_ENABLE_CUDASIM=1), to be checked, slowly.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from hvdtrain.engines import Seconds, Weights
from hvdtrain.errors import UserError

try:
    from numba import config, cuda, float32
except ImportError:
    raise UserError(
        "the engines naive, explicit and tiled need numba: pip install 'hvdtrain[kernels]' (and numba-cuda for a GPU)"
    ) from None

TILE = 32
_BLOCK = 128


# A product is C = op(A) @ op(B); a transposed operand is read with its indices exchanged, so nothing is copied.


@cuda.jit
def _product_naive(a, b, c, a_transposed, b_transposed):  # type: ignore[no-untyped-def]
    row, column = cuda.grid(2)
    if row >= c.shape[0] or column >= c.shape[1]:
        return
    inner = a.shape[0] if a_transposed else a.shape[1]
    total = float32(0.0)
    for k in range(inner):
        left = a[k, row] if a_transposed else a[row, k]
        right = b[column, k] if b_transposed else b[k, column]
        total += left * right
    c[row, column] = total


@cuda.jit
def _product_tiled(a, b, c, a_transposed, b_transposed):  # type: ignore[no-untyped-def]
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    row, column = cuda.blockIdx.y * TILE + i, cuda.blockIdx.x * TILE + j
    inner = a.shape[0] if a_transposed else a.shape[1]
    total = float32(0.0)
    for start in range(0, inner, TILE):
        # Beyond an edge a tile holds zeros, so every thread may take part in every sum and in every barrier.
        k = start + j
        if row < c.shape[0] and k < inner:
            left[i, j] = a[k, row] if a_transposed else a[row, k]
        else:
            left[i, j] = 0.0
        k = start + i
        if column < c.shape[1] and k < inner:
            right[i, j] = b[column, k] if b_transposed else b[k, column]
        else:
            right[i, j] = 0.0
        cuda.syncthreads()
        for k in range(TILE):
            total += left[i, k] * right[k, j]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@cuda.jit
def _add_bias(z, bias, rectify):  # type: ignore[no-untyped-def]
    index = cuda.grid(1)
    if index < z.size:
        row, column = index // z.shape[1], index % z.shape[1]
        value = z[row, column] + bias[column]
        z[row, column] = max(value, float32(0.0)) if rectify else value


@cuda.jit
def _softmax_slope(logits, labels, slope, losses):  # type: ignore[no-untyped-def]
    """One thread per sample: its loss, and the slope of the mean loss by its logits."""
    row = cuda.grid(1)
    if row >= logits.shape[0]:
        return
    largest = logits[row, 0]
    for column in range(1, logits.shape[1]):
        largest = max(largest, logits[row, column])
    total = float32(0.0)
    for column in range(logits.shape[1]):
        total += math.exp(logits[row, column] - largest)
    losses[row] = math.log(total) - (logits[row, labels[row]] - largest)
    for column in range(logits.shape[1]):
        hit = float32(1.0) if column == labels[row] else float32(0.0)
        slope[row, column] = (math.exp(logits[row, column] - largest) / total - hit) / logits.shape[0]


@cuda.jit
def _rectify_slope(slope, hidden):  # type: ignore[no-untyped-def]
    index = cuda.grid(1)
    if index < slope.size:
        row, column = index // slope.shape[1], index % slope.shape[1]
        if hidden[row, column] <= 0.0:
            slope[row, column] = 0.0


@cuda.jit
def _descend(weights, slope, lr):  # type: ignore[no-untyped-def]
    index = cuda.grid(1)
    if index < weights.size:
        row, column = index // weights.shape[1], index % weights.shape[1]
        weights[row, column] -= lr * slope[row, column]


@cuda.jit
def _descend_bias(bias, slope, lr):  # type: ignore[no-untyped-def]
    column = cuda.grid(1)
    if column < bias.size:
        total = float32(0.0)
        for row in range(slope.shape[0]):
            total += slope[row, column]
        bias[column] -= lr * total


class CudaEngine:
    """Implements `Engine`.

    Args:
        weights: to begin with.
        kind: "naive", "explicit" or "tiled".

    Raises:
        UserError: no GPU, and no simulator.
    """

    def __init__(self, weights: Weights, kind: str) -> None:
        self._simulated = bool(config.ENABLE_CUDASIM)
        if not self._simulated and not cuda.is_available():
            raise UserError(
                f'the engine "{kind}" needs a GPU that numba can use (python -m numba -s says why not); take "numpy" or "torch", '
                "or check the kernels slowly in the simulator: NUMBA_ENABLE_CUDASIM=1"
            )
        self._tiled, self._unified = kind == "tiled", kind == "naive"
        self.seconds = Seconds()
        self._w1, self._b1, self._w2, self._b2 = (self._sent(array) for array in weights.arrays())

    # --- memory ---

    def _empty(self, *shape: int, dtype: Any = np.float32) -> Any:
        if self._unified and not self._simulated:
            return cuda.managed_array(shape, dtype=dtype)
        return cuda.device_array(shape, dtype=dtype)

    def _sent(self, array: np.ndarray) -> Any:
        array = np.ascontiguousarray(array)
        if self._unified and not self._simulated:
            unified = cuda.managed_array(array.shape, dtype=array.dtype)
            unified[...] = array
            return unified
        return cuda.to_device(array)

    def _fetched(self, array: Any) -> np.ndarray:
        cuda.synchronize()
        # Of unified memory numba makes an array of numpy's that has a copy_to_host, which fails.
        return np.array(array if isinstance(array, np.ndarray) else array.copy_to_host())

    # --- kernels ---

    def _product(self, a: Any, b: Any, *, a_transposed: bool = False, b_transposed: bool = False) -> Any:
        rows = a.shape[1] if a_transposed else a.shape[0]
        columns = b.shape[0] if b_transposed else b.shape[1]
        c = self._empty(rows, columns)
        if self._tiled:
            grid = (-(-columns // TILE), -(-rows // TILE))
            _product_tiled[grid, (TILE, TILE)](a, b, c, a_transposed, b_transposed)
        else:
            grid = (-(-rows // 16), -(-columns // 16))
            _product_naive[grid, (16, 16)](a, b, c, a_transposed, b_transposed)
        return c

    def _each(self, kernel: Any, n: int, *arguments: Any) -> None:
        kernel[-(-n // _BLOCK), _BLOCK](*arguments)

    def _forward(self, x: Any) -> tuple[Any, Any]:
        hidden = self._product(x, self._w1)
        self._each(_add_bias, hidden.size, hidden, self._b1, True)
        logits = self._product(hidden, self._w2)
        self._each(_add_bias, logits.size, logits, self._b2, False)
        return hidden, logits

    def step(self, x: np.ndarray, y: np.ndarray, lr: float) -> float:
        began = time.perf_counter()
        rate = np.float32(lr)
        sent, labels = self._sent(x), self._sent(y.astype(np.int32))
        hidden, logits = self._forward(sent)
        slope, losses = self._empty(*logits.shape), self._empty(len(y))
        self._each(_softmax_slope, len(y), logits, labels, slope, losses)
        cuda.synchronize()
        forward = time.perf_counter()
        w2_slope = self._product(hidden, slope, a_transposed=True)
        hidden_slope = self._product(slope, self._w2, b_transposed=True)
        self._each(_rectify_slope, hidden_slope.size, hidden_slope, hidden)
        w1_slope = self._product(sent, hidden_slope, a_transposed=True)
        self._each(_descend, self._w2.size, self._w2, w2_slope, rate)
        self._each(_descend_bias, self._b2.size, self._b2, slope, rate)
        self._each(_descend, self._w1.size, self._w1, w1_slope, rate)
        self._each(_descend_bias, self._b1.size, self._b1, hidden_slope, rate)
        cuda.synchronize()
        self.seconds.forward += forward - began
        self.seconds.backward += time.perf_counter() - forward
        return float(self._fetched(losses).mean())

    def logits(self, x: np.ndarray) -> np.ndarray:
        return self._fetched(self._forward(self._sent(x))[1])

    def weights(self) -> Weights:
        return Weights(*(self._fetched(array) for array in (self._w1, self._b1, self._w2, self._b2)))
