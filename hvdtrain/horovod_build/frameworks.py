"""Which torch and TensorFlow are installed, read from their files: importing either takes seconds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

NAMES = ("torch", "tensorflow")

# One import package, several distributions.
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tensorflow-rocm"),
}


@dataclass(frozen=True)
class Framework:
    """An installed framework: its version with its local tag, where it is, and the CUDA it was built for."""

    name: str
    version: str
    path: Path
    cuda: str | None

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        return release_of(self.version)


def release_of(version: str) -> tuple[int, int]:
    """``"2.13.0+cpu"`` -> ``(2, 13)``."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    return int(match[1]), int(match[2])


def find(name: str) -> Framework | None:
    """The installed framework called ``name``, or None. Nothing is imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a half-removed package, or one whose __spec__ is None
        return None
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    # A namespace package (an empty directory left behind by an uninstall) has no origin and is not the framework.
    if spec is None or spec.origin is None or not locations:
        return None
    path = Path(locations[0])
    if name == "torch":
        version, cuda = _torch_version(path)
    else:
        version, cuda = _distribution_version(name), _tensorflow_cuda(path)
    return None if version is None else Framework(name, version, path, cuda)


def _torch_version(path: Path) -> tuple[str | None, str | None]:
    # version.py has the local tag (+cpu, +cu130); the metadata of wheels from PyPI has not.
    try:
        text = (path / "version.py").read_text(encoding="utf-8")
    except OSError:
        return _distribution_version("torch"), None
    version = re.search(r"""^__version__\s*(?::[^=]*)?=\s*['"]([^'"]+)['"]""", text, re.MULTILINE)
    cuda = re.search(r"""^cuda\s*(?::[^=]*)?=\s*['"]([^'"]+)['"]""", text, re.MULTILINE)
    return (version[1] if version else _distribution_version("torch")), (cuda[1] if cuda else None)


def _distribution_of(name: str) -> str | None:
    for distribution in _DISTRIBUTIONS[name]:
        try:
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return distribution
    return None


def _distribution_version(name: str) -> str | None:
    distribution = _distribution_of(name)
    return None if distribution is None else importlib.metadata.version(distribution)


def _tensorflow_cuda(path: Path) -> str | None:
    try:
        text = (path / "python" / "platform" / "build_info.py").read_text(encoding="utf-8")
    except OSError:
        return None
    if not re.search(r"""['"]is_cuda_build['"]\s*,\s*True""", text):
        return None
    version = re.search(r"""['"]cuda_version['"]\s*,\s*['"]([^'"]+)['"]""", text)
    return version[1] if version else "unknown"


def _contains(library: Path, needle: bytes) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        return memory.find(needle) >= 0


def cxx11_abi(framework: Framework) -> int:
    """1 if the framework's C++ strings are libstdc++'s new ones, 0 if the old ones (torch wheels before 2.6)."""
    library = "lib/libc10.so" if framework.name == "torch" else "libtensorflow_framework.so.2"
    path = framework.path / library
    return int(_contains(path, b"NSt7__cxx1112basic_string")) if path.is_file() else 1
