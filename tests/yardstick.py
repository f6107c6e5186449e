"""How long something may take, on a machine that may be slower than the one where the limit was set, or busy."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

#: Nothing of this project, and like what is measured: an interpreter that starts, reads some thousand files and computes a little.
_WORK = [sys.executable, "-c", "import pandas, matplotlib.pyplot"]
#: What that takes on the machine that limits are meant for. (Of two quiet cores of a virtual Intel Xeon it took 1.3 in 2026.)
_SECONDS = 1.1


def assert_within(limit: float, attempt: Callable[[], float], tries: int = 6) -> None:
    """The best of several attempts takes less than `limit` seconds, times what the yardstick takes longer here and now.

    What else runs on a machine only ever adds; between the attempts the yardstick is laid on, and its best counts too.

    Args:
        limit: seconds on the machine that limits are meant for. A faster one has as many.
        attempt: returns the seconds that it took.
    """
    took, yardsticks = [], []
    for _ in range(tries):
        took.append(attempt())
        if min(took) < limit:
            return
        yardsticks.append(wall_seconds(_WORK))
        if min(took) < limit * min(yardsticks) / _SECONDS:
            return
    raise AssertionError(
        f"{took} s where {limit:g} are allowed and the yardstick took {yardsticks} instead of {_SECONDS}"
    )


def wall_seconds(command: list[str], **options: object) -> float:
    """Of a command that must succeed."""
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    return took
