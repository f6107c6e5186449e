"""The real source of Horovod, fetched once into the cache that `hvdtrain build-horovod` uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtrain.horovod_build import source
from hvdtrain.horovod_build.cache import default_cache
from hvdtrain.horovod_build.check import BuildInfo


@pytest.fixture(scope="session")
def archive() -> Path:
    return source.archive(default_cache(), None)


@pytest.fixture(scope="session")
def released(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source, shared: tests that edit copy the files they edit."""
    return source.unpack(archive, tmp_path_factory.mktemp("horovod"))


@pytest.fixture
def info() -> BuildInfo:
    return BuildInfo(
        horovod="0.28.1", key="k" * 32, edits="e" * 16, python="cpython-3.11", platform="linux-x86_64 -mavx",
        compiler="g++ 12.2.0", torch="2.13.0+cpu", tensorflow=None, mpi="Open MPI 5.0.11",
        mpi_library="{prefix}/lib/libmpi.so.40", cuda=None, nccl=None, features=("rendezvous_token",),
    )  # fmt: skip
