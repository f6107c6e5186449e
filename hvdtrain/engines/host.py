"""The perceptron in numpy, which is what the others are held against, and in PyTorch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hvdtrain.engines import Seconds, Weights


class NumpyEngine:
    """Implements `Engine` with numpy; set OMP_NUM_THREADS=1 for the serial program of the study."""

    def __init__(self, weights: Weights) -> None:
        self.seconds = Seconds()
        self._w1, self._b1, self._w2, self._b2 = (array.copy() for array in weights.arrays())

    def _forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(x @ self._w1 + self._b1, 0)
        return hidden, hidden @ self._w2 + self._b2

    def step(self, x: np.ndarray, y: np.ndarray, lr: float) -> float:
        began = time.perf_counter()
        hidden, logits = self._forward(x)
        shifted = logits - logits.max(1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(1, keepdims=True)
        rows = np.arange(len(y))
        loss = float((np.log(sums[:, 0]) - shifted[rows, y]).mean())
        forward = time.perf_counter()
        slope = exponentials / sums
        slope[rows, y] -= 1
        slope /= len(y)
        hidden_slope = (slope @ self._w2.T) * (hidden > 0)
        self._w2 -= lr * (hidden.T @ slope)
        self._b2 -= lr * slope.sum(0)
        self._w1 -= lr * (x.T @ hidden_slope)
        self._b1 -= lr * hidden_slope.sum(0)
        self.seconds.forward += forward - began
        self.seconds.backward += time.perf_counter() - forward
        return loss

    def logits(self, x: np.ndarray) -> np.ndarray:
        return self._forward(x)[1]

    def weights(self) -> Weights:
        return Weights(self._w1.copy(), self._b1.copy(), self._w2.copy(), self._b2.copy())


class TorchEngine:
    """Implements `Engine` with PyTorch's autograd, on the GPU where there is one."""

    def __init__(self, weights: Weights) -> None:
        import torch

        self._torch = torch
        self.seconds = Seconds()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._parameters = [torch.tensor(array, device=self._device, requires_grad=True) for array in weights.arrays()]

    def _forward(self, x: np.ndarray) -> Any:
        w1, b1, w2, b2 = self._parameters
        sent = self._torch.from_numpy(np.ascontiguousarray(x)).to(self._device)
        return self._torch.relu(sent @ w1 + b1) @ w2 + b2

    def _wait(self) -> float:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()
        return time.perf_counter()

    def step(self, x: np.ndarray, y: np.ndarray, lr: float) -> float:
        torch = self._torch
        began = self._wait()
        labels = torch.from_numpy(np.ascontiguousarray(y)).to(self._device)
        loss = torch.nn.functional.cross_entropy(self._forward(x), labels)
        forward = self._wait()
        slopes = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            for parameter, slope in zip(self._parameters, slopes, strict=True):
                parameter -= lr * slope
        self.seconds.forward += forward - began
        self.seconds.backward += self._wait() - forward
        return float(loss.detach())

    def logits(self, x: np.ndarray) -> np.ndarray:
        with self._torch.no_grad():
            result: np.ndarray = self._forward(x).cpu().numpy()
        return result

    def weights(self) -> Weights:
        return Weights(*(parameter.detach().cpu().numpy().copy() for parameter in self._parameters))
