"""Learning-rate rules and warm-up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain import lr


@pytest.mark.parametrize(
    ("rule", "size", "factor"),
    [("none", 8, 1), ("linear", 8, 8), ("sqrt", 16, 4), ("linear", 1, 1), ("sqrt", 1, 1), ("none", 1, 1)],
)
def test_scale(rule: str, size: int, factor: float) -> None:
    assert lr.scale(rule, size) == pytest.approx(factor)


def test_an_unknown_rule_lists_the_rules() -> None:
    with pytest.raises(ValueError, match="'cubic' is not one of none, linear, sqrt"):
        lr.scale("cubic", 2)


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
