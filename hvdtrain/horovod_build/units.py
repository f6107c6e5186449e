"""What is compiled and how: the list of source files, their flags, and the link lines.

Horovod's own CMake project is not used. It imports torch seven times to find its directories, compiles Horovod's common
sources once per framework and Gloo twice, and needs CMake. Here the common sources and Gloo are compiled once, each group
of files is one compiler command, and the two extensions are linked from the same objects.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.horovod_build import sources
from hvdtrain.horovod_build.frameworks import Framework, cxx11_abi
from hvdtrain.horovod_build.toolchain import Cuda, Mpi, Nccl

# Raise when code below changes what a build gives; the tables count by themselves.
_RECIPE = 2

_BASE = (
    "-fPIC", "-pthread", "-DNDEBUG", "-DEIGEN_MPL2_ONLY=1", "-DHAVE_GLOO=1", "-w",
    # Since gcc 13 the standard headers no longer bring these along; a dozen files of Horovod and Gloo count on it.
    "-include", "cstdint", "-include", "stdexcept",
)  # fmt: skip
# Horovod's Eigen and TensorFlow's differ in version and would meet in one library: give ours another name.
_OWN_EIGEN = ("-DEigen=horovod_eigen",)
_OPTIMISE = "-O3"
# Argument parsing around a call into the framework, and the parameter tuner, which runs once in many steps: nothing
# that a higher level could speed up, and slow to compile.
_OPTIMISE_LITTLE = "-O1"

# The CUDA architectures a data centre may have, by the toolkit that still or already knows them.
# A kernel that no code fits does not start, which Horovod never looks at: gradients would silently stay unaveraged.
_CUDA_ARCHITECTURES = ((70, 0, 12), (75, 0, 99), (80, 11, 99), (90, 12, 99), (100, 13, 99))
# P100 and GTX 10xx. Apart from the others, which mark builds without CUDA too: those are to stay what they are.
_PASCAL = ((60, 0, 12),)
# What may stand before the compiler in CXX; nvcc takes no more than one program.
_COMPILER_CACHES = ("ccache", "sccache", "distcc", "icecc")


@dataclass(frozen=True)
class Unit:
    """One compiler call: ``command`` makes ``output`` from ``source``, a file that only includes ``members``.

    ``seconds`` is its CPU time on one core (AMD EPYC, gcc 12.2): for the order, and for the time to say at the start.
    """

    name: str
    source: str
    members: tuple[str, ...]
    output: str
    command: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Link:
    """One linker call, after all units; ``install`` is the library's place in the wheel."""

    output: str
    install: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Tools:
    """What a build uses, as found by the toolchain module."""

    frameworks: tuple[Framework, ...]
    compiler: tuple[str, ...]
    compiler_version: str
    python_include: Path
    extension_suffix: str
    cpu_flags: tuple[str, ...]
    mpi: Mpi | None = None
    cuda: Cuda | None = None
    nccl: Nccl | None = None


def cxx_standard(framework: Framework) -> str:
    """The C++ standard a framework's headers need."""
    if framework.name == "torch" and framework.release >= (2, 14):
        return "c++20"  # std::strong_ordering
    return "c++17"


def plan(tools: Tools) -> tuple[list[Unit], list[Link]]:
    """Every compiler call for ``tools``, relative to the root of Horovod's source, longest first, and the links."""
    units: dict[str, Unit] = {}
    links: list[Link] = []
    for framework in tools.frameworks:
        abi = cxx11_abi(framework)
        mine = [*_common_units(tools, abi), *_framework_units(tools, framework, abi)]
        units.update((unit.output, unit) for unit in mine)
        links.append(_link(tools, framework, [unit.output for unit in mine]))
    return sorted(units.values(), key=lambda unit: -unit.seconds), links


