"""The command itself: wrong requests, what it says, the cache, and a wheel that pip accepts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hvdtrain.horovod_build import cache, source
from hvdtrain.horovod_build.check import BuildInfo, installed, problem
from hvdtrain.horovod_build.cli import main
from hvdtrain.horovod_build.errors import RequestError
from hvdtrain.horovod_build.frameworks import find
from hvdtrain.horovod_build.toolchain import find_compiler, find_cuda, find_nccl
from hvdtrain.horovod_build.wheel import write_wheel


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--frameworks", "torch,jax"], "give torch, tensorflow or torch,tensorflow"),
        (["--frameworks", ","], "give torch, tensorflow"),
        (["--mpi", "maybe"], "invalid choice: 'maybe'"),
        (["--jobs", "0"], "whole number from 1"),
        (["--jobs", "many"], "whole number from 1"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_wrong_option_is_status_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "what"),
    [(["--wheel-only"], "the folder for the wheel"), (["--force", "--cache-dir"], "the folder of kept wheels")],
)
def test_a_file_in_the_place_of_a_folder_is_refused_before_anything_is_compiled(
    options: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hvdtrain.horovod_build.cli.build_wheel", lambda *args, **more: pytest.fail("it compiles"))
    monkeypatch.setattr("hvdtrain.horovod_build.cache.find", lambda *args: None)
    file = tmp_path / "file"
    file.touch()
    assert main([*options, str(file)]) == 2
    told = f"hvdtrain build-horovod: {what} {file} cannot be made: it is a file; give another place\n"
    assert capsys.readouterr().err == told


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for option in ("frameworks", "mpi", "cuda", "cuda-home", "nccl", "nccl-home", "jobs", "source", "cache-dir", "force",
                   "wheel-only", "verbose"):  # fmt: skip
        assert f"--{option}" in text


def test_a_source_that_is_not_the_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        source.archive(tmp_path, tmp_path / "gone.tar.gz")
    wrong = tmp_path / "horovod-0.28.1.tar.gz"
    wrong.write_bytes(b"something else")
    with pytest.raises(RequestError, match="sha256"):
        source.archive(tmp_path, wrong)


def test_the_release_is_accepted_as_it_is(archive: Path, tmp_path: Path) -> None:
    assert source.archive(tmp_path, archive) == archive


def test_homes_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--cuda-home .* no bin/nvcc"):
        find_cuda(str(tmp_path))
    with pytest.raises(RequestError, match=r"--nccl-home .* no include/nccl.h"):
        find_nccl(str(tmp_path), None, [])


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(RequestError, match="CXX=/nowhere/g"):
        find_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RequestError, match=r"no C\+\+ compiler found.*apt-get install g"):
        find_compiler()


def test_builds_that_end_together_leave_one_whole_wheel(tmp_path: Path) -> None:
    wheels = []
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        wheels.append(tmp_path / str(number) / "horovod.whl")
        wheels[-1].write_bytes(bytes([number]) * 2_000_000)
    store = tmp_path / "cache"
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda wheel: cache.keep(store, "key", wheel), wheels))
    assert set(kept) == {store / "key" / "horovod.whl"}
    content = kept[0].read_bytes()
    assert len(content) == 2_000_000
    assert len(set(content)) == 1, "the parts of two wheels are mixed"
    assert [path.name for path in store.iterdir()] == ["key"], "something half-written was left behind"
    assert cache.find(store, "key", "horovod.whl") == kept[0]
    assert cache.find(store, "other", "horovod.whl") is None


def test_pip_installs_the_wheel_and_the_marker_is_in_it(released: Path, info: BuildInfo, tmp_path: Path) -> None:
    library = tmp_path / "mpi_lib_v2.so"
    library.write_bytes(b"library")
    wheel = write_wheel(released, {"horovod/torch/mpi_lib_v2.so": library}, info, tmp_path)
    assert zipfile.ZipFile(wheel).testzip() is None
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", str(target),
         str(wheel)], check=True,
    )  # fmt: skip
    assert (target / "horovod/torch/mpi_lib_v2.so").read_bytes() == b"library"
    assert (target / "horovod/common/basics.py").is_file()
    assert json.loads((target / "horovod/metadata.json").read_text())["pytorch"] == info.torch
    assert BuildInfo.from_dict(json.loads((target / "horovod/hvdtrain_build.json").read_text())) == info


def test_the_installed_one_carries_the_edits_and_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    info = installed()
    assert info is not None
    names = [name for name in info.frameworks if find(name) is not None]
    assert problem(names) is None
    assert {"rendezvous_token", "stall_inspector"} <= set(info.features)
    began = time.monotonic()
    assert main(["--frameworks", ",".join(info.frameworks), "--cuda", "on" if info.cuda else "off",
                 "--mpi", "on" if info.mpi else "off"]) == 0  # fmt: skip
    assert "already installed and matching" in capsys.readouterr().out
    assert time.monotonic() - began < 5


def test_the_installed_library_reads_the_token() -> None:
    from hvdtrain.horovod_build.check import package

    folder = package()
    assert folder is not None
    libraries = list(folder.glob("*/mpi_lib*.so"))
    assert libraries
    for library in libraries:
        assert b"HVDTRAIN_RENDEZVOUS_TOKEN\0" in library.read_bytes()
