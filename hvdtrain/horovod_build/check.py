"""Does the installed Horovod fit the installed frameworks? Asked before Horovod is imported.

A Horovod compiled for another torch or TensorFlow does not say so: it fails with an undefined symbol, or crashes.
Nothing here imports Horovod or a framework; a call takes milliseconds.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.horovod_build import host
from hvdtrain.horovod_build.frameworks import find

MARKER = "hvdtrain_build.json"
COMMAND = "hvdtrain build-horovod"


@dataclass(frozen=True)
class BuildInfo:
    """What the installed Horovod was built for. Versions; None where a part was left out."""

    horovod: str
    key: str
    edits: str
    python: str
    platform: str
    compiler: str
    torch: str | None = None
    tensorflow: str | None = None
    mpi: str | None = None
    mpi_library: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    libc: str | None = None
    features: tuple[str, ...] = field(default_factory=tuple)

    @property
    def frameworks(self) -> dict[str, str]:
        """The frameworks it was built for, by name."""
        both = {"torch": self.torch, "tensorflow": self.tensorflow}
        return {name: version for name, version in both.items() if version is not None}

    @property
    def distribution_version(self) -> str:
        """The version of the wheel: Horovod's, with the build's key as a local tag."""
        return f"{self.horovod}+hvdtrain.{self.key[:8]}"

    def as_dict(self) -> dict[str, Any]:
        """For the marker file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BuildInfo:
        """From the marker file; fields that a later version added are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["features"] = tuple(known.get("features", ()))
        return cls(**known)


def package() -> Path | None:
    """The directory of the installed Horovod package, or None."""
    try:
        spec = importlib.util.find_spec("horovod")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def installed() -> BuildInfo | None:
    """What the installed Horovod was built for; None if there is none or it is not one of ours."""
    folder = package()
    if folder is None:
        return None
    try:
        data = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return BuildInfo.from_dict(data)
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # not built by us, or damaged: either way it is to be rebuilt


def python_tag() -> str:
    """Implementation and version that a compiled extension depends on, e.g. ``cpython-3.11``."""
    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"


def problem(frameworks: Sequence[str]) -> str | None:
    """Why the installed Horovod cannot be used with these installed frameworks, and what to type; None if it can.

    ``frameworks`` are among ``"torch"`` and ``"tensorflow"``.

    >>> problem([]) is None or COMMAND in problem([])
    True
    """
    if package() is None:
        return f"Horovod is not installed. Type `{_command(frameworks)}`."
    info = installed()
    if info is None:
        return (
            "the installed Horovod was not built by hvdtrain, so nothing says which frameworks it was compiled for, "
            f"and it lacks the edits that hvdtrain relies on. Type `{_command(frameworks)}` to replace it."
        )
    if info.python != python_tag():
        return (
            f"the installed Horovod was built for {info.python}, this is {python_tag()}. "
            f"Type `{_command(frameworks)}` to rebuild it."
        )
    for name in frameworks:
        found = find(name)
        if found is None:
            return f"{name} is not installed. Type `pip install {name}`, then `{_command(frameworks)}`."
        built = info.frameworks.get(name)
        if built is None:
            have = " and ".join(info.frameworks) or "no framework"
            # Both, or the framework that worked until now stops working.
            both = sorted({*info.frameworks, *frameworks}, reverse=True)
            return f"the installed Horovod was built for {have}, not for {name}. Type `{_command(both)}` to rebuild it."
        if built != found.version:
            return (
                f"the installed Horovod was built for {name} {built}, but {name} {found.version} is installed. "
                f"Type `{_command(tuple(info.frameworks))}` to rebuild it."
            )
    folder = package()
    extensions = [path for name in frameworks for path in (folder or Path()).glob(f"{name}/mpi_lib*.so")]
    if lacking := host.lacks(info.platform, info.libc, extensions):
        return (
            f"the installed Horovod was built {lacking}. Type `{_command(tuple(info.frameworks))}` on the oldest kind of node that "
            "is to run it."
        )
    library = None if info.mpi_library is None else expand_prefix(info.mpi_library)
    if library is not None and not Path(library).exists():
        return (
            f"the installed Horovod was built against {info.mpi}, whose library {library} is no longer there. "
            f"Load that MPI again, or type `{_command(frameworks)}` to rebuild it."
        )
    return None


def relative_to_prefix(path: Path) -> str:
    """The path with this environment's root written as ``{prefix}``: a kept wheel serves several environments."""
    prefix = Path(sys.prefix)
    return f"{{prefix}}/{path.relative_to(prefix).as_posix()}" if path.is_relative_to(prefix) else str(path)


def expand_prefix(path: str) -> str:
    """The inverse of ``relative_to_prefix``."""
    return path.replace("{prefix}", sys.prefix, 1)


def _command(frameworks: Sequence[str]) -> str:
    return f"{COMMAND} --frameworks {','.join(frameworks)}" if frameworks else COMMAND
