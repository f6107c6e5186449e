"""What a machine has that a compiled library may count on: the C library, and the CPU's vector instructions.

A cluster's login node is often newer than its compute nodes, in either.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path


def libc() -> str | None:
    """The C library and its version, e.g. ``glibc 2.36``; None where it does not say."""
    return " ".join(platform.libc_ver()).strip() or None


def cpu_words() -> set[str] | None:
    """What the CPU can do, in the kernel's words; None where /proc does not say."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            # The first core's: all of them take long to list.
            return next((set(line.partition(":")[2].split()) for line in file if line.startswith("flags")), None)
    except OSError:
        return None


def lacks(built_platform: str, built_libc: str | None, libraries: list[Path]) -> str | None:
    """What this machine lacks of what libraries were built with, as "for ..., which ..."; None if nothing.

    Args:
        built_platform: system, machine and compiler flags: ``linux-x86_64 -mavx``.
        built_libc: as `libc` said where they were built; None if nobody noted it.
        libraries: the files. Where the C library was newer they are asked what of it they use.
    """
    have = cpu_words()
    wanted = {flag.removeprefix("-m") for flag in built_platform.split()[1:]}
    if have is not None and (missing := sorted(wanted - have)):
        return f"for a CPU with {', '.join(missing)}, which this machine's has not"
    here = libc()
    if built_libc is None or here is None or _numbers(built_libc) <= _numbers(here):
        return None
    needed = max((_glibc_of(library) for library in libraries), default=(0, 0))
    if built_libc.split()[0] != here.split()[0] or needed <= _numbers(here):
        return None
    return f"on a system with {built_libc} and needs glibc {needed[0]}.{needed[1]}, but this machine has {here}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _glibc_of(library: Path) -> tuple[int, ...]:
    """The newest version of glibc's symbols that a library names."""
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    return max(((int(major), int(minor)) for major, minor in found), default=(0, 0))
