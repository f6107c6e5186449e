"""Learning-rate schedules as functions of the epoch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain import schedule


def test_constant_step_and_milestones() -> None:
    assert schedule.constant()(17.5) == 1.0
    assert [schedule.step(2, 0.1)(epoch) for epoch in (0, 1.99, 2, 4)] == pytest.approx([1, 1, 0.1, 0.01])
    assert [schedule.milestones([6, 3], 0.5)(epoch) for epoch in (0, 3, 5.9, 6)] == pytest.approx([1, 0.5, 0.5, 0.25])


def test_cosine_goes_from_one_to_its_floor_and_stays() -> None:
    cosine = schedule.cosine(10, floor=0.2)
    assert [cosine(epoch) for epoch in (0, 5, 10, 99)] == pytest.approx([1, 0.6, 0.2, 0.2])


def test_exponential_falls_within_the_epoch() -> None:
    assert schedule.exponential(0.25)(0.5) == pytest.approx(0.5)


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_cosine_never_rises(one: float, other: float) -> None:
    early, late = sorted((one, other))
    assert schedule.cosine(30)(early) >= schedule.cosine(30)(late) - 1e-12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedule.step(0, 0.1), "every=0 must be a positive number"),
        (lambda: schedule.step(1, -0.1), "factor=-0.1"),
        (lambda: schedule.cosine(0), "epochs=0"),
        (lambda: schedule.cosine(5, floor=2), "from 0 to 1"),
        (lambda: schedule.exponential(math.nan), "gamma=nan"),
        (lambda: schedule.Plateau(factor=1.5), "factor=1.5 must lie between 0 and 1"),
        (lambda: schedule.Plateau(patience=-1), "patience=-1"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_a_plateau_lowers_the_rate_after_its_patience() -> None:
    plateau, seen = schedule.Plateau(patience=1, factor=0.5, min_delta=0.01, floor=0.2), []
    for loss in (1.0, 0.5, 0.495, 0.6, math.nan, 0.7, 0.9, 0.9, 0.1):
        plateau.update(loss)
        seen.append(plateau(0))
    assert seen == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2]
    twin = schedule.Plateau(patience=1, factor=0.5)
    twin.load_state_dict(plateau.state_dict())
    assert twin(5) == 0.2


def test_a_plateau_of_an_accuracy() -> None:
    plateau = schedule.Plateau(patience=0, factor=0.5, higher_is_better=True)
    for accuracy in (0.5, 0.6, 0.55):
        plateau.update(accuracy)
    assert plateau(0) == 0.5
