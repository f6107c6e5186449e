"""The options that every job understands, so that `submit` can set them on any job."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hvdtrain import lr

Number = TypeVar("Number", int, float)

#: What `parser` adds. A grid axis of `submit` is one of these, or an option that the job adds itself.
STANDARD_OPTIONS = ("--epochs", "--batch-size", "--lr", "--lr-rule", "--warmup-epochs", "--seed")


def parser(
    description: str | None,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    lr_rule: str = "auto",
    warmup_epochs: float = 0.0,
    strategies: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """An argument parser with the standard options; the keyword arguments are the job's defaults.

    `strategies`: for a job that can average gradients in several ways, the legal values of `--strategy`, the default first.
    """
    result = argparse.ArgumentParser(description=description, formatter_class=_Help, allow_abbrev=False)
    result.add_argument("--epochs", type=positive_int, default=epochs, help="passes over the training data")
    result.add_argument("--batch-size", type=positive_int, default=batch_size, help="samples per rank and step")
    result.add_argument("--lr", type=positive_float, default=lr, help="learning rate of one rank, before scaling")
    result.add_argument("--lr-rule", choices=_rules(), default=lr_rule, help="how it grows with the number of ranks")
    result.add_argument("--warmup-epochs", type=not_negative, default=warmup_epochs, help="epochs to reach that rate")
    result.add_argument("--seed", type=natural, default=0, help="of initial weights and data order")
    if strategies:
        result.add_argument("--strategy", choices=strategies, default=strategies[0], help="what averages gradients")
    return result


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults after each option, but for those that say it themselves and for switches, which are off."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


def _rules() -> list[str]:
    return sorted(lr.CHOICES)


def positive_int(text: str) -> int:
    """For `add_argument(..., type=...)`, like those below: from 1 on."""
    return _checked(int, text, lambda value: value >= 1, "a positive whole number")


def natural(text: str) -> int:
    """From 0 on."""
    return _checked(int, text, lambda value: value >= 0, "a whole number from 0 on")


def positive_float(text: str) -> float:
    """Above 0, and not infinite."""
    return _checked(float, text, lambda value: 0 < value < math.inf, "a positive number")


def not_negative(text: str) -> float:
    """From 0 on, and not infinite."""
    return _checked(float, text, lambda value: 0 <= value < math.inf, "a number from 0 on")


def share(text: str) -> float:
    """From 0 to less than 1."""
    return _checked(float, text, lambda value: 0 <= value < 1, "a number from 0 to less than 1")


#: What `submit` knows when it reads a job, so that it refuses what the job would.
TYPES: Mapping[str, Callable[[str], float]] = {
    each.__name__: each for each in (positive_int, natural, positive_float, not_negative, share)
}


def _checked(convert: Callable[[str], Number], text: str, legal: Callable[[Number], bool], name: str) -> Number:
    try:
        value = convert(text)
    except ValueError:
        value = None
    if value is None or not legal(value):
        raise argparse.ArgumentTypeError(f"{text} is not {name}")
    return value
