"""A Horovod that does not fit the installed frameworks is noticed before it is imported, and the remedy is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.horovod_build.check import BuildInfo, python_tag

ROOT = Path(__file__).parents[2]


def ask(site: Path, *frameworks: str) -> tuple[str | None, list[str]]:
    """`problem(frameworks)` in a Python of its own that sees only ``site``, and the big modules it imported."""
    program = f"""
        import json, sys
        from hvdtrain.horovod_build.check import problem
        answer = problem({list(frameworks)!r})
        print(json.dumps([answer, [m for m in ("torch", "tensorflow", "horovod", "numpy") if m in sys.modules]]))
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    answer, modules = json.loads(done.stdout)
    return answer, modules


def framework(site: Path, version: str) -> None:
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (site / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = None\n")


def horovod(site: Path, info: BuildInfo | None, **changes: Any) -> None:
    (site / "horovod").mkdir(parents=True)
    (site / "horovod" / "__init__.py").write_text("raise SystemExit('imported')")
    if info is not None:
        marker = {**info.as_dict(), "python": python_tag(), "mpi": None, "mpi_library": None, **changes}
        (site / "horovod" / "hvdtrain_build.json").write_text(json.dumps(marker))


def test_a_fitting_horovod_has_no_problem_and_nothing_is_imported(tmp_path: Path, info: BuildInfo) -> None:
    framework(tmp_path, "2.13.0+cpu")
    horovod(tmp_path, info)
    assert ask(tmp_path, "torch") == (None, [])


def test_none_installed(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, "torch")
    assert answer is not None
    assert answer.startswith("Horovod is not installed")
    assert "`hvdtrain build-horovod --frameworks torch`" in answer


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "2.12.0+cpu"}, "built for torch 2.12.0+cpu, but torch 2.13.0+cpu is installed"),
        ({"torch": "2.13.0"}, "built for torch 2.13.0, but torch 2.13.0+cpu is installed"),
        ({"torch": None, "tensorflow": "2.21.0"}, "built for tensorflow, not for torch"),
        ({"python": "cpython-3.9"}, "built for cpython-3.9"),
        ({"mpi": "Open MPI 4.1", "mpi_library": "/gone/libmpi.so.40"}, "/gone/libmpi.so.40 is no longer there"),
    ],
)
def test_each_kind_of_mismatch(tmp_path: Path, info: BuildInfo, changes: dict[str, Any], words: str) -> None:
    framework(tmp_path, "2.13.0+cpu")
    horovod(tmp_path, info, **changes)
    answer, modules = ask(tmp_path, "torch")
    assert answer is not None
    assert words in answer
    assert "`hvdtrain build-horovod" in answer
    assert modules == []


@pytest.mark.parametrize(
    ("changes", "needs", "words"),
    [
        ({"libc": "glibc 99.0"}, b"GLIBC_2.2.5 GLIBC_99.0", "needs glibc 99.0"),
        ({"libc": "glibc 99.0"}, b"GLIBC_2.2.5 GLIBC_2.14", None),  # built where it is newer, and uses nothing of that
        ({"libc": "musl 99.0"}, b"GLIBC_99.0", None),
        ({"libc": None}, b"GLIBC_99.0", None),
        ({"platform": "linux-x86_64 -mavx -mavx9000"}, b"", "was built for a CPU with avx9000"),
        ({"platform": "linux-x86_64"}, b"", None),
    ],
)
def test_one_from_another_kind_of_node(
    tmp_path: Path, info: BuildInfo, changes: dict[str, Any], needs: bytes, words: str | None
) -> None:
    framework(tmp_path, "2.13.0+cpu")
    horovod(tmp_path, info, **{"platform": "linux-x86_64", **changes})
    (tmp_path / "horovod" / "torch").mkdir()
    (tmp_path / "horovod" / "torch" / "mpi_lib_v2.so").write_bytes(needs)
    answer, modules = ask(tmp_path, "torch")
    assert modules == []
    if words is None:
        assert answer is None
    else:
        assert answer is not None and words in answer and "`hvdtrain build-horovod --frameworks torch`" in answer


def test_a_marker_of_before_is_accepted(tmp_path: Path, info: BuildInfo) -> None:
    framework(tmp_path, "2.13.0+cpu")
    horovod(tmp_path, info)
    marker = tmp_path / "horovod" / "hvdtrain_build.json"
    facts = json.loads(marker.read_text())
    facts.pop("libc")
    marker.write_text(json.dumps(facts))
    assert ask(tmp_path, "torch") == (None, [])


def test_another_framework_keeps_the_first_one(tmp_path: Path, info: BuildInfo) -> None:
    framework(tmp_path, "2.13.0+cpu")
    horovod(tmp_path, info, torch=None, tensorflow="2.21.0")
    answer, _ = ask(tmp_path, "torch")
    assert answer is not None
    assert "--frameworks torch,tensorflow" in answer


@pytest.mark.parametrize("content", [None, "{", '{"torch": "2.13.0+cpu"}', "[]"])
def test_one_from_elsewhere_or_damaged_is_not_trusted(tmp_path: Path, content: str | None) -> None:
    framework(tmp_path, "2.13.0+cpu")
    horovod(tmp_path, None)
    if content is not None:
        (tmp_path / "horovod" / "hvdtrain_build.json").write_text(content)
    answer, _ = ask(tmp_path, "torch")
    assert answer is not None
    assert "not built by hvdtrain" in answer


def test_framework_missing(tmp_path: Path, info: BuildInfo) -> None:
    horovod(tmp_path, info)
    answer, _ = ask(tmp_path, "torch")
    assert answer is not None
    assert "torch is not installed" in answer