def _common_units(tools: Tools, abi: int) -> list[Unit]:
    mpi = tools.mpi is not None
    shared = [*_definitions(tools), *_includes(), "-std=c++17"]
    own = [_OPTIMISE, *shared, "-Ithird_party/eigen", *_OWN_EIGEN]
    tuner = [_OPTIMISE_LITTLE, *own[1:]]
    gloo = [_OPTIMISE, *shared]
    gpu = (sources.CUDA + sources.CUDA_MPI * mpi) if tools.cuda is not None else []
    gpu += (sources.NCCL + sources.NCCL_MPI * mpi) if tools.nccl is not None else []
    groups = [
        ("core", "horovod/common", sources.CORE, own, 16.0),
        ("operations", "horovod/common", sources.OPERATIONS + sources.MPI * mpi, own, 16.0),
        ("tuner", "horovod/common", sources.TUNER, tuner, 7.0),
        ("GPU operations", "horovod/common", gpu, own, 12.0),
        ("gloo", "third_party/gloo/gloo", sources.GLOO + sources.GLOO_MPI * mpi, gloo, 8.0),
        ("gloo allreduce", "third_party/gloo/gloo", sources.GLOO_ALONE, gloo, 2.0),
    ]
    found = [_unit(tools, abi, *group) for group in groups if group[2]]
    if tools.cuda is not None:
        found.append(_kernel_unit(tools, tools.cuda, abi))
    return found


def _framework_units(tools: Tools, framework: Framework, abi: int) -> list[Unit]:
    flags = [_OPTIMISE_LITTLE, f"-std={cxx_standard(framework)}", *_definitions(tools), *_includes()]
    if framework.name == "torch":
        include = framework.path / "include"
        flags += ["-Ithird_party/eigen", *_OWN_EIGEN]
        flags += _system(include, include / "torch" / "csrc" / "api" / "include", tools.python_include)
        return [_unit(tools, abi, "torch", "horovod/torch", sources.TORCH, flags, 18.0)]
    major, minor = framework.release
    flags += [f"-DTENSORFLOW_VERSION={major * 1_000_000_000 + minor * 1_000_000}", "-DEIGEN_MAX_ALIGN_BYTES=64"]
    flags += _system(framework.path / "include")
    # Not xla_mpi_ops.cc: it needs XLA headers that TensorFlow's wheel no longer ships complete.
    return [_unit(tools, abi, "tensorflow", "horovod/tensorflow", ["mpi_ops"], flags, 40.0)]


def _definitions(tools: Tools) -> list[str]:
    found = []
    if tools.mpi is not None:
        found += ["-DHAVE_MPI=1", *tools.mpi.compile_flags]
    if tools.cuda is not None:
        found += ["-DHAVE_CUDA=1", "-DHAVE_GPU=1", "-DHAVE_NVTX=1"]
        found += _system(tools.cuda.home / "include")
    if tools.nccl is not None:
        # 78 is 'N': Horovod compares the first letter of the library's name.
        operations = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")
        found += ["-DHAVE_NCCL=1", *(f"-DHOROVOD_GPU_{name}=78" for name in operations)]
        found += _system(tools.nccl.include)
    return found


def _includes() -> list[str]:
    folders = [f"third_party/boost/{name}/include" for name in sources.BOOST]
    folders += ["third_party/HTTPRequest/include", "third_party/lbfgs/include", "third_party/flatbuffers/include"]
    return [f"-I{folder}" for folder in [*folders, "third_party/gloo"]]


def _system(*folders: Path) -> list[str]:
    return [word for folder in folders for word in ("-isystem", str(folder))]


def _unit(tools: Tools, abi: int, name: str, folder: str, files: list[str], flags: list[str], seconds: float) -> Unit:
    stem = f"build/abi{abi}/{name.replace(' ', '_')}"
    members = tuple(f"{folder}/{file}.cc" for file in files)
    command = (*tools.compiler, *_BASE, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *tools.cpu_flags, *flags,
               "-I.", "-c", f"{stem}.cc", "-o", f"{stem}.o")  # fmt: skip
    return Unit(name, f"{stem}.cc", members, f"{stem}.o", command, seconds)


def _kernel_unit(tools: Tools, cuda: Cuda, abi: int) -> Unit:
    source = "horovod/common/ops/cuda/cuda_kernels.cu"
    output = f"build/abi{abi}/{source.removesuffix('.cu')}.o"
    major = int(cuda.version.split(".")[0])
    known = [number for number, first, last in (*_PASCAL, *_CUDA_ARCHITECTURES) if first <= major <= last]
    code = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in known]
    # PTX of the newest, which the driver compiles for GPUs that came later.
    code.append(f"-gencode=arch=compute_{known[-1]},code=compute_{known[-1]}")
    command = (str(cuda.nvcc), "-O3", "-std=c++17", "-Xcompiler", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
               *_host_compiler(tools.compiler), *code, "-c", source, "-o", output)  # fmt: skip
    return Unit("CUDA kernels", source, (), output, command, 8.0 * len(known))


