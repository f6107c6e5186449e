"""Where the temporary folder is mounted noexec, what was built there is loaded elsewhere, or the way out is named."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvdtrain.horovod_build import build, units
from hvdtrain.horovod_build.errors import BuildError
from hvdtrain.horovod_build.frameworks import Framework


@pytest.fixture
def tools() -> units.Tools:
    # Any module will do for a framework, and one of the standard library is imported at once.
    framework = Framework("json", "1.0", Path(), None)
    return units.Tools((framework,), ("g++",), "g++ 12", Path(), ".so", ())


@pytest.mark.parametrize(("flags", "where"), [(0, "built"), (os.ST_NOEXEC, "cache")])
def test_it_is_loaded_where_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: units.Tools, flags: int, where: str
) -> None:
    for name in ("built", "cache"):
        (tmp_path / name).mkdir()
    library = tmp_path / "built" / "mpi_lib.so"
    library.write_text("no library, so that what loads it names it")
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    with pytest.raises(
        BuildError, match=rf"OSError: {tmp_path / where}/.*mpi_lib.so: file too short\n.*newer than those tested"
    ):
        build._check_loads(tools, {"horovod/json/mpi_lib.so": library}, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_to_type_where_nothing_may_be_loaded(tmp_path: Path, tools: units.Tools) -> None:
    (tmp_path / "ctypes.py").write_text(
        "def CDLL(path):\n    raise OSError(f'{path}: failed to map segment from shared object: Operation not permitted')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(BuildError, match="is mounted noexec: type `TMPDIR=DIR hvdtrain build-horovod`") as caught:
            build._check_loads(tools, {"horovod/json/mpi_lib.so": tmp_path / "mpi_lib.so"}, tmp_path)
    assert "versions of a library" not in str(caught.value)
