"""Learning-rate scaling rules, warm-up, schedules, and the table of rates that follows, as pure functions.

With N ranks the batch is N times larger, so a step may be larger too. The rate in a step is the product

    rate of one rank  x  scale(rule, N)  x  warm-up  x  schedule (of the epoch, see `hvdtrain.schedule`)

Rules:
    none      the rate stays.
    linear    x N: for SGD (Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, arXiv:1706.02677),
              who also warm up from the unscaled rate, because early in training the rule does not hold.
    sqrt      x sqrt(N): keeps the variance of the update constant (Krizhevsky, "One weird trick", 2014, arXiv:1404.5997), and is
              what follows for adaptive optimizers (Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
              Algorithms", 2022, arXiv:2205.10287).
    adascale  x a gain between 1 and N that is measured in each step from how much the ranks' gradients agree (Johnson et al.,
              "AdaScale SGD", 2020, arXiv:2007.05105); for SGD. It needs no warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hvdtrain.errors import nearest
from hvdtrain.schedule import Plateau, Schedule, constant, cosine, exponential, milestones, step

__all__ = [
    "AUTO",
    "CHOICES",
    "RULES",
    "AdaScale",
    "Plateau",
    "RateRow",
    "Schedule",
    "check",
    "constant",
    "cosine",
    "default_rule",
    "describe",
    "exponential",
    "milestones",
    "rate",
    "resolve",
    "scale",
    "step",
    "table",
    "warmup_factor",
]

RULES: Mapping[str, Callable[[int], float]] = {
    "none": lambda size: 1.0,
    "linear": lambda size: float(size),
    "sqrt": lambda size: math.sqrt(size),
    # Its gain is not known before a gradient is.
    "adascale": lambda size: 1.0,
}
#: Take the rule that suits the optimizer: `default_rule`.
AUTO = "auto"
#: What a user may ask for.
CHOICES = (AUTO, *RULES)

#: Optimizers whose step is proportional to the gradient, by lower-case class name.
_SGD_LIKE = frozenset({"sgd", "asgd", "nesterov", "momentum", "momentumsgd", "sgdw"})


def default_rule(optimizer_name: str) -> str:
    """The rule for an optimizer of this class name: "linear" for SGD and its kin, else "sqrt".

    A step of SGD is rate x gradient: N times fewer steps over the same data cover the same way with N times the rate (Goyal et
    al., 2017, section 2.1). Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Adagrad, Adadelta, LAMB and their kin divide the gradient
    by its own size, so what counts is how its noise shrinks, with sqrt(N) (Malladi et al., 2022; You et al. scale LAMB so, 2020,
    arXiv:1904.00962). For a name that is not known, sqrt too: too small a rate costs time, too large a one the training.
    """
    return "linear" if optimizer_name.lower() in _SGD_LIKE else "sqrt"


def resolve(rule: str, optimizer_name: str) -> str:
    """`rule`, or for "auto" the optimizer's default.

    Raises:
        ValueError: unknown rule.
    """
    if rule != AUTO and rule not in RULES:
        raise ValueError(f"learning-rate rule {rule!r} is not one of {', '.join(CHOICES)}{nearest(rule, CHOICES)}")
    return default_rule(optimizer_name) if rule == AUTO else rule


def scale(rule: str, size: int) -> float:
    """By how much `rule` multiplies the rate of one rank for `size` ranks (1.0 when size is 1).

    For "adascale" it is 1.0: its gain comes on top in each step, see `AdaScale`.

    Raises:
        ValueError: unknown rule ("auto" must be resolved first), or size below 1.
    """
    if rule not in RULES:
        raise ValueError(f"learning-rate rule {rule!r} is not one of {', '.join(RULES)}")
    if size < 1:
        raise ValueError(f"a world has at least one rank, not {size}")
    return RULES[rule](size)


def warmup_factor(epoch: float, warmup_epochs: float, scaling: float) -> float:
    """What to multiply the scaled rate with after `epoch` epochs (fractions count).

    Rises linearly from `1 / scaling`, the rate of one rank, to 1 over `warmup_epochs`; 1 afterwards. For a warm-up in steps give
    both in steps: only their ratio counts.
    """
    if warmup_epochs <= 0 or epoch >= warmup_epochs:
        return 1.0
    start = 1.0 / scaling
    return start + (1.0 - start) * epoch / warmup_epochs


def rate(
    base: float,
    rule: str,
    size: int,
    epoch: float = 0.0,
    *,
    warmup_epochs: float = 0.0,
    schedule: Schedule | None = None,
) -> float:
    """The learning rate of `size` ranks after `epoch` epochs, from that of one rank, `base`.

    Raises:
        ValueError: as `scale`.
    """
    scaling = scale(rule, size)
    factor = schedule(epoch) if schedule is not None else 1.0
    return base * scaling * warmup_factor(epoch, warmup_epochs, scaling) * factor


@dataclass(frozen=True)
class RateRow:
    """Rates of one epoch: in its first step (of very many) and at its end, before any jump there. `epoch` counts from 1."""

    epoch: int
    start: float
    end: float


def table(
    base: float,
    rule: str,
    size: int,
    epochs: int,
    *,
    warmup_epochs: float = 0.0,
    schedule: Schedule | None = None,
) -> list[RateRow]:
    """The rates of each epoch, as known before training: without AdaScale's gain and what a plateau will do.

    Raises:
        ValueError: as `scale`.
    """

    def at(epoch: float) -> float:
        return rate(base, rule, size, epoch, warmup_epochs=warmup_epochs, schedule=schedule)

    return [RateRow(epoch + 1, at(epoch), at(math.nextafter(epoch + 1, 0))) for epoch in range(epochs)]


def describe(rows: Sequence[RateRow], most_lines: int = 8) -> list[str]:
    """`table` in few lines to print: epochs in which the rate rises, falls or stays are taken together."""
    spans: list[list[RateRow]] = []
    for row in rows:
        last = spans[-1][-1] if spans else None
        if last is not None and _trend(last) == _trend(row) and math.isclose(last.end, row.start, rel_tol=1e-9):
            spans[-1].append(row)
        else:
            spans.append([row])
    lines = [_span_line(span) for span in spans]
    if len(lines) > most_lines:
        lines[most_lines // 2 : len(lines) - most_lines // 2 + 1] = ["  ..."]
    return lines


def _trend(row: RateRow) -> int:
    return 0 if math.isclose(row.start, row.end, rel_tol=1e-9) else 1 if row.end > row.start else -1


def _span_line(span: Sequence[RateRow]) -> str:
    first, last = span[0], span[-1]
    epochs = f"epoch {first.epoch}" if first is last else f"epochs {first.epoch}-{last.epoch}"
    rates = f"{first.start:.4g}" if _trend(first) == 0 else f"{first.start:.4g} -> {last.end:.4g}"
    return f"  {epochs:<14} {rates}"


def check(optimizer_name: str, base: float, size: int) -> str | None:
    """A warning when `base`, the rate for one rank, will not train with an Adam-like optimizer; None when nothing is wrong.

    Seen in practice: `Adam(lr=0.1 * size)`, a line of SGD examples with the optimizer changed.
    """
    if default_rule(optimizer_name) == "linear" or optimizer_name.lower() in (
        "adadelta",
        "adafactor",
        "rprop",
        "lbfgs",
    ):
        return None  # Adadelta's default rate is 1: its steps have a size of their own
    multiplied = size > 1 and _mantissa(base / size) == 1.0 and _mantissa(base) not in (1.0, 2.0, 3.0, 5.0)
    if base < 0.03 and not multiplied:
        return None
    given = f"{optimizer_name} with a learning rate of {base:g}"
    if base >= 0.03:
        problem = (
            f"will most likely diverge: {optimizer_name} divides the gradient by its own size, so every weight moves by about the "
            f"learning rate in each step, however small the gradient is (Kingma and Ba, 2015, section 2.1)"
        )
    else:
        problem = f"looks as if it was multiplied by the number of ranks already ({base / size:g} x {size})"
    usual = min(0.001, base / size) if multiplied and base < 0.03 else 0.001
    return f'{given} {problem}. Give the rate of one rank, {usual:g} for example, and let lr_rule="sqrt" scale it'


def _mantissa(value: float) -> float:
    """`value` as m x 10^k with 1 <= m < 10; m to six digits."""
    return float(f"{value:.5e}".split("e")[0]) if value > 0 and math.isfinite(value) else 0.0


class AdaScale:
    """The gain of "adascale" from the gradients' square norms (Johnson et al., 2020, section 3.2 and appendix B.2).

        variance = (mean over ranks of |g_i|^2 - |average g|^2) x N / (N - 1)
        signal   = |average g|^2 - variance / N
        gain     = (variance + signal) / (variance / N + signal),  between 1 and N

    with running averages of both. When the ranks' gradients agree, N ranks bring no more than one and the gain is 1; when they
    are all noise it is N. In the paper training lasts until the gains add up to the steps of one rank; here the epochs are
    given, so that runs of different sizes see the same samples.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.gain = 1.0
        self._keep = max(0.0, 1.0 - size / 1000)
        self._variance: float | None = None
        self._signal = 0.0

    def update(self, mean_of_squares: float, square_of_mean: float) -> float:
        """The gain of this step.

        Args:
            mean_of_squares: mean over ranks of the square norm of each rank's own gradient.
            square_of_mean: square norm of the gradient averaged over ranks.
        """
        # An overflow, whose step the loss scaling will skip, must not stay in the averages.
        if self.size == 1 or not (math.isfinite(mean_of_squares) and math.isfinite(square_of_mean)):
            return self.gain
        variance = max(0.0, (mean_of_squares - square_of_mean) * self.size / (self.size - 1))
        signal = max(0.0, square_of_mean - variance / self.size)
        if self._variance is None:
            self._variance, self._signal = variance, signal
        self._variance = self._keep * self._variance + (1 - self._keep) * variance
        self._signal = self._keep * self._signal + (1 - self._keep) * signal
        below = self._variance / self.size + self._signal
        gain = (self._variance + self._signal) / below if below > 0 else 1.0
        self.gain = min(max(gain, 1.0), float(self.size))
        return self.gain

    def state_dict(self) -> dict[str, float | None]:
        """What a checkpoint must keep."""
        return {"variance": self._variance, "signal": self._signal, "gain": self.gain}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Go on from `state_dict()`, of a world of any size: variance and signal are those of one rank's gradient."""
        self._variance = state["variance"]
        self._signal = state["signal"] or 0.0
        self.gain = min(state["gain"] or 1.0, float(self.size))
