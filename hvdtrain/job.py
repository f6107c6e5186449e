"""The options that every job understands, so that `submit` can set them on any job."""

from __future__ import annotations

import argparse

from hvdtrain import lr

#: What `parser` adds. A grid axis of `submit` is one of these, or an option that the job adds itself.
STANDARD_OPTIONS = ("--epochs", "--batch-size", "--lr", "--lr-rule", "--warmup-epochs", "--seed")


def parser(
    description: str | None,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    lr_rule: str = "linear",
    warmup_epochs: float = 0.0,
) -> argparse.ArgumentParser:
    """An argument parser with the standard options; the keyword arguments are the job's defaults."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    result.add_argument("--epochs", type=_positive_int, default=epochs, help="passes over the training data")
    result.add_argument("--batch-size", type=_positive_int, default=batch_size, help="samples per rank and step")
    result.add_argument("--lr", type=_positive_float, default=lr, help="learning rate of one rank, before scaling")
    result.add_argument("--lr-rule", choices=_rules(), default=lr_rule, help="how it grows with the number of ranks")
    result.add_argument("--warmup-epochs", type=_not_negative, default=warmup_epochs, help="epochs to reach that rate")
    result.add_argument("--seed", type=int, default=0, help="of initial weights and data order")
    return result


def _rules() -> list[str]:
    return sorted(lr.RULES)


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value
