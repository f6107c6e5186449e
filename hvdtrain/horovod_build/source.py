"""Horovod's released source: fetched through pip, checked, unpacked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from hvdtrain.horovod_build.errors import BuildError, RequestError
from hvdtrain.horovod_build.installer import pip_command, pip_environment

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
_ARCHIVE = f"horovod-{VERSION}.tar.gz"


def digest(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        found = hashlib.sha256()
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def archive(cache: Path, given: Path | None) -> Path:
    """The source archive: ``given``, or the one in ``cache``, or a fresh download; its checksum is verified."""
    if given is not None:
        if not given.is_file():
            raise RequestError(f"--source {given}: no such file. Give the path of {_ARCHIVE}.")
        if digest(given) != SHA256:
            raise RequestError(
                f"--source {given}: sha256 is {digest(given)}, not that of {_ARCHIVE} ({SHA256}). "
                "Give the unchanged source release, or leave --source out to download it."
            )
        return given
    kept = cache / "source" / _ARCHIVE
    if kept.is_file() and digest(kept) == SHA256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        fresh = _download(Path(folder))
        found = digest(fresh)
        if found != SHA256:
            raise BuildError(
                f"the downloaded {_ARCHIVE} has sha256 {found} instead of {SHA256}: it is damaged or was altered on "
                "the way. Try again, or fetch it elsewhere and pass --source FILE."
            )
        os.replace(fresh, kept)
    return kept


def _download(folder: Path) -> Path:
    # Through pip, so that the user's index, mirror, proxy and certificates are honoured. pip runs the package's
    # setup.py even for a mere download; that needs these three, put where only this pip sees them.
    tools, target = folder / "tools", folder / "download"
    _run(["install", "--target", str(tools), "setuptools<81", "wheel", "packaging"], {})
    path = os.pathsep.join(filter(None, [str(tools), os.environ.get("PYTHONPATH", "")]))
    _run(
        ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(target),
         f"horovod=={VERSION}"],
        {"PYTHONPATH": path},
    )  # fmt: skip
    return target / _ARCHIVE


def _run(arguments: list[str], extra: dict[str, str]) -> None:
    command = [*pip_command(), *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=pip_environment(extra), check=False)
    if done.returncode != 0:
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-8:]
        raise BuildError(
            f"could not download Horovod's source: `{' '.join(command)}` failed with\n  " + "\n  ".join(last) + "\n"
            f"Without internet access, copy {_ARCHIVE} here and pass --source FILE."
        )


def unpack(path: Path, into: Path) -> Path:
    """Unpack the archive under ``into`` and return the source's root."""
    with tarfile.open(path) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(into, filter="data")
        else:  # Python before its 2023 security releases; the checksum above says what the archive holds
            tar.extractall(into)
    return into / f"horovod-{VERSION}"
