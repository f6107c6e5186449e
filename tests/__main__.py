"""Every test, in two runs of pytest: most of them several at a time, then those marked `alone`.

    python -m tests [arguments of pytest]

Most tests wait for processes to start, so that three at a time are done sooner even on two cores. What measures times, or tells a
slow rank from a dead one, has the machine to itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

#: Ranks of one test take up to four cores.
WORKERS = max(3, (os.cpu_count() or 1) // 4)
# A file stays in one process: what it sets up once serves all its tests.
RUNS = (["-m", "not alone", "-n", str(WORKERS), "--dist", "loadfile"], ["-m", "alone"])
_PASSED, _NO_TESTS = 0, 5


def main(arguments: Sequence[str]) -> int:
    """Run; the first status of pytest that is not good, and `_NO_TESTS` only where neither run had a test."""
    statuses = []
    for words in RUNS:
        statuses.append(subprocess.run([sys.executable, "-m", "pytest", *words, *arguments], check=False).returncode)
        if statuses[-1] not in (_PASSED, _NO_TESTS) and "-x" in arguments:
            break
    bad = [status for status in statuses if status not in (_PASSED, _NO_TESTS)]
    return bad[0] if bad else min(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
