"""Models and samples that the jobs of these tests share."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 5
TOKENS = 3
WORDS = 40


class Branching(nn.Module):
    """`rare` is used only for samples whose first feature exceeds 1.5, `never` not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, CLASSES)
        self.rare = nn.Linear(8, CLASSES)
        self.never = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[:, 0] > 1.5
        output = self.base(x)
        if chosen.any():
            output = output + chosen[:, None] * self.rare(x)
        return output


class Words(nn.Module):
    """Sparse embeddings; `rare` is looked up only where a sample's first word is below 3, so on some ranks in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Embedding(WORDS, CLASSES, sparse=True)
        self.rare = nn.EmbeddingBag(WORDS, CLASSES, sparse=True)
        self.never = nn.Embedding(WORDS, CLASSES, sparse=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        output = self.common(words).mean(dim=1)
        chosen = words[:, 0] < 3
        if chosen.any():
            output = output.index_add(0, chosen.nonzero()[:, 0], self.rare(words[chosen]))
        return output


class Spectral(nn.Module):
    """A filter of complex numbers, whose gradient is one of them conjugated, and a scale without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.rand(()) + 0.5)
        self.output = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filtered: torch.Tensor = torch.fft.irfft(torch.fft.rfft(x) * self.filter.conj(), n=8) * self.scale
        output: torch.Tensor = self.output(filtered)
        return output


class Focal(nn.CrossEntropyLoss):
    """A mean over samples, whatever its parent divides by."""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        each = nn.functional.cross_entropy(input, target, weight=self.weight, reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def convolution(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    """With batch-norms over four and two dimensions; takes samples of 8 features."""
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)),
        nn.Conv2d(2, 4, 2, padding=1),
        norm(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(36, 8),
        norm(8),
        nn.Linear(8, CLASSES),
    )


def samples(n: int, seed: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    return TensorDataset(x.to(dtype), torch.randint(0, CLASSES, (n,), generator=generator))


def texts(n: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (n, 4), generator=generator)
    return TensorDataset(words, torch.randint(0, CLASSES, (n,), generator=generator))


def tokens(of: TensorDataset, padding: int) -> TensorDataset:
    """The same inputs, each with a row of `TOKENS` classes, shape (n, TOKENS), of which most are padding, in many rows all."""
    x, generator = of.tensors[0], torch.Generator().manual_seed(len(of))
    length = torch.randint(-TOKENS, TOKENS + 1, (len(of), 1), generator=generator)
    target = torch.randint(0, CLASSES, (len(of), TOKENS), generator=generator)
    return TensorDataset(x, torch.where(torch.arange(TOKENS) < length, target, padding))
