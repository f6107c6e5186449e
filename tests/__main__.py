"""Every test, in several runs of pytest, some beside each other.

    python -m tests [arguments of pytest]

Most tests start processes that have a core to themselves for seconds; two at a time are done sooner even on two cores. Those on a
SLURM cluster mostly wait, and run beside them. Where a slow rank is told from a dead one there is little else, and what measures
times has the machine to itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: Ranks of one test take up to four cores.
WORKERS = max(2, (os.cpu_count() or 1) // 4)
# A file stays in one process: what it sets up once serves all its tests. Where two processes find other tests, for a name came from
# a clock or from the order of a set, pytest-xdist ends with an error.
_SEVERAL = ["-n", str(WORKERS), "--dist", "loadfile"]
#: One after the other; the runs of each beside each other.
PHASES = (
    (["-m", "not cluster and not faults and not alone", *_SEVERAL], ["-m", "cluster and not faults and not alone"]),
    (["-m", "faults and not cluster"], ["-m", "faults and cluster"]),
    (["-m", "alone"],),
)
_PASSED, _NO_TESTS = 0, 5
_TESTS = Path(__file__).parent


def _where(marks: str) -> list[str]:
    """Files whose tests may have these marks: to import all takes 15 seconds, every time.

    `tests/slurm/conftest.py` gives its folder the mark "cluster"; any other mark is written in the file that has it.
    """
    wanted = [mark for mark in marks.split(" and ") if not mark.startswith("not ")]
    if not wanted:
        return [str(_TESTS)]
    files = (_TESTS / "slurm" if "cluster" in wanted else _TESTS).rglob("test_*.py")
    written = [f"pytest.mark.{mark}" for mark in wanted if mark != "cluster"]
    return sorted(str(file) for file in files if all(mark in file.read_text() for mark in written))


def main(arguments: Sequence[str]) -> int:
    """Run; the first status of pytest that is not good, and `_NO_TESTS` only where no run had a test."""
    statuses: list[int] = []
    named = any(Path(word.partition("::")[0]).exists() for word in arguments)
    for runs in PHASES:
        places = [[] if named else _where(marks) for _, marks, *_ in runs]
        commands = [[sys.executable, "-m", "pytest", *words, *where] for words, where in zip(runs, places, strict=True)]
        statuses += _beside_each_other([[*command, *arguments] for command in commands])
        if "-x" in arguments and not {*statuses} <= {_PASSED, _NO_TESTS}:
            break
    bad = [status for status in statuses if status not in (_PASSED, _NO_TESTS)]
    return bad[0] if bad else min(statuses)


def _beside_each_other(commands: Sequence[Sequence[str]]) -> list[int]:
    """Statuses; what all but the first print comes when that has ended."""
    first, *others = commands
    started = []
    for command in others:
        output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below
        started.append((subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), output))
    statuses = [subprocess.run(first, check=False).returncode]
    for process, output in started:
        statuses.append(process.wait())
        with output:
            output.seek(0)
            print(output.read(), flush=True)
    return statuses


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
