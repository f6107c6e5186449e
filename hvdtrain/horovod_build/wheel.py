"""Puts Horovod's Python files, the compiled libraries and the marker into a wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

from hvdtrain.horovod_build.check import MARKER, BuildInfo
from hvdtrain.horovod_build.installer import REQUIREMENTS

_METADATA = """\
Metadata-Version: 2.1
Name: horovod
Version: {version}
Summary: Distributed training framework for TensorFlow, Keras, PyTorch, and Apache MXNet.
Home-page: https://github.com/horovod/horovod
Author: The Horovod Authors
License: Apache 2.0
License-File: LICENSE
Requires-Python: >=3.6
{requirements}

Horovod {upstream}, built by hvdtrain for the frameworks named in horovod/hvdtrain_build.json.
"""


def tags() -> tuple[str, str, str]:
    """Interpreter, ABI and platform tag of the running Python."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return version, version + getattr(sys, "abiflags", ""), sysconfig.get_platform().replace("-", "_").replace(".", "_")


def file_name(version: str) -> str:
    """The wheel's file name for this Python and platform."""
    return "-".join(["horovod", version, *tags()]) + ".whl"


def write_wheel(source: Path, libraries: dict[str, Path], info: BuildInfo, into: Path) -> Path:
    """Write the wheel into the directory ``into`` and return its path.

    ``libraries`` maps a place in the wheel to the built file.
    """
    version = info.distribution_version
    files: dict[str, bytes] = {}
    for path in sorted((source / "horovod").rglob("*.py")):
        files[path.relative_to(source).as_posix()] = path.read_bytes()
    for place, library in sorted(libraries.items()):
        files[place] = library.read_bytes()
    files["horovod/metadata.json"] = _json(_upstream_metadata(info))
    files[f"horovod/{MARKER}"] = _json(info.as_dict())
    folder = f"horovod-{version}.dist-info"
    needs = "\n".join(f"Requires-Dist: {name}" for name in REQUIREMENTS)
    metadata = _METADATA.format(version=version, requirements=needs, upstream=info.horovod)
    files[f"{folder}/METADATA"] = metadata.encode()
    interpreter, abi, platform = tags()
    files[f"{folder}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: hvdtrain\nRoot-Is-Purelib: false\nTag: {interpreter}-{abi}-{platform}\n"
    ).encode()
    files[f"{folder}/entry_points.txt"] = b"[console_scripts]\nhorovodrun = horovod.runner.launch:run_commandline\n"
    files[f"{folder}/top_level.txt"] = b"horovod\n"
    files[f"{folder}/LICENSE"] = (source / "LICENSE").read_bytes()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{folder}/RECORD"] = (record + f"{folder}/RECORD,,\n").encode()

    target = into / file_name(version)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    os.replace(aside, target)
    return target


def _upstream_metadata(info: BuildInfo) -> dict[str, str]:
    # Horovod itself reads this one, to warn about another version of a framework.
    names = {"torch": "pytorch", "tensorflow": "tensorflow"}
    return {names[name]: version for name, version in info.frameworks.items()} | {"dummy": "none"}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
