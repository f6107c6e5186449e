"""From which epoch on a noisy accuracy curve is stable, or why that cannot be said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.smoothing import Floats, noise, settled, smooth, window, window_medians
from hvdtrain.errors import UserError

STATUSES = ("stable", "censored", "degraded", "diverged", "too_short")
#: Below this a plateau of five epochs is most of the curve.
SHORTEST = 8
#: A part of the curve for the question whether the answer would have been the same with less training.
_HORIZON = 0.75
#: The band in standard deviations of one epoch. Smoothing leaves about half of one, to the epochs and to the plateau alike:
#: twice the 0.65 of their difference holds 95 % of a flat curve inside. `bench/stability.py` shows what narrower ones cost.
_BAND = 1.4
#: A learning rate that falls by more than this in one epoch is a step, not a decay.
_STEP = 0.67


@dataclass(frozen=True)
class Stability:
    """Epochs until a curve is stable.

    Attributes:
        epoch: the first stable epoch, in the numbering that was given; None when there is none.
        low, high: 90 % bootstrap interval of `epoch`; `high` is infinite where it reaches past the last epoch. Of a
            `censored` curve `low` is the last epoch that is known not to be enough. None without a plateau.
        plateau: the level that counts as stable (fraction of one); None without a curve.
        band: half-width of the band around it.
        status: of `STATUSES`. `censored`: later than can be confirmed, so epochs to stability > `longer_than`.
            `degraded`: a better plateau was held earlier, `epoch` is when that was reached.
        noise: standard deviation from epoch to epoch.
        half_tolerance, twice_tolerance: `epoch` at these tolerances.
        shorter: `epoch` on the first 75 % of the curve; `moved` says that it differs beyond the interval.
        longer_than: the last epoch that is known not to be enough, for `censored`.
        dropped: epochs that were not finite; `repeated`: epochs that were recorded more than once.
        notices: sentences for a reader.
    """

    epoch: float | None
    low: float | None
    high: float | None
    plateau: float | None
    band: float
    status: str
    noise: float = 0.0
    half_tolerance: float | None = None
    twice_tolerance: float | None = None
    shorter: float | None = None
    moved: bool = False
    longer_than: float | None = None
    dropped: int = 0
    repeated: int = 0
    notices: tuple[str, ...] = ()


def epochs_to_stability(
    val_acc: ArrayLike,
    tolerance: float = 0.01,
    *,
    epochs: Sequence[float] | None = None,
    lr: Sequence[float] | None = None,
    seed: int = 0,
    resamples: int = 200,
) -> Stability:
    """The settling time of an accuracy curve into a band around its sustained plateau.

    The curve is smoothed (running median of 3, centred mean of 3 or 5), its plateau is the median of the last
    max(5, 10 %) epochs, and the band is the tolerance or 1.4 standard deviations of
    one epoch's noise, whichever is wider. The answer is
    the first epoch inside with 80 % of the next window inside too: settling time as in control engineering, with the
    last value replaced by something that one bad epoch cannot move.

    Args:
        val_acc: accuracy after each epoch, shape (epochs,), fractions of one; NaN where it was not finite.
        tolerance: half-width of the band, in the unit of `val_acc`.
        epochs: the number of each epoch, default 1, 2, ...; of an epoch that is there twice the last one counts.
        lr: learning rate of each epoch, to notice when a step of it sets the answer.
        seed, resamples: of the bootstrap; without resamples there is no interval.

    Raises:
        UserError: lengths differ, the tolerance is not above zero, or the curve is not one-dimensional.

    >>> curve = [0.9 - 0.8 * 0.7**epoch for epoch in range(30)]
    >>> epochs_to_stability(curve).status
    'stable'
    """
    values, numbers, rates, dropped, repeated = _clean(val_acc, tolerance, epochs, lr)
    if len(values) and dropped and ends_in_nothing(val_acc):
        last = float(numbers[-1])
        why = (f"the last recorded epochs are not finite; the last finite one is {last:g}",)
        return Stability(
            None, None, None, None, tolerance, "diverged", 0.0, None, None, None, False, last, dropped, repeated, why
        )
    if len(values) < SHORTEST:
        why = (f"{len(values)} finite epochs; at least {SHORTEST} are needed to see a plateau",)
        return Stability(
            None, None, None, None, tolerance, "too_short", dropped=dropped, repeated=repeated, notices=why
        )
    core = _Core.of(values, tolerance)
    if core.collapsed():
        why = ("accuracy ended near where it began, far below its best",)
        return Stability(None, None, None, core.plateau, core.band, "diverged", core.noise, None, None, None, False,
                         float(numbers[-1]), dropped, repeated, why)  # fmt: skip
    index, answer = core.index(), core.answer()
    low, high = core.interval(seed, resamples)
    censored = answer is None
    shorter = _Core.of(values[: max(SHORTEST, int(_HORIZON * len(values)))], tolerance).answer()
    moved = answer is not None and (shorter is None or abs(shorter - answer) > max(2, 0.15 * answer, (high - low) / 2))
    status = "censored" if censored else "degraded" if core.degraded else "stable"
    return Stability(
        epoch=_number(answer, numbers),
        low=_longer_than(core, index, numbers) if censored else float(numbers[min(low, len(values) - 1)]),
        high=math.inf if censored or high >= len(values) else float(numbers[high]),
        plateau=core.plateau,
        band=core.band,
        status=status,
        noise=core.noise,
        half_tolerance=_number(_Core.of(values, tolerance / 2).answer(), numbers),
        twice_tolerance=_number(_Core.of(values, tolerance * 2).answer(), numbers),
        shorter=_number(shorter, numbers),
        moved=moved,
        longer_than=_longer_than(core, index, numbers) if censored else None,
        dropped=dropped,
        repeated=repeated,
        notices=tuple(
            _notices(core, status, index, moved, _number(shorter, numbers), numbers, rates, dropped, tolerance)
        ),
    )


def settling_epoch(val_acc: ArrayLike, epochs: Sequence[float], tolerance: float = 0.01) -> float | None:
    """`epochs_to_stability(...).epoch` alone, for thousands of runs: a tenth of the time."""
    values, numbers, _, dropped, _ = _clean(val_acc, tolerance, epochs, None)
    if len(values) < SHORTEST or (dropped and ends_in_nothing(val_acc)):
        return None
    core = _Core.of(values, tolerance)
    return None if core.collapsed() else _number(core.answer(), numbers)


@dataclass(frozen=True)
class _Core:
    """One clean curve with its plateau; indices count from 0."""

    values: Floats
    smoothed: Floats
    width: int
    noise: float
    plateau: float
    band: float
    degraded: bool
    tolerance: float

    @classmethod
    def of(cls, values: Floats, tolerance: float) -> _Core:
        smoothed = smooth(values)
        width = window(len(values))
        spread = float(noise(values, smoothed)[0])
        band = max(tolerance, _BAND * spread)
        medians = window_medians(smoothed, width)[0]
        last, best = float(medians[-1]), float(medians.max())
        # An earlier plateau is better only when that is neither noise nor within what counts as the same.
        degraded = best - last > 2 * band
        return cls(values, smoothed, width, spread, best if degraded else last, band, degraded, tolerance)

    def index(self) -> int | None:
        """The first stable index, None when there is none early enough to be confirmed by a window after it."""
        found = self._settled()
        return found if found <= len(self.values) - self.width else None

    def _settled(self) -> int:
        plateau, band = np.array([self.plateau]), np.array([self.band])
        return int(settled(self.values, self.smoothed, plateau, band, self.width)[0])

    def answer(self) -> int | None:
        """`index` of a curve that does not rise any more."""
        return None if self.rising() else self.index()

    def rising(self) -> bool:
        """Whether the last quarter still climbs: by more than half the band within it, and beyond its noise."""
        length = max(2 * self.width, len(self.values) // 4)
        tail = self.values[-length:]
        position = np.arange(len(tail)) - (len(tail) - 1) / 2
        slope = float(position @ tail / (position @ position))
        error = self.noise / float(np.sqrt(position @ position))
        climb = slope * len(tail)
        return climb > self.tolerance and slope > 3 * error and self._not_slowing(tail)

    def _not_slowing(self, tail: Floats) -> bool:
        """A curve that climbed and has stopped is settled: the second half of the tail must climb as well."""
        half = smooth(tail)[-max(self.width, len(tail) // 2) :]
        return float(half[-1] - half[0]) > self.tolerance / 2

    def collapsed(self) -> bool:
        """Whether the end has lost most of what was gained over the first epoch."""
        first, last, best = float(self.values[0]), float(np.median(self.values[-3:])), float(self.smoothed.max())
        return best - first > 5 * self.band and last - first < 0.2 * (best - first)

    def interval(self, seed: int, resamples: int) -> tuple[int, int]:
        """5th and 95th percentile of the index under resampled noise; the length of the curve stands for "later"."""
        own = self._settled()
        if resamples < 1:
            return own, own
        generator = np.random.default_rng(seed)
        # Of the second half: where a curve climbs, smoothing lags behind, and that is no noise.
        residuals = (self.values - self.smoothed)[len(self.values) // 2 :]
        # Smoothing takes part of the noise into the trend: resampled residuals are scaled to the noise again.
        seen = float(np.std(residuals)) or 1.0
        scaled = (residuals - residuals.mean()) * self.noise / seen
        trend = self.smoothed.copy()
        trend[0] = self.values[0]  # smoothed, the first epoch is as high as those after it
        curves = trend + generator.choice(scaled, size=(resamples, len(self.values)))
        smoothed = smooth(curves)
        bands = np.maximum(self.tolerance, _BAND * noise(curves, smoothed))
        medians = window_medians(smoothed, self.width)
        plateaus = medians.max(axis=1) if self.degraded else medians[:, -1]
        found = settled(curves, smoothed, plateaus, bands, self.width)
        low, high = np.percentile(found, [5, 95])
        return min(int(np.floor(low)), own), max(int(np.ceil(high)), own)


def _clean(
    val_acc: ArrayLike, tolerance: float, epochs: Sequence[float] | None, lr: Sequence[float] | None
) -> tuple[Floats, Floats, Floats | None, int, int]:
    values = np.asarray(val_acc, dtype=float)
    if values.ndim != 1:
        raise UserError(f"val_acc has {values.ndim} dimensions; give one accuracy per epoch")
    if not tolerance > 0:
        raise UserError(f"tolerance {tolerance} is not above zero; 0.01 is one point of accuracy")
    numbers = np.arange(1.0, len(values) + 1) if epochs is None else np.asarray(epochs, dtype=float)
    for name, given in (("epochs", numbers), ("lr", lr)):
        if given is not None and len(given) != len(values):
            raise UserError(f"{len(values)} accuracies, but {len(given)} {name}; give as many")
    # Later lines replace earlier ones: a restart trains its epochs again.
    places = {number: place for place, number in enumerate(numbers.tolist())}
    keep = np.array([places[number] for number in sorted(places)], dtype=np.int64)
    finite: NDArray[np.bool_] = np.isfinite(values[keep])
    chosen = keep[finite]
    rates = None if lr is None else np.asarray(lr, dtype=float)[chosen]
    return values[chosen], numbers[chosen], rates, int((~finite).sum()), len(values) - len(keep)


def ends_in_nothing(val_acc: ArrayLike) -> bool:
    """Whether the last three epochs of a curve (all, of a shorter one) are not finite: it has diverged."""
    tail = np.asarray(val_acc, dtype=float)[-3:]
    return not np.isfinite(tail).any()


def _number(index: int | None, numbers: Floats) -> float | None:
    return None if index is None else float(numbers[index])


def _longer_than(core: _Core, index: int | None, numbers: Floats) -> float:
    # Where nothing settles, the run is a lower bound up to the window that would have confirmed it.
    return float(numbers[-1] if index is None or core.rising() else numbers[max(index - 1, 0)])


def _notices(
    core: _Core, status: str, index: int | None, moved: bool, shorter: float | None, numbers: Floats,
    rates: Floats | None, dropped: int, tolerance: float,
) -> list[str]:  # fmt: skip
    found = []
    apart = float(np.median(np.diff(numbers)))
    if apart > 1:
        found.append(f"validated every {apart:g} epochs: the answer is known to one or two of these, not finer")
    if dropped:
        found.append(f"{dropped} epoch{'s' if dropped > 1 else ''} without a finite accuracy left out")
    if core.band > tolerance:
        found.append(f"the noise widens the band to {core.band:.3g}")
    if status == "censored":
        found.append("still rising at the end" if core.rising() else "settles too late to be confirmed")
    if core.degraded:
        found.append(f"accuracy fell from its plateau of {core.plateau:.3g} later")
    if moved:
        then = "no answer" if shorter is None else f"epoch {shorter:g}"
        found.append(f"the first 75 % of the epochs would have given {then}: longer training may move it again")
    if index is not None and rates is not None and len(rates) > 1:
        steps = np.flatnonzero(rates[1:] < _STEP * rates[:-1]) + 1
        near = steps[(steps <= index) & (steps >= index - core.width)]
        if len(near):
            found.append(f"the learning rate fell at epoch {numbers[near[-1]]:g}: the schedule sets the answer")
    return found
