"""For all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from hvdtrain.stop import SIGNALS

# What is tested here is on CPUs, also where there is a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(autouse=True)
def _signals_stay_pytests() -> Iterator[None]:
    """A test that calls `init()` in this process must not teach pytest to survive SIGTERM."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
