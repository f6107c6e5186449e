"""What the jobs make of their options, before any framework is asked."""

from __future__ import annotations

import sys

import pytest

from hvdtrain.errors import UserError
from jobs import fruit


def test_what_is_given_beside_the_published_rate_counts() -> None:
    def rate(*arguments: str) -> tuple[float, str, float]:
        found = fruit.parsed(arguments)
        return found.lr, found.lr_rule, found.warmup_epochs

    assert rate() == (0.0001, "auto", 1)
    assert rate("--published") == (0.1, "linear", 0.0)
    assert rate("--published", "--lr", "0.01", "--warmup-epochs", "2") == (0.01, "linear", 2.0)
    assert rate("--lr-rule", "none", "--published") == (0.1, "none", 0.0)


@pytest.mark.parametrize(
    "given",
    [
        "--optimizer adam",
        "--lr-rule linear",
        "--warmup-epochs 2.0",
        "--workers 2",
        "--strategy ddp",
        "--precision bf16",
    ],
)
def test_an_engine_refuses_what_it_would_not_do(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs import mnist_mlp

    monkeypatch.setattr(sys, "argv", ["mnist_mlp.py", "--engine", "numpy", *given.split()])
    with pytest.raises(UserError) as caught:
        mnist_mlp.main()
    assert str(caught.value).startswith(f"{given} is for --engine torch; numpy is one process with plain SGD")
