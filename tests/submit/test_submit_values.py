"""Values of the command line: what is legal, and what is said about the rest."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UserError
from hvdtrain.submit import values


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2", (2,)), ("2,4,8", (2, 4, 8)), ("8, 2", (8, 2)), ("02", (2,)), ("999999999", (999999999,))],
)
def test_counts(text: str, expected: tuple[int, ...]) -> None:
    assert values.counts("--gpus", text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", '"0" is not legal'),
        ("-1", '"-1" is not legal'),
        ("", "empty entry"),
        (",", "empty entry"),
        ("2,,4", "empty entry; legal: whole numbers from 1, such as 2,4,8; without it: --gpus 2,4"),
        ("2,4,", "empty entry"),
        ("2,abc", '"abc" is not legal; legal: whole numbers from 1, such as 2,4,8; without it: --gpus 2'),
        ("2.0", '"2.0" is not legal'),
        ("2,2", "2 is there twice, which changes nothing"),
        ("2,02", "2 is there twice"),
        ("٢", "is not legal"),
        ("9999999999", "is not legal"),
    ],
)
def test_wrong_counts(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        values.counts("--gpus", text)
    assert said in str(caught.value)
    assert f'--gpus "{text}"' in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("1", (0,)), ("3", (0, 1, 2)), ("5,7", (5, 7)), ("5,", (5,)), ("0,", (0,)), ("7,5", (7, 5))]
)
def test_seeds(text: str, expected: tuple[int, ...]) -> None:
    assert values.seeds(text) == expected


@pytest.mark.parametrize("text", ["0", "", ",", "5,,", "5,5", "-1", "-1,2", "x", "1.5"])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        values.seeds(text)


def test_settings_keep_their_text_and_order() -> None:
    found = values.settings(["lr=0.10,0.2", "model=a=b", "width=8"])
    assert found == {"lr": ("0.10", "0.2"), "model": ("a=b",), "width": ("8",)}
    assert list(found) == ["lr", "model", "width"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["lr"], "legal is key=value"),
        (["=3"], "legal is key=value"),
        (["--lr=3"], "legal is key=value"),
        (["a b=3"], "legal is key=value"),
        (["lr="], "empty entry"),
        (["lr=0.1,"], "empty entry"),
        (["lr=0.1,0.10"], "0.10 is there twice"),
        (["lr=0.1", "lr=0.2"], "--set lr=0.1,0.2"),
    ],
)
def test_wrong_settings(given: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        values.settings(given)
    assert said in str(caught.value)


@pytest.mark.parametrize("given", [["PATH"], ["=x"], ["1A=x"], ["A-B=x"], ["A =x"], ["A=1", "A=2"], [""]])
def test_wrong_environment(given: list[str]) -> None:
    with pytest.raises(UserError, match="--env"):
        values.environment(given)


def test_environment_takes_any_value() -> None:
    assert values.environment(["A=", "_b2=x=y z"]) == {"A": "", "_b2": "x=y z"}


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "-x", ".hidden", "a\nb", "x" * 101])
def test_wrong_study_names(text: str) -> None:
    with pytest.raises(UserError, match="--study"):
        values.study_name(text)


def test_study_names_may_hold_spaces() -> None:
    assert values.study_name("my study $1") == "my study $1"


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "ten", ""])
def test_wrong_seconds(text: str) -> None:
    with pytest.raises(UserError, match="--stall-timeout"):
        values.seconds("--stall-timeout", text)


def test_words_name_the_nearest() -> None:
    with pytest.raises(UserError, match="legal: none, linear, sqrt; without it: --lr-rule sqrt") as caught:
        values.rules("linaer,sqrt", ("none", "linear", "sqrt"))
    assert 'did you mean "linear"?' in str(caught.value)
