"""Checks of what is installed: Python, frameworks, Horovod, MPI."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import hvdtrain
from hvdtrain import machine
from hvdtrain.doctor.check import REGISTRY, Context, Finding, failed, ok, skipped, warning
from hvdtrain.horovod_build import check as build
from hvdtrain.horovod_build.frameworks import find

_IMPORT_SECONDS = 120
_PART = "installation"


@REGISTRY.add(_PART, "python")
def python(context: Context) -> Finding:
    """Is it a supported version?"""
    shown = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 10):  # noqa: UP036 - a newer one is declared, and yet somebody may start it with another
        return failed(f"Python {shown}", "hvdtrain needs 3.10 or newer", "make an environment with a newer Python")
    return ok(f"Python {shown} at {sys.executable}")


@REGISTRY.add(_PART, "package")
def package(context: Context) -> Finding:
    """Is what is imported what pip says is installed?"""
    here = Path(hvdtrain.__file__).parent
    try:
        installed = metadata.version("hvdtrain")
    except metadata.PackageNotFoundError:
        return warning(
            f"hvdtrain {hvdtrain.__version__} in {here} is not installed",
            "ranks on other nodes find it only while PYTHONPATH or the current folder says where it is",
            f"pip install -e {here.parent}",
        )
    if installed != hvdtrain.__version__:
        return warning(
            f"pip has hvdtrain {installed}, but {hvdtrain.__version__} is imported from {here}",
            "ranks may run another version than you think",
            f"pip install -e {here.parent}",
        )
    return ok(f"hvdtrain {installed} from {here}")


def _frameworks() -> dict[str, str]:
    found = {name: find(name) for name in ("torch", "tensorflow")}
    return {name: each.version for name, each in found.items() if each is not None}


@REGISTRY.add(_PART, "framework")
def framework(context: Context) -> Finding:
    """Is there something to train with?"""
    there = _frameworks()
    if not there:
        return warning(
            "neither torch nor tensorflow is installed",
            "this machine can submit and analyse, but not train",
            "pip install 'hvdtrain[torch]'",
        )
    return ok(", ".join(f"{name} {version}" for name, version in there.items()))


@REGISTRY.add(_PART, "horovod-build")
def horovod_build(context: Context) -> Finding:
    """Was Horovod compiled for the installed frameworks?"""
    there = _frameworks()
    if not there:
        return skipped("no framework is installed")
    problems = {name: build.problem([name]) for name in there}
    if all(problems.values()):
        text = next(iter(problems.values())) or ""
        return failed(text, "training on several ranks would fail, or crash without a word", build.COMMAND)
    wrong = [text for text in problems.values() if text]
    info = build.installed()
    assert info is not None
    what = f"Horovod {info.distribution_version} for {', '.join(f'{n} {v}' for n, v in info.frameworks.items())}"
    if wrong:
        both = ",".join(sorted(there, reverse=True))
        return warning(
            f"{what}; {wrong[0]}", "the other framework trains alone only", f"{build.COMMAND} --frameworks {both}"
        )
    return ok(what)


@REGISTRY.add(_PART, "horovod-loads")
def horovod_loads(context: Context) -> Finding:
    """Does it load? A missing library shows only then, so it is tried in another process."""
    info = build.installed()
    if info is None:
        return skipped("Horovod is not built")
    tried = [name for name in info.frameworks if not build.problem([name])]
    if not tried:
        return skipped("not tried: see horovod-build")
    for name in tried:
        module = f"horovod.{name}"
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            return failed(
                f"import {module}: {last}",
                "no job can start",
                f"{build.COMMAND}, with the modules loaded that jobs load",
            )
    return ok(f"{', '.join(tried)}: the extension loads")


@REGISTRY.add(_PART, "mpi")
def mpi(context: Context) -> Finding:
    """Is the MPI that Horovod was built with still there?"""
    info = build.installed()
    if info is None:
        return skipped("Horovod is not built")
    if info.mpi is None:
        return warning(
            "Horovod was built without MPI",
            "Gloo is the slower of the two for small steps",
            f"pip install 'hvdtrain[mpi]', then {build.COMMAND}",
        )
    library = None if info.mpi_library is None else Path(build.expand_prefix(info.mpi_library))
    if library is not None and not library.exists():
        return failed(
            f"{info.mpi}: {library} is gone",
            "Horovod does not load without it",
            "load that MPI's module, or build again",
        )
    run = machine.find_mpirun()
    return ok(f"{info.mpi}" + (f", mpirun at {run}" if run else "; no mpirun on the PATH (srun needs none)"))


@REGISTRY.add(_PART, "mpi4py")
def mpi4py(context: Context) -> Finding:
    """Is mpi4py there, for jobs that use MPI themselves?"""
    try:
        return ok(f"mpi4py {metadata.version('mpi4py')}")
    except metadata.PackageNotFoundError:
        return skipped("mpi4py is not installed; only jobs that split communicators need it")


@REGISTRY.add(_PART, "cuda")
def cuda(context: Context) -> Finding:
    """Is Horovod built for the GPUs here?"""
    info = build.installed()
    gpus = machine.visible_gpus(dict(_environment()))
    if info is None or not gpus:
        return skipped("no GPU is visible here" if not gpus else "Horovod is not built")
    if info.cuda is None:
        what = f"{len(gpus)} GPUs are visible, and Horovod was built without CUDA"
        if info.torch is None:  # as it is meant to be built for TensorFlow alone
            return ok(f"{what}: TensorFlow's gradients go through the CPU")
        return failed(
            what,
            "PyTorch's ranks on GPUs do not start, and TensorFlow's gradients go through the CPU",
            f"{build.COMMAND} --cuda on   where nvcc is, or CUDA_VISIBLE_DEVICES= to train on CPUs",
        )
    return ok(f"Horovod with CUDA {info.cuda}, NCCL {info.nccl or 'none'}; {len(gpus)} GPUs")


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)
