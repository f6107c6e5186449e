"""For all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from hvdtrain.stop import SIGNALS


@pytest.fixture(autouse=True)
def _signals_stay_pytests() -> Iterator[None]:
    """A test that calls `init()` in this process must not teach pytest to survive SIGTERM."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
