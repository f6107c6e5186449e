"""Every test: on a large machine several at a time, but for those marked `alone`.

    python -m tests [arguments of pytest]

Ranks of one test take up to four cores. On fewer than eight all tests run one after another, in one run of pytest; on more there
are two runs: what can share the machine, and then what measures times, or tells a slow rank from a dead one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

_CORES_OF_A_TEST = 4
_PASSED, _NO_TESTS = 0, 5


def runs(cores: int) -> list[list[str]]:
    """Arguments of pytest, for each run of it."""
    workers = cores // _CORES_OF_A_TEST
    if workers < 2:
        return [[]]
    # A file stays in one process: what it sets up once serves all its tests.
    return [["-m", "not alone", "-n", str(workers), "--dist", "loadfile"], ["-m", "alone"]]


def main(arguments: Sequence[str]) -> int:
    """Run; the first status of pytest that is not good, and `_NO_TESTS` only where no run had a test."""
    statuses = []
    for words in runs(os.cpu_count() or 1):
        statuses.append(subprocess.run([sys.executable, "-m", "pytest", *words, *arguments], check=False).returncode)
        if statuses[-1] not in (_PASSED, _NO_TESTS) and "-x" in arguments:
            break
    bad = [status for status in statuses if status not in (_PASSED, _NO_TESTS)]
    return bad[0] if bad else min(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
