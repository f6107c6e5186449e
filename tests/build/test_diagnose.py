"""A failed compile ends in one error line and, where it is known, in what to do about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.horovod_build.diagnose import first_error, likely_cause
from hvdtrain.horovod_build.progress import Progress, clock
from hvdtrain.horovod_build.runner import CommandFailed, Runner
from hvdtrain.horovod_build.units import Unit


@pytest.mark.parametrize(
    ("output", "status", "word"),
    [
        ("a.cc:1:10: fatal error: Python.h: No such file or directory", 1, "python3-dev"),
        ("g++: fatal error: Killed signal terminated program cc1plus", 1, "--jobs 1"),
        ("", -9, "--jobs 1"),
        ("a.cc:1:10: fatal error: nccl.h: No such file or directory", 1, "nvidia-nccl"),
        ("/usr/bin/ld: cannot find -lnccl: No such file or directory", 1, "nvidia-nccl"),
        ("a.cc:1:10: fatal error: mpi.h: No such file or directory", 1, "--mpi off"),
        ("fatal error: error writing to /tmp/x.s: No space left on device", 1, "TMPDIR"),
        ("x.h:9:8: error: 'strong_ordering' in namespace 'std' does not name a type", 1, "C++ standard"),
        ("error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!", 1, "CXX=g++-12"),
        ("torch/include/ATen/core/x.h:3: error: 'foo' was not declared", 1, "newer than those tested"),
        ("a.o: undefined reference to `MPI_Init'", 1, "versions of it are mixed"),
    ],
)
def test_known_causes(output: str, status: int, word: str) -> None:
    cause = likely_cause(output, status)
    assert cause is not None
    assert word in cause


def test_unknown_stays_unknown() -> None:
    assert likely_cause("a.cc:3:1: error: expected ';' before '}' token") is None


def test_the_first_error_and_not_a_warning_or_a_later_one() -> None:
    text = "In file included from b.h:1,\na.cc:2: warning: unused\na.cc:3:1: error: first\na.cc:9:1: error: second\n"
    assert first_error(text) == "a.cc:3:1: error: first"
    assert first_error("only words\nlast words\n") == "last words"
    assert first_error("") == "no output"


def unit(name: str, *command: str) -> Unit:
    return Unit(name, f"{name}.cc", (), f"out/{name}.o", command, 1.0)


def test_first_failure_stops_the_others_and_is_the_one_reported(tmp_path: Path) -> None:
    log = (tmp_path / "log").open("w+")
    slow = unit("slow", sys.executable, "-c", "import time; time.sleep(60)")
    bad = unit("bad", sys.executable, "-c", "print('x.cc:1: error: no'); raise SystemExit(3)")
    with pytest.raises(CommandFailed) as failure:
        Runner(tmp_path, 2, log, {}).run([slow, bad, unit("never", "true")], [], Progress(3.0, log))
    assert (failure.value.name, failure.value.status) == ("bad", 3)
    assert "error: no" in failure.value.output
    log.seek(0)
    assert "# bad: status 3" in log.read()


def test_a_real_compiler_error_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.cc").write_text('#include "nccl.h"\nint main() { return 0; }\n')
    done = subprocess.run(["g++", "-c", "a.cc"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "nccl.h" in first_error(done.stderr)
    assert "NCCL" in (likely_cause(done.stderr, done.returncode) or "")


def test_a_pipe_gets_a_line_now_and_then(tmp_path: Path) -> None:
    time = [0.0]
    with (tmp_path / "out").open("w+") as stream:
        progress = Progress(100.0, stream, now=lambda: time[0])
        progress.started("torch", 40.0)
        for time[0] in range(1, 26):
            progress.tick()
        progress.finished("torch")
        stream.seek(0)
        lines = stream.read().splitlines()
    assert lines == ["compiling  10%  10s  torch", "compiling  20%  20s  torch"]
    assert progress.line() == "compiling  40%  25s"


def test_a_part_that_takes_long_is_not_called_done(tmp_path: Path) -> None:
    time = [0.0]
    with (tmp_path / "out").open("w") as stream:
        progress = Progress(10.0, stream, now=lambda: time[0])
        progress.started("torch", 10.0)
        time[0] = 1000.0
        assert " 90%" in progress.line()


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "3s"), (60, "1m00s"), (119.7, "2m00s")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
