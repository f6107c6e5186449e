"""Times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import parse_duration
from hvdtrain.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("98.5 min", 5910),
        ("43:14", 43 * 60 + 14),
        ("5:19", 319),
        ("01:38:30", 5910),
        ("100:00:00", 360_000),
        ("1:02:03.5", 3723.5),
        ("1-02:03:04", 86_400 + 2 * 3600 + 3 * 60 + 4),
        ("5h 15", 5 * 3600 + 15 * 60),
        ("5h15", 5 * 3600 + 15 * 60),
        ("5 min 15", 315),
        ("20.00 hrs 36.00 mins 51.11 secs", 20 * 3600 + 36 * 60 + 51.11),
        ("8m17s", 497),
        ("2m54.674s", 174.674),
        ("35s 400ms", 35.4),
        ("35.4 s", 35.4),
        ("35.4 Seconds", 35.4),
        ("1 hour, 2 minutes", 3720),
        ("2 days", 172_800),
        ("250ms", 0.25),
        ("90 min", 5400),
        ("  7 sec. ", 7),
        ("0 s", 0),
    ],
)
def test_reads_what_people_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit", "seconds"),
    [
        ("1.5", "min", 90),
        ("209", "s", 209),
        ("2", "hours", 7200),
        ("1e3", "ms", 1),
        ("98.5 min", "s", 5910),
        ("4:30", "min", 270),
    ],
)
def test_the_unit_is_for_bare_numbers(text: str, unit: str, seconds: float) -> None:
    assert parse_duration(text, unit) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "unit", "why"),
    [
        ("98.5", None, "no unit"),
        ("5:15", "h", "hours:minutes or minutes:seconds"),
        ("43:75", None, "60 or more"),
        ("1:60:00", None, "60 or more"),
        ("1-24:00:00", None, "24 for hours after days"),
        ("1-43:14", None, "two or three fields"),
        ("1:2:3:4", None, "two or three fields"),
        ("15 min 5 h", None, "large to small"),
        ("5 h 5 h", None, "each once"),
        ("1.5 h 30 min", None, "fraction"),
        ("1.5h 30", None, "fraction"),
        ("1 h 75 min", None, "more than the next larger unit"),
        ("35s 400", None, "a number has no unit"),
        ("3 fortnights", None, '"fortnights" is not a unit'),
        ("1,5 h", None, "a number has no unit"),
        ("-5 s", None, "cannot be read from"),
        ("nan", None, "cannot be read from"),
        ("inf s", None, "cannot be read from"),
        ("", None, "empty"),
        ("5 s,", None, "comma"),
    ],
)
def test_refuses_what_could_mean_two_things(text: str, unit: str | None, why: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_duration(text, unit)
    assert why in str(caught.value)
    assert f'"{text}"' in str(caught.value)
    assert "8m17s" in str(caught.value), "the legal forms are named"


def test_refuses_a_unit_that_is_none() -> None:
    with pytest.raises(UserError, match=r'"km" is not a unit of time'):
        parse_duration("5", "km")


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_all_forms_of_one_time_agree(hours: int, minutes: int, seconds: int) -> None:
    expected = hours * 3600 + minutes * 60 + seconds
    for text in (
        f"{hours}:{minutes:02}:{seconds:02}",
        f"{hours}h {minutes}m {seconds}s",
        f"{hours} hrs {minutes} {seconds}",
    ):
        assert parse_duration(text) == expected


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_a_time_or_a_user_error(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except UserError as error:
        assert "legal forms" in str(error)  # noqa: PT017  (either outcome is right, nothing else is)
