"""What may import what: nobody needs a framework to submit, and `analysis` stands on its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hvdtrain

ROOT = Path(hvdtrain.__file__).parent.parent
FRAMEWORKS = ("torch", "tensorflow", "keras", "horovod", "mpi4py")


@pytest.mark.parametrize(
    "module",
    ["hvdtrain", "hvdtrain.__main__", "hvdtrain.world", "hvdtrain.record", "hvdtrain.lr", "hvdtrain.submit.cli",
     "hvdtrain.submit.status", "hvdtrain.launch.cli", "hvdtrain.launch.session", "hvdtrain.run", "analysis",
     "analysis.__main__"],
)  # fmt: skip
def test_importing_needs_no_framework(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert module.partition(".")[0] in loaded
    assert loaded.isdisjoint(FRAMEWORKS)


def test_importing_analysis_is_cheap() -> None:
    program = "import sys, analysis; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()).isdisjoint({"pandas", "matplotlib", "scipy"})


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; `from a import b` is both a and a.b."""
    return imported_by(path.read_text(encoding="utf-8"), list(path.relative_to(ROOT).parts[:-1]))


def imported_by(source: str, package: list[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def files(room: str) -> list[Path]:
    path = ROOT / room
    found = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize(
    ("room", "never"),
    [
        ("analysis", (*FRAMEWORKS, "hvdtrain.submit", "hvdtrain.launch", "hvdtrain.torch", "hvdtrain._torch")),
        ("hvdtrain/submit", (*FRAMEWORKS, "analysis", "hvdtrain.torch", "hvdtrain._torch", "hvdtrain.keras")),
        ("hvdtrain/launch", (*FRAMEWORKS, "analysis", "hvdtrain.submit", "hvdtrain.torch", "hvdtrain._torch")),
        ("hvdtrain/horovod_build", ("analysis", "hvdtrain.submit", "hvdtrain.launch", "hvdtrain.torch")),
        ("hvdtrain/_torch", ("analysis", "hvdtrain.submit", "tensorflow", "keras")),
        ("hvdtrain/data/shard.py", (*FRAMEWORKS, "hvdtrain.submit", "hvdtrain.launch")),
        ("hvdtrain/run.py", (*FRAMEWORKS, "analysis", "hvdtrain.submit")),
        ("jobs", ("analysis", "hvdtrain.submit", "hvdtrain.launch", "hvdtrain._torch")),
    ],
)
def test_arrows_go_one_way(room: str, never: tuple[str, ...]) -> None:
    wrong = [
        (str(path.relative_to(ROOT)), name) for path in files(room) for name in imports(path) if within(name, never)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("file", "also"),
    [
        ("hvdtrain/world.py", ("hvdtrain.errors",)),
        ("hvdtrain/json_file.py", ()),
        ("hvdtrain/attempts.py", ("hvdtrain.json_file",)),
        ("hvdtrain/record.py", ("hvdtrain.attempts", "hvdtrain.json_file")),
        ("hvdtrain/errors.py", ()),
        ("hvdtrain/lr.py", ("hvdtrain.errors", "hvdtrain.schedule")),
        ("hvdtrain/schedule.py", ()),
        ("hvdtrain/paths.py", ("hvdtrain.errors",)),
        ("hvdtrain/machine.py", ("hvdtrain.errors", "hvdtrain.world")),
        ("hvdtrain/stop.py", ()),
        ("hvdtrain/launch/control.py", ("hvdtrain.stop",)),
        ("hvdtrain/launch/rendezvous.py", ("hvdtrain.launch.store",)),
        ("hvdtrain/launch/store.py", ()),
    ],
)
def test_the_core_needs_only_the_standard_library(file: str, also: tuple[str, ...]) -> None:
    legal = (*sys.stdlib_module_names, *also)
    assert [name for name in imports(ROOT / file) if not within(name, legal)] == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import torch", "torch"),
        ("import os, torch.nn as nn", "torch.nn"),
        ("from torch import nn", "torch"),
        ("from hvdtrain import torch", "hvdtrain.torch"),
        ("from . import lock", "hvdtrain.submit.lock"),
        ("from .. import torch", "hvdtrain.torch"),
        ("from ..launch.cli import main", "hvdtrain.launch.cli"),
        ("def late():\n    import torch", "torch"),
        ("try:\n    import torch\nexcept ImportError:\n    pass", "torch"),
    ],
)
def test_the_check_of_imports_sees_every_form(source: str, module: str) -> None:
    assert module in list(imported_by(source, ["hvdtrain", "submit"]))


def test_only_world_reads_where_a_rank_is() -> None:
    """SLURM_PROCID and its like have one reader: everything else asks `hvdtrain.world`."""
    places = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    readers = {path.name for path in files("hvdtrain") if any(f'"{name}"' in path.read_text() for name in places)}
    assert readers == {"world.py"}
