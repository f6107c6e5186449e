"""Batches of weight 0, which only keep a rank in step with others that have samples: they leave no trace in statistics."""

from __future__ import annotations

_stands_in = False


def given(samples: int) -> None:
    """By a loader of training batches: the one that it gives now has so many samples that count."""
    global _stands_in
    _stands_in = samples == 0


def over() -> None:
    """The loader has no more: what else is trained on counts."""
    given(1)


def stands_in() -> bool:
    """Whether the training batch that was given last counts for nothing."""
    return _stands_in
