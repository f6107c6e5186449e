"""pip of the running interpreter, also where the environment has none (uv makes such environments)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from hvdtrain.horovod_build.errors import BuildError

# What Horovod imports: installed if missing, never upgraded, so that nothing else moves. Not cffi, which its released
# metadata asks for: nothing in 0.28.1 uses it.
REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging")


def pip_command() -> list[str]:
    """The start of a pip command line for this interpreter."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def pip_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment for ``pip_command``, with the pip that Python itself carries if none is installed."""
    environment = {**os.environ, **(extra or {})}
    if importlib.util.find_spec("pip") is None:
        bundled = _bundled_pip()
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH", ""), bundled]))
    return environment


def _bundled_pip() -> str:
    spec = importlib.util.find_spec("ensurepip")
    folder = Path(spec.origin).parent / "_bundled" if spec is not None and spec.origin is not None else None
    wheels = sorted(folder.glob("pip-*.whl")) if folder is not None else []
    if not wheels:
        raise BuildError(
            "this Python has no pip. Install it (`python -m ensurepip`, `uv pip install pip` or "
            "`apt-get install python3-pip`) and try again."
        )
    return str(wheels[-1])


def missing_requirements() -> list[str]:
    """Those of Horovod's requirements that are not installed."""
    return [name for name in REQUIREMENTS if not _present(name)]


def _present(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def install(wheel: Path) -> None:
    """Install the wheel and what it needs, touching nothing that is installed already."""
    missing = missing_requirements()
    if missing:
        # None of them brings anything along: no framework, no numpy.
        _run(["install", "--upgrade-strategy", "only-if-needed", *missing], f"could not install {', '.join(missing)}")
    _run(["install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)], "could not install Horovod's wheel")


def _run(arguments: list[str], what: str) -> None:
    command = [*pip_command(), *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=pip_environment(), check=False)
    if done.returncode == 0:
        return
    text = done.stdout + done.stderr
    last = "\n  ".join([line for line in text.splitlines() if line.strip()][-8:])
    hint = ""
    if "externally-managed-environment" in text:
        hint = "\nMake an environment of your own first: `python -m venv ~/env && . ~/env/bin/activate`."
    elif "Permission denied" in text or "Read-only file system" in text:
        hint = "\nThis environment is not yours to write. Use one of your own, or --wheel-only DIR for the wheel alone."
    raise BuildError(f"{what}: `{' '.join(command)}` failed with\n  {last}{hint}")
