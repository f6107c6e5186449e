"""What a batch weighs in a mean loss over several: with padding or class weights not the number of its samples.

A mean over tokens divides by the tokens that are not padding, one with class weights by the weights of the classes that came. The
mean of two ranks' means is then not the mean over both, unless each counts for what it was divided by.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain._torch.start import sum_over_ranks
from hvdtrain.errors import UserError, agreed

#: Of a batch's target: what its mean loss was divided by.
Weigh = Callable[[Any], float]
_FUNCTIONS = (nn.functional.cross_entropy, nn.functional.nll_loss)
_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)
#: What they ignore where nothing else is said.
_IGNORED = -100


class LossWeight:
    """By a `weigh` of the user's, else by what the loss is known to divide by, else by samples.

    Args:
        loss: of (output, target).
        weigh: None for what the loss itself tells: cross entropy and negative log-likelihood, as a module, as the function, or as a
            partial of it.

    Raises:
        UserError: a module made of one of these, with class weights or an ignored class, and no `weigh`.
    """

    def __init__(self, loss: Any, weigh: Weigh | None = None) -> None:
        #: One that is known has been given another forward: what that may ignore is looked for in targets.
        self._looks = weigh is None and isinstance(loss, _MODULES) and not _as_its_parent(loss)
        if self._looks:
            _refuse_to_guess(loss)
        self._loss = loss
        self._weigh = weigh
        self._unit: float | None = None
        self._class_weights: tuple[torch.Tensor, int, torch.Tensor] | None = None

    def __call__(self, target: Any, samples: int) -> float | None:
        """Of a batch of which `samples` count, all of it or none; None: as many as samples.

        A target on a GPU would have to be waited for: with neither class weights nor an `ignore_index` it is not looked at there.

        Raises:
            UserError: the user's function gives no number, or a negative one; or there is none, and a loss with a forward of its
                own may ignore some of the target.
        """
        if self._weigh is not None:
            return _checked(self._weigh(target)) if samples else 0.0
        if self._looks:
            self._look_at(target)
        known = _known(self._loss)
        if known is None or not isinstance(target, torch.Tensor) or target.is_floating_point():
            return None
        class_weights, ignored = known
        if class_weights is None and ignored < 0 and target.is_cuda:
            return None
        if not samples:
            return 0.0
        if class_weights is None and target.is_cpu:
            return float(np.count_nonzero(target.numpy() != ignored))  # for few samples faster than torch
        counts = target != ignored
        if class_weights is None:
            return float(counts.sum())
        return float(self._beside(target, class_weights)[target[counts]].sum())

    def _look_at(self, target: Any) -> None:
        """Refuse what a loss with a forward of its own may ignore; on a GPU, where looking waits, only the first target is seen."""
        if not isinstance(target, torch.Tensor) or target.is_floating_point():
            return
        if bool((target == _IGNORED).any()):
            raise _unclear(self._loss, f"the target has {_IGNORED}, which {type(self._loss).__name__} may ignore")
        self._looks = not target.is_cuda

    def unit(self, target: Any, weight: float, samples: int) -> float:
        """What weights are given in while gradients travel; all ranks must ask together the first time.

        It keeps gradients about as large as they are, whatever a sample weighs, and is a power of two, which changes no digit.
        """
        if self._unit is None:
            if self._weigh is None and target.ndim == 1:
                self._unit = 1.0
            else:
                total, count = sum_over_ranks([weight, samples])
                self._unit = 2.0 ** round(math.log2(total / count)) if total > 0 else 1.0
        return self._unit

    def _beside(self, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Class weights where the target is; copied once, for a copy from a GPU waits for all that it has to do."""
        if (kept := self._class_weights) is not None:
            given, version, copy = kept
            if given is weights and version == weights._version and copy.device == target.device:
                return copy
        copy = weights.detach().to(target.device, torch.float64, copy=True)
        self._class_weights = (weights, weights._version, copy)
        return copy


def adds_up(loss: Any) -> bool:
    """Is it known to be the sum over a batch, not its mean?"""
    given = loss.keywords.get("reduction") if isinstance(loss, functools.partial) else getattr(loss, "reduction", None)
    return bool(given == "sum")


def _as_its_parent(loss: nn.Module) -> bool:
    """Does it compute what torch's cross entropy or negative log-likelihood does? One that descends from them may not."""
    return type(loss).forward in [each.forward for each in _MODULES]


def _refuse_to_guess(loss: Any) -> None:
    """What was made of a loss that is known may still divide by what that one does, and nobody can tell."""
    if loss.weight is not None or loss.ignore_index != _IGNORED:
        raise agreed(_unclear(loss, f"{type(loss).__name__} has {'ignore_index' if loss.weight is None else 'weight'}"))


def _unclear(loss: Any, why: str) -> UserError:
    """Guessed wrongly, several ranks would train to another end than one, without a word."""
    return UserError(
        f"{type(loss).__name__} has a forward of its own, so nobody can tell what its mean is divided by, and {why}. Say what a "
        "batch counts for: loss_weight=len for its samples, or a function of the target, such as "
        f"lambda target: (target != {loss.ignore_index}).sum() for what is not ignored"
    )


def _known(loss: Any) -> tuple[torch.Tensor | None, int] | None:
    """Class weights and the ignored class of a loss that divides by what they leave."""
    if isinstance(loss, _MODULES):
        if not _as_its_parent(loss):
            return None  # it may divide by anything
        return (loss.weight, loss.ignore_index) if loss.reduction == "mean" else None
    function, options = (loss.func, loss.keywords) if isinstance(loss, functools.partial) else (loss, {})
    if function not in _FUNCTIONS or options.get("reduction", "mean") != "mean":
        return None
    return options.get("weight"), options.get("ignore_index", _IGNORED)


def _checked(weight: Any) -> float:
    try:
        found = float(weight)
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise UserError(
            f"loss_weight gave {weight!r} for a batch: it must be a number of 0 or more, such as how many tokens count"
        )
    return found
