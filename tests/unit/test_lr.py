"""Learning-rate rules and warm-up."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain import lr


@pytest.mark.parametrize(
    ("rule", "size", "factor"),
    [
        ("none", 8, 1),
        ("linear", 8, 8),
        ("sqrt", 16, 4),
        ("linear", 1, 1),
        ("sqrt", 1, 1),
        ("none", 1, 1),
        ("adascale", 8, 1),
    ],
)
def test_scale(rule: str, size: int, factor: float) -> None:
    assert lr.scale(rule, size) == pytest.approx(factor)


def test_an_unknown_rule_lists_the_rules() -> None:
    with pytest.raises(ValueError, match="'cubic' is not one of none, linear, sqrt, adascale"):
        lr.scale("cubic", 2)
    with pytest.raises(
        ValueError, match="'lineer' is not one of auto, none, linear, sqrt, adascale; did you mean \"linear\""
    ):
        lr.resolve("lineer", "SGD")


@pytest.mark.parametrize("size", [0, -2])
def test_a_world_without_ranks_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"at least one rank, not {size}"):
        lr.scale("linear", size)


def test_warm_up_starts_at_the_rate_of_one_rank_and_ends_at_the_scaled_one() -> None:
    assert lr.warmup_factor(0, 5, 8) * 8 == pytest.approx(1)
    assert lr.warmup_factor(2.5, 5, 8) * 8 == pytest.approx((1 + 8) / 2)
    assert lr.warmup_factor(5, 5, 8) == 1
    assert lr.warmup_factor(100, 5, 8) == 1


def test_no_warm_up() -> None:
    assert lr.warmup_factor(0, 0, 8) == 1


@given(st.floats(0, 20), st.floats(0, 20), st.floats(0.01, 20), st.integers(1, 1024))
def test_warm_up_never_falls_nor_overshoots(one: float, other: float, warmup: float, size: int) -> None:
    early, late = sorted((one, other))
    first, second = lr.warmup_factor(early, warmup, size), lr.warmup_factor(late, warmup, size)
    assert first <= second or math.isclose(first, second)
    assert 1 / size - 1e-12 <= first <= 1 + 1e-12


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        *((name, "linear") for name in ("SGD", "sgd", "ASGD", "Nesterov")),
        *(
            (name, "sqrt")
            for name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "LAMB")
        ),
        ("SomethingNew", "sqrt"),
    ],
)
def test_the_default_rule_is_the_optimizers(optimizer: str, rule: str) -> None:
    assert lr.default_rule(optimizer) == rule
    assert lr.resolve("auto", optimizer) == rule
    assert lr.resolve("none", optimizer) == "none"


def test_a_warm_up_in_steps_is_one_in_epochs() -> None:
    assert lr.warmup_factor(30, 100, 8) == pytest.approx(lr.warmup_factor(1.5, 5, 8))


def test_the_rate_is_the_product_of_rule_warm_up_and_schedule() -> None:
    def at(epoch: float) -> float:
        return lr.rate(0.1, "linear", 4, epoch, warmup_epochs=2, schedule=lr.step(10, 0.5))

    assert at(0) == pytest.approx(0.1)
    assert at(1) == pytest.approx((0.1 + 0.4) / 2)
    assert at(2) == pytest.approx(0.4)
    assert at(25) == pytest.approx(0.4 * 0.25)
    assert lr.rate(0.1, "sqrt", 4) == pytest.approx(0.2)


def test_the_table_shows_each_epochs_rates_and_reads_short() -> None:
    rows = lr.table(0.05, "linear", 8, 30, warmup_epochs=5, schedule=lr.step(10, 0.1))
    assert [row.epoch for row in rows] == list(range(1, 31))
    assert (rows[0].start, rows[4].end, rows[10].start) == pytest.approx((0.05, 0.4, 0.04))
    assert lr.describe(rows) == [
        "  epochs 1-5     0.05 -> 0.4",
        "  epochs 6-10    0.4",
        "  epochs 11-20   0.04",
        "  epochs 21-30   0.004",
    ]
    many = lr.describe(lr.table(0.05, "none", 1, 90, schedule=lr.step(1, 0.9)))
    assert len(many) == 8
    assert many[4] == "  ..."
    assert many[-1].startswith("  epoch 90 ")
    assert lr.describe(lr.table(0.1, "none", 1, 1)) == ["  epoch 1        0.1"]


@pytest.mark.parametrize(
    ("optimizer", "base", "size", "warned"),
    [
        ("Adam", 0.1 * 8, 8, "will most likely diverge"),
        ("AdamW", 0.03, 1, "will most likely diverge"),
        ("Adam", 0.001 * 8, 8, r"multiplied by the number of ranks already \(0.001 x 8\)"),
        ("RMSprop", 0.01 * 16, 16, "diverge"),
        ("Adam", 0.001, 8, None),
        ("NAdam", 0.002, 2, None),
        ("SGD", 0.8, 8, None),
        ("Adadelta", 1.0, 4, None),
    ],
)
def test_a_rate_that_will_not_train_is_warned_of(optimizer: str, base: float, size: int, warned: str | None) -> None:
    warning = lr.check(optimizer, base, size)
    if warned is None:
        assert warning is None
        return
    assert warning is not None
    assert re.search(warned, warning)
    assert 'let lr_rule="sqrt" scale it' in warning


def test_adascale_gains_nothing_from_ranks_that_agree_and_all_from_those_that_do_not() -> None:
    agreeing, noisy, half = (lr.AdaScale(8) for _ in range(3))
    assert agreeing.update(4.0, 4.0) == 1.0
    # The mean of 8 independent gradients of variance 4 has a square norm of 4/8.
    assert noisy.update(4.0, 0.5) == pytest.approx(8.0)
    # Variance 1, signal 1: (1 + 1) / (1/8 + 1).
    assert half.update(2.0, 1.125) == pytest.approx(2 / 1.125)
    assert half.update(float("inf"), float("inf")) == pytest.approx(2 / 1.125)
    again = lr.AdaScale(8)
    again.load_state_dict(half.state_dict())
    assert again.update(2.0, 1.125) == half.update(2.0, 1.125)
    assert lr.AdaScale(1).update(2.0, 1.0) == 1.0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(2, 64))
def test_the_gain_stays_between_one_and_the_number_of_ranks(one: float, other: float, size: int) -> None:
    mean, square_of_mean = max(one, other), min(one, other)
    assert 1.0 <= lr.AdaScale(size).update(mean, square_of_mean) <= size
