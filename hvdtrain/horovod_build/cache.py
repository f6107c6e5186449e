"""Keeps finished wheels, one directory per key. Written aside, then renamed: never half there, safe between builds."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/hvdtrain/horovod``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hvdtrain" / "horovod"


def find(cache: Path, key: str, name: str) -> Path | None:
    """The kept wheel called ``name`` for ``key``, or None."""
    wheel = cache / key / name
    return wheel if wheel.is_file() else None


def keep(cache: Path, key: str, wheel: Path) -> Path:
    """Copy ``wheel`` into the cache and return its place there."""
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=cache))
    try:
        shutil.copyfile(wheel, aside / wheel.name)
        aside.chmod(0o755)  # mkdtemp makes it private; a cache may be shared by a group
        target = cache / key
        try:
            os.rename(aside, target)
        except OSError:
            # Another build of the same key was faster, or --force rebuilt it: replace the file in one step.
            target.mkdir(exist_ok=True)
            os.replace(aside / wheel.name, target / wheel.name)
        return target / wheel.name
    finally:
        shutil.rmtree(aside, ignore_errors=True)
