"""What is built and its key: each ingredient counts, and a build is described as it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.horovod_build import sources, units
from hvdtrain.horovod_build.check import BuildInfo, expand_prefix, relative_to_prefix
from hvdtrain.horovod_build.frameworks import Framework, release_of
from hvdtrain.horovod_build.request import build_info, default_jobs, describe, differences, expected_seconds, make_key
from hvdtrain.horovod_build.toolchain import Cuda, Mpi, Nccl
from hvdtrain.horovod_build.units import Tools


@pytest.mark.parametrize("name", [name for name in BuildInfo.__dataclass_fields__ if name != "key"])
def test_the_key_changes_with_each_ingredient(info: BuildInfo, name: str) -> None:
    other = BuildInfo.from_dict({**info.as_dict(), name: ("x",) if name == "features" else "other"})
    assert make_key(other, [1]) != make_key(info, [1])


def test_the_key_changes_with_the_abi_and_not_by_itself(info: BuildInfo) -> None:
    assert make_key(info, [0]) != make_key(info, [1])
    assert make_key(replace(info, key="other"), [1]) == make_key(info, [1])


def test_a_newer_compiler_alone_is_no_reason_to_rebuild(info: BuildInfo) -> None:
    assert differences(info, replace(info, compiler="g++ 13.1.0")) == []
    assert differences(info, replace(info, torch="2.14.0")) == ["torch 2.13.0+cpu -> 2.14.0"]
    assert differences(info, replace(info, mpi=None)) == ["mpi Open MPI 5.0.11 -> none"]


def test_marker_survives_the_file(info: BuildInfo) -> None:
    assert BuildInfo.from_dict(json.loads(json.dumps(info.as_dict()))) == info


def test_description_names_all_parts(info: BuildInfo) -> None:
    assert describe(replace(info, cuda="13.0", nccl="2.30.1")) == (
        "Horovod 0.28.1 for torch 2.13.0+cpu with Gloo, Open MPI 5.0.11, CUDA 13.0, NCCL 2.30.1"
    )


@pytest.mark.parametrize(("version", "expected"), [("2.13.0+cpu", (2, 13)), ("2.14.0.dev20260101", (2, 14))])
def test_release_of(version: str, expected: tuple[int, int]) -> None:
    assert release_of(version) == expected


def tools(*frameworks: Framework, gpu: bool = False) -> Tools:
    return Tools(
        frameworks=frameworks, compiler=("g++",), compiler_version="g++ 12.2.0", python_include=Path("/include"),
        extension_suffix=".so", cpu_flags=("-mavx",), mpi=Mpi("Open MPI 5.0.11", "mpicxx", ("-I/mpi",), ("-lmpi",), ()),
        cuda=Cuda("13.0", Path("/cuda")) if gpu else None,
        nccl=Nccl("2.30.1", Path("/nccl"), Path("/nccl/libnccl.so.2")) if gpu else None,
    )  # fmt: skip


def torch(version: str) -> Framework:
    return Framework("torch", version, Path("/site/torch"), None)


TENSORFLOW = Framework("tensorflow", "2.21.0", Path("/site/tensorflow"), None)


@pytest.mark.parametrize(("version", "standard"), [("2.1.0", "c++17"), ("2.13.0", "c++17"), ("2.14.1+cu130", "c++20")])
def test_torch_gets_the_standard_its_headers_need(version: str, standard: str) -> None:
    compiled, _ = units.plan(tools(torch(version)))
    [unit] = [unit for unit in compiled if unit.name == "torch"]
    assert f"-std={standard}" in unit.command


def test_both_frameworks_share_one_gloo_and_one_core() -> None:
    alone, _ = units.plan(tools(torch("2.13.0")))
    both, links = units.plan(tools(torch("2.13.0"), TENSORFLOW))
    assert {unit.name for unit in both} - {unit.name for unit in alone} == {"tensorflow"}
    common = {unit.output for unit in alone if unit.name != "torch"}
    assert all(common <= set(link.command) for link in links)
    assert len(links) == 2


def test_every_listed_source_exists_and_none_is_compiled_twice(released: Path) -> None:
    compiled, _ = units.plan(tools(torch("2.13.0"), TENSORFLOW, gpu=True))
    members = [member for unit in compiled for member in unit.members]
    assert len(members) == len(set(members))
    assert [member for member in members if not (released / member).is_file()] == []
    # Whatever Horovod gains or renames must be noticed: its core is compiled whole, but for what nobody has any more.
    have = {path.relative_to(released).as_posix() for path in (released / "horovod/common").rglob("*.cc")}
    left_out = have - set(members)
    assert {Path(path).stem for path in left_out} == {
        "ddl_mpi_context_manager", "ddl_operations", "ccl_operations", "hip_operations", "gpu_context_impl",
    }  # fmt: skip


def test_no_debug_symbols_and_the_longest_part_first() -> None:
    compiled, links = units.plan(tools(torch("2.13.0"), TENSORFLOW, gpu=True))
    assert not any("-g" in unit.command for unit in compiled)
    assert all("-s" in link.command for link in links)
    seconds = [unit.seconds for unit in compiled]
    assert seconds == sorted(seconds, reverse=True)
    assert expected_seconds(compiled, 1000) == max(seconds)
    assert expected_seconds(compiled, 1) == pytest.approx(sum(seconds))


def test_gpu_build_defines_nccl_for_every_collective() -> None:
    compiled, [link] = units.plan(tools(torch("2.14.1"), gpu=True))
    [core] = [unit for unit in compiled if unit.name == "core"]
    assert sum(word.startswith("-DHOROVOD_GPU_") and word.endswith(f"={ord('N')}") for word in core.command) == 5
    assert "/nccl/libnccl.so.2" in link.command


@pytest.mark.parametrize(
    ("version", "built"),
    [
        ("11.8", ["60", "70", "75", "80"]),
        ("12.6", ["60", "70", "75", "80", "90"]),
        ("13.0", ["75", "80", "90", "100"]),  # knows none before
    ],
)
def test_kernels_are_built_for_every_gpu_that_the_toolkit_knows(version: str, built: list[str]) -> None:
    with_cuda = replace(tools(torch("2.9.0"), gpu=True), cuda=Cuda(version, Path("/cuda")))
    [kernels] = [unit for unit in units.plan(with_cuda)[0] if unit.name == "CUDA kernels"]
    codes = [word.partition(",code=")[2] for word in kernels.command if word.startswith("-gencode=")]
    assert codes == [*(f"sm_{number}" for number in built), f"compute_{built[-1]}"]


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("g++", ["-ccbin", "g++"]),
        ("ccache g++", ["-ccbin", "g++"]),
        ("/usr/bin/sccache distcc /opt/gcc/bin/g++ -m64", ["-ccbin", "/opt/gcc/bin/g++", "-Xcompiler", "-m64"]),
        ("g++ -B /opt/x -Wl,-z,now", ["-ccbin", "g++", "-Xcompiler", "-B", "-Xcompiler", "/opt/x"]),
        ("ccache", ["-ccbin", "ccache"]),
    ],
)
def test_nvcc_is_given_the_compiler_that_was_chosen(compiler: str, words: list[str]) -> None:
    chosen = replace(tools(torch("2.13.0"), gpu=True), compiler=tuple(compiler.split()))
    [kernels] = [unit for unit in units.plan(chosen)[0] if unit.name == "CUDA kernels"]
    begin = kernels.command.index("-ccbin")
    assert list(kernels.command[begin : begin + len(words)]) == words
    assert kernels.command[begin + len(words)].startswith("-gencode=")


def test_an_architecture_is_a_reason_to_rebuild_for_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def marks() -> list[str]:
        return [build_info(tools(torch("2.9.0"), gpu=gpu)).edits for gpu in (False, True)]

    before = marks()
    monkeypatch.setattr(units, "_PASCAL", ())
    assert [new == old for new, old in zip(marks(), before, strict=True)] == [True, False]


def test_gloo_config_leaves_no_placeholder(released: Path) -> None:
    template = (released / "third_party/gloo/gloo/config.h.in").read_text()
    text = units.gloo_config(template, with_mpi=True)
    assert "@" not in text
    assert "cmakedefine" not in text
    assert re.search(r"^#define GLOO_USE_MPI 1$", text, re.MULTILINE)
    assert re.search(r"^#define GLOO_USE_REDIS 0$", text, re.MULTILINE)


def test_prefix_is_written_and_read_back() -> None:
    import sys

    path = Path(sys.prefix) / "lib" / "libmpi.so.40"
    assert relative_to_prefix(path) == "{prefix}/lib/libmpi.so.40"
    assert expand_prefix(relative_to_prefix(path)) == str(path)
    assert relative_to_prefix(Path("/opt/mpi/lib/libmpi.so")) == "/opt/mpi/lib/libmpi.so"


@pytest.mark.parametrize(("cores", "gigabytes", "jobs"), [(2, 20, 2), (64, 8, 5), (2, 1, 1), (4, None, 4)])
def test_memory_bounds_the_jobs(cores: int, gigabytes: int | None, jobs: int) -> None:
    assert default_jobs(cores, None if gigabytes is None else gigabytes * 10**9) == jobs


def test_tables_have_no_duplicates() -> None:
    for name, table in sources.tables().items():
        assert len(table) == len(set(table)), name
