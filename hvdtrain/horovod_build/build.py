"""One build: source, edits, compiler, wheel, cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdtrain.horovod_build import cache as wheels
from hvdtrain.horovod_build import edits, source, units
from hvdtrain.horovod_build.check import BuildInfo
from hvdtrain.horovod_build.diagnose import first_error, likely_cause
from hvdtrain.horovod_build.errors import BuildError
from hvdtrain.horovod_build.progress import Progress, clock
from hvdtrain.horovod_build.request import describe, expected_seconds
from hvdtrain.horovod_build.runner import CommandFailed, Runner
from hvdtrain.horovod_build.wheel import write_wheel


def build_wheel(
    tools: units.Tools, info: BuildInfo, cache: Path, *, source_file: Path | None, jobs: int, verbose: bool
) -> Path:
    """Build the wheel described by ``info`` and return its place in the cache. Raises BuildError."""
    compile_units, links = units.plan(tools)
    expected = expected_seconds(compile_units, jobs) + 8.0  # unpacking, a first load of each library, packing
    files = sum(max(len(unit.members), 1) for unit in compile_units)
    print(f"building {describe(info)}")
    print(f"  {tools.compiler_version}, {files} files, {jobs} jobs: about {clock(expected)}", flush=True)
    logs = cache / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log_path = logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    archive = source.archive(cache, source_file)
    with tempfile.TemporaryDirectory(prefix="hvdtrain-horovod-") as folder:
        root = prepare(archive, Path(folder), with_mpi=tools.mpi is not None)
        write_groups(root, compile_units)
        progress = Progress(sum(unit.seconds for unit in compile_units) + 0.5 * len(links), sys.stdout)
        with log_path.open("w", encoding="utf-8") as log:
            try:
                Runner(root, jobs, log, _environment(), echo=sys.stdout if verbose else None).run(
                    compile_units, links, progress
                )
            except CommandFailed as error:
                raise BuildError(_explain(error, log_path)) from error
            finally:
                progress.close()
        libraries = {link.install: root / link.output for link in links}
        _check_loads(tools, libraries, cache)
        made = write_wheel(root, libraries, info, Path(folder))
        kept = wheels.keep(cache, info.key, made)
    shutil.copyfile(log_path, kept.parent / "build.log")
    log_path.unlink()
    return kept


def prepare(archive: Path, folder: Path, *, with_mpi: bool) -> Path:
    """Unpack the source under ``folder``, edit it, write Gloo's generated header; return the source's root."""
    root = source.unpack(archive, folder)
    edits.apply_all(root)
    gloo = root / "third_party" / "gloo" / "gloo"
    template = (gloo / "config.h.in").read_text(encoding="utf-8")
    (gloo / "config.h").write_text(units.gloo_config(template, with_mpi), encoding="utf-8")
    return root


def write_groups(root: Path, compile_units: list[units.Unit]) -> None:
    """Write the files that include the members of each group."""
    for unit in compile_units:
        if unit.members:
            path = root / unit.source
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f'#include "{member}"\n' for member in unit.members), encoding="utf-8")


def _check_loads(tools: units.Tools, libraries: dict[str, Path], cache: Path) -> None:
    """Load each library after its framework, so that one with a symbol missing is never kept."""
    folders = list(tools.mpi.library_dirs) if tools.mpi is not None else []
    folders += [str(tools.nccl.library.parent)] if tools.nccl is not None else []
    path = os.pathsep.join([*folders, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)
    for framework in tools.frameworks:
        library = next(file for place, file in libraries.items() if place.startswith(f"horovod/{framework.name}/"))
        with _loadable(library, cache) as file:
            program = f"import {framework.name}, ctypes; ctypes.CDLL({str(file)!r})"
            done = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=False,
                env={**os.environ, "LD_LIBRARY_PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )  # fmt: skip
        if done.returncode != 0:
            last = ([line for line in done.stderr.splitlines() if line.strip()] or ["no output"])[-1]
            cause = "its version is newer than those tested, or two versions of a library are mixed."
            if "failed to map segment" in last:
                cause = (
                    f"{file.parent} is mounted noexec: type `TMPDIR=DIR hvdtrain build-horovod` with a folder from which "
                    "programs may be started."
                )
            raise BuildError(
                f"the library for {framework.name} {framework.version} was built but does not load:\n  {last}\n"
                f"Likely cause: {cause}"
            )


@contextmanager
def _loadable(library: Path, cache: Path) -> Iterator[Path]:
    """The library at a place from which it may be loaded: at many sites /tmp is mounted noexec."""
    if not os.statvfs(library.parent).f_flag & os.ST_NOEXEC:
        yield library
        return
    with tempfile.TemporaryDirectory(prefix="load-", dir=cache) as folder:
        yield Path(shutil.copy(library, folder))


def _environment() -> dict[str, str]:
    # Error messages in English: the table of causes reads them.
    return {**os.environ, "LC_ALL": "C"}


def _explain(error: CommandFailed, log: Path) -> str:
    lines = [f"compiling {error.name} failed:", f"  {first_error(error.output)}"]
    cause = likely_cause(error.output, error.status)
    if cause is not None:
        lines.append(f"Likely cause: {cause}.")
    lines.append(f"Everything the compiler said: {log}")
    return "\n".join(lines)
