"""Epochs to stability of curves whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import analysis
from hvdtrain.errors import UserError

Floats = NDArray[np.float64]


def exponential(length: int, tau: float = 4.0, top: float = 0.85) -> Floats:
    return top - 0.75 * np.exp(-np.arange(length) / tau)


def noisy(curve: Floats, deviation: float, seed: int = 0) -> Floats:
    return np.asarray(curve + np.random.default_rng(seed).normal(0, deviation, len(curve)))


def truth(curve: Floats, tolerance: float = 0.01) -> int:
    """The first epoch from which the noise-free curve stays within the tolerance of its end."""
    outside = np.flatnonzero(np.abs(curve - curve[-1]) > tolerance)
    return int(outside[-1]) + 2


@pytest.mark.parametrize("length", [30, 60, 100])
@pytest.mark.parametrize("deviation", [0.0, 0.002, 0.005, 0.01])
def test_an_exponential_is_stable_where_it_enters_the_band(length: int, deviation: float) -> None:
    curve = exponential(length, tau=length / 12)
    found = [analysis.epochs_to_stability(noisy(curve, deviation, seed), resamples=0) for seed in range(20)]
    assert {one.status for one in found} == {"stable"}
    answers = np.array([one.epoch for one in found], dtype=float)
    assert np.mean(answers) == pytest.approx(truth(curve), abs=max(2.0, 0.05 * length))
    assert np.std(answers) < 0.12 * length


def test_without_noise_the_answer_is_exact_up_to_smoothing() -> None:
    curve = exponential(60, tau=5)
    assert analysis.epochs_to_stability(curve).epoch == pytest.approx(truth(curve), abs=1)


def test_a_step_of_the_schedule_sets_the_answer_and_is_named() -> None:
    t = np.arange(60)
    curve = np.where(t < 30, 0.70 - 0.6 * np.exp(-t / 3), 0.82 - 0.12 * np.exp(-(t - 30) / 1.5))
    lr = np.where(t < 30, 0.1, 0.01).tolist()
    found = analysis.epochs_to_stability(noisy(curve, 0.002), lr=lr)
    assert found.epoch == pytest.approx(truth(curve), abs=2)
    assert any("learning rate fell at epoch 31" in notice for notice in found.notices)


def test_an_overfitted_curve_counts_its_sustained_best() -> None:
    t = np.arange(60)
    curve = exponential(60, tau=4) - 0.1 * np.clip((t - 35) / 25, 0, None)
    found = analysis.epochs_to_stability(noisy(curve, 0.002))
    assert found.status == "degraded"
    assert found.plateau == pytest.approx(0.85, abs=0.01)
    assert found.epoch == pytest.approx(truth(exponential(35, tau=4)), abs=3)


@pytest.mark.parametrize("deviation", [0.0, 0.005, 0.01])
def test_a_curve_that_still_rises_is_censored(deviation: float) -> None:
    found = analysis.epochs_to_stability(noisy(0.3 + 0.5 * np.arange(60) / 60, deviation))
    assert (found.status, found.epoch) == ("censored", None)
    assert found.longer_than == 60
    assert (found.low, found.high) == (60, float("inf"))
    assert "still rising at the end" in found.notices


def test_a_run_that_breaks_down_has_diverged() -> None:
    broken = np.concatenate([exponential(30), np.full(10, 0.10)])
    assert analysis.epochs_to_stability(broken).status == "diverged"
    lost = exponential(30).tolist() + [float("nan")] * 5
    found = analysis.epochs_to_stability(lost)
    assert (found.status, found.epoch, found.longer_than) == ("diverged", None, 30)


@pytest.mark.parametrize("length", [20, 40])
def test_a_first_epoch_far_below_is_not_stable_however_steep_the_climb(length: int) -> None:
    found = analysis.epochs_to_stability([0.2, *[0.9] * length])
    assert (found.epoch, found.low) == (2.0, 2.0)
    assert analysis.epochs_to_stability([0.9] * length).epoch == 1.0


def test_seven_epochs_show_no_plateau() -> None:
    assert analysis.epochs_to_stability([0.1, 0.5, 0.6, 0.7, 0.7, 0.7, 0.7]).status == "too_short"
    assert analysis.epochs_to_stability([]).status == "too_short"


def test_non_finite_epochs_are_dropped_and_counted() -> None:
    curve = exponential(60, tau=5)
    whole = analysis.epochs_to_stability(curve).epoch
    curve[[7, 20, 41]] = np.nan
    found = analysis.epochs_to_stability(curve)
    assert found.dropped == 3
    assert found.epoch == pytest.approx(whole, abs=1), "epochs keep their numbers"
    assert any("3 epochs without" in notice for notice in found.notices)


def test_of_a_repeated_epoch_the_last_counts() -> None:
    curve = exponential(40, tau=4).tolist()
    numbers = [float(epoch) for epoch in range(1, 41)]
    again = analysis.epochs_to_stability(
        [*curve[:20], 0.0, 0.0, *curve[20:]], epochs=[*numbers[:20], 21, 22, *numbers[20:]]
    )
    assert again.repeated == 2
    assert again.epoch == analysis.epochs_to_stability(curve).epoch


def test_one_bad_epoch_at_the_end_moves_nothing() -> None:
    curve = noisy(exponential(60, tau=5), 0.002)
    clean = analysis.epochs_to_stability(curve)
    curve[-1] = 0.4
    hit = analysis.epochs_to_stability(curve)
    assert hit.status == "stable"
    assert hit.epoch == pytest.approx(clean.epoch, abs=1)
    assert hit.plateau == pytest.approx(clean.plateau, abs=0.003)


def test_the_interval_holds_the_truth() -> None:
    curve = exponential(60, tau=5)
    held = 0
    for seed in range(30):
        found = analysis.epochs_to_stability(noisy(curve, 0.005, seed))
        assert found.low is not None
        assert found.epoch is not None
        assert found.high is not None
        assert found.low <= found.epoch <= found.high
        held += found.low - 1 <= truth(curve) <= found.high + 1
    assert held >= 26


def test_tolerances_bracket_the_answer_and_noise_widens_the_band() -> None:
    found = analysis.epochs_to_stability(exponential(60, tau=5))
    assert found.half_tolerance is not None
    assert found.twice_tolerance is not None
    assert found.epoch is not None
    assert found.twice_tolerance < found.epoch < found.half_tolerance
    assert found.band == 0.01
    loud = analysis.epochs_to_stability(noisy(exponential(60, tau=5), 0.02))
    assert loud.band > 0.01
    assert any("noise widens the band" in notice for notice in loud.notices)


def test_less_training_that_would_have_said_otherwise_is_noticed() -> None:
    t = np.arange(80)
    curve = np.where(t < 64, exponential(80, tau=5, top=0.7), 0.78)
    found = analysis.epochs_to_stability(noisy(curve, 0.001))
    assert found.moved
    assert any("first 75 %" in notice for notice in found.notices)
    assert not analysis.epochs_to_stability(exponential(80, tau=5)).moved


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"tolerance": 0}, "tolerance 0 is not above zero"),
        ({"epochs": [1.0, 2.0]}, "20 accuracies, but 2 epochs"),
        ({"lr": [0.1]}, "20 accuracies, but 1 lr"),
    ],
)
def test_mistakes_are_said(arguments: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        analysis.epochs_to_stability(exponential(20), **arguments)  # type: ignore[arg-type]


def test_the_same_curve_gives_the_same_answer() -> None:
    curve = noisy(exponential(60), 0.01)
    assert analysis.epochs_to_stability(curve) == analysis.epochs_to_stability(curve)


def test_other_tolerances_and_less_of_the_curve_are_asked_the_same_question() -> None:
    generator = np.random.default_rng(4)
    censored = moved = 0
    for _ in range(300):
        length, tau = int(generator.integers(12, 60)), generator.uniform(2, 40)
        curve = noisy(exponential(length, tau), generator.uniform(0.0005, 0.006), int(generator.integers(1 << 30)))
        found = analysis.epochs_to_stability(curve, resamples=0)
        if found.status == "censored" and "still rising at the end" in found.notices:
            censored += 1
            half = analysis.epochs_to_stability(curve, 0.005, resamples=0)
            assert found.half_tolerance == half.epoch
        part = analysis.epochs_to_stability(curve[: max(8, int(0.75 * length))], resamples=0)
        assert found.shorter == part.epoch
        moved += found.moved
    assert censored > 50 and moved > 10