def _host_compiler(compiler: tuple[str, ...]) -> list[str]:
    """The words that make nvcc use this C++ compiler, given as one writes it in CXX: `ccache g++ -B/opt/x`."""
    before = next((place for place, word in enumerate(compiler) if Path(word).name not in _COMPILER_CACHES), 0)
    program, *options = compiler[before:]
    # nvcc splits at commas, and nothing is linked by it.
    passed_on = [word for option in options if not option.startswith("-Wl,") for word in ("-Xcompiler", option)]
    return ["-ccbin", program, *passed_on]


def _link(tools: Tools, framework: Framework, objects: list[str]) -> Link:
    name = "mpi_lib_v2" if framework.name == "torch" else "mpi_lib"
    install = f"horovod/{framework.name}/{name}{tools.extension_suffix}"
    output = f"build/{install}"
    command = [*tools.compiler, "-shared", "-pthread", "-s", *objects, "-o", output]
    command += ["-Wl,--version-script=horovod.lds", "-Wl,-Bsymbolic-functions", "-Wl,-z,relro,-z,now"]
    command += _libraries(framework, with_cuda=tools.cuda is not None)
    if tools.mpi is not None:
        command += tools.mpi.link_flags
        command += [f"-Wl,-rpath,{_run_path(folder)}" for folder in tools.mpi.library_dirs]
    if tools.cuda is not None:
        folder = tools.cuda.home / "lib64"
        command += [f"-L{folder}", f"-L{tools.cuda.home / 'lib'}", "-lcudart_static", "-lrt"]
    if tools.nccl is not None:
        command += [str(tools.nccl.library), "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"]
        command += [f"-Wl,-rpath,{tools.nccl.library.parent}"]
    # Gloo looks interface addresses up; dlopen is NVTX's.
    return Link(output, install, (*command, "-ldl"))


def _run_path(folder: str) -> str:
    # An MPI inside the environment is named relative to the extension: the wheel is kept and also fits the next
    # environment with the same versions.
    if not Path(folder).is_relative_to(sys.prefix):
        return folder
    extension = Path(sysconfig.get_paths()["platlib"]) / "horovod" / "torch"
    return "$ORIGIN/" + os.path.relpath(folder, extension)


def _libraries(framework: Framework, with_cuda: bool) -> list[str]:
    if framework.name == "torch":
        names = ["c10", "torch", "torch_cpu", "torch_python"]
        names += ["c10_cuda", "torch_cuda"] if with_cuda else []
        folder = framework.path / "lib"
        # The framework is imported first and its libraries are then found by name; the path is for tools like ldd.
        return [f"-L{folder}", "-Wl,--no-as-needed", *(f"-l{name}" for name in names), "-Wl,--as-needed",
                "-Wl,-rpath,$ORIGIN/../../torch/lib"]  # fmt: skip
    # Not python/_pywrap_tensorflow_internal.so, which older recipes add: nothing in it is needed, it has no soname and
    # takes seconds to link.
    libraries = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
    present = [f"-l:{name}" for name in libraries if (framework.path / name).is_file()]
    return [f"-L{framework.path}", *present, "-Wl,-rpath,$ORIGIN/../../tensorflow"]


def gloo_config(template: str, with_mpi: bool) -> str:
    """Gloo's ``config.h`` from its template: TCP is the only transport."""
    values = {"MAJOR": "0", "MINOR": "5", "PATCH": "0"}
    on = {"GLOO_HAVE_TRANSPORT_TCP"} | ({"GLOO_USE_MPI"} if with_mpi else set())
    lines = []
    for line in template.splitlines():
        if line.startswith("#cmakedefine01 "):
            name = line.split()[1]
            lines.append(f"#define {name} {int(name in on)}")
            continue
        lines.append(re.sub(r"@GLOO_VERSION_(\w+)@", lambda match: values[match[1]], line))
    return "\n".join(lines) + "\n"


def fingerprint(*, cuda: bool) -> str:
    """Changes whenever the recipe above may give another library, with or without CUDA."""
    parts: tuple[object, ...] = (
        sources.tables(),
        _RECIPE,
        _BASE,
        _OWN_EIGEN,
        _OPTIMISE,
        _OPTIMISE_LITTLE,
        _CUDA_ARCHITECTURES,
    )
    parts += (_PASCAL,) if cuda else ()
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
