"""``hvdtrain build-horovod``: the command line, and the order of its steps."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.horovod_build import cache as wheels
from hvdtrain.horovod_build import request as requests
from hvdtrain.horovod_build.build import build_wheel
from hvdtrain.horovod_build.check import installed, problem
from hvdtrain.horovod_build.errors import BuildError, RequestError
from hvdtrain.horovod_build.frameworks import NAMES
from hvdtrain.horovod_build.installer import install
from hvdtrain.horovod_build.progress import clock
from hvdtrain.horovod_build.wheel import file_name
from hvdtrain.paths import make_folder

_DESCRIPTION = """\
Build Horovod 0.28.1 for the torch and TensorFlow installed here, and install it. Finished wheels are kept: the same
combination of versions is compiled once. Says so and does nothing if the installed Horovod fits already.
"""
_EPILOG = """\
examples:
  hvdtrain build-horovod                                  for what is installed, with MPI, CUDA, NCCL if found
  hvdtrain build-horovod --frameworks torch --cuda on     insist on CUDA
  hvdtrain build-horovod --wheel-only dist                only make the wheel, e.g. to carry it to another node

exit status: 0 built, installed or already there; 1 the build failed; 2 the request was wrong
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="hvdtrain build-horovod", description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--frameworks", type=_frameworks, default=(), metavar="LIST",
                      help="torch, tensorflow or torch,tensorflow (default: those installed)")  # fmt: skip
    switches = ("on", "off", "auto")

    def option(name: str, text: str, **how: Any) -> None:
        made.add_argument(name, help=text, **how)

    option("--mpi", "default auto: if mpicxx is found", choices=switches, default="auto")
    option("--cuda", "default auto: if the frameworks and nvcc have it", choices=switches, default="auto")
    option("--cuda-home", "root of the CUDA toolkit (default: CUDA_HOME, nvcc's, /usr/local/cuda)", metavar="DIR")
    option("--nccl", "default auto: if CUDA is used and NCCL is found", choices=switches, default="auto")
    option("--nccl-home", "root of NCCL (default: its PyPI wheel, then the system's)", metavar="DIR")
    option("--jobs", "parts compiled at once (default: cores, if memory allows)", type=_jobs, metavar="N")
    option("--source", "horovod-0.28.1.tar.gz (default: downloaded with pip)", type=Path, metavar="FILE")
    option("--cache-dir", "where wheels are kept (default: ~/.cache/hvdtrain/horovod)", type=Path, metavar="DIR")
    made.add_argument("--force", action="store_true", help="build again even if there is a fitting one")
    made.add_argument("--wheel-only", type=Path, metavar="DIR", help="put the wheel into DIR and install nothing")
    made.add_argument("--verbose", action="store_true", help="show every compiler command and its warnings")
    return made


def _frameworks(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = [name for name in names if name not in NAMES]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: give torch, tensorflow or torch,tensorflow")
    return tuple(name for name in NAMES if name in names)


def _jobs(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: the process's) and return its exit status."""
    try:
        options = parser().parse_args(argv)
    except SystemExit as stop:  # argparse's way out: 0 after --help, 2 after a wrong option
        return int(stop.code or 0)
    try:
        return _run(options)
    except (RequestError, UserError) as error:
        print(f"hvdtrain build-horovod: {error}", file=sys.stderr)
        return 2
    except BuildError as error:
        print(f"hvdtrain build-horovod: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nhvdtrain build-horovod: interrupted, nothing was installed", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    asked = requests.Request(options.frameworks, options.mpi, options.cuda, options.cuda_home,
                             options.nccl, options.nccl_home)  # fmt: skip
    tools, remarks = requests.choose_tools(asked)
    info = requests.build_info(tools)
    have = installed()
    names = tuple(info.frameworks)
    changes = [] if have is None else requests.differences(have, info)
    if not options.force and options.wheel_only is None and have is not None and not changes and problem(names) is None:
        print(f"already installed and matching: {requests.describe(have)}")
        return 0
    for remark in remarks:
        print(f"note: {remark}")
    if changes and options.wheel_only is None:
        print(f"the installed Horovod does not match: {'; '.join(changes)}")
    if options.wheel_only is not None:
        make_folder(options.wheel_only, "the folder for the wheel")
    store = options.cache_dir if options.cache_dir is not None else wheels.default_cache()
    wheel = None if options.force else wheels.find(store, info.key, file_name(info.distribution_version))
    if wheel is not None:
        print(f"found a kept wheel of {requests.describe(info)}")
    else:
        jobs = options.jobs or requests.default_jobs(len(os.sched_getaffinity(0)), requests.available_memory())
        make_folder(store, "the folder of kept wheels")
        wheel = build_wheel(tools, info, store, source_file=options.source, jobs=jobs, verbose=options.verbose)
    if options.wheel_only is not None:
        target = options.wheel_only / wheel.name
        target.write_bytes(wheel.read_bytes())
        print(f"wrote {target} in {clock(time.monotonic() - began)}")
        return 0
    install(wheel)
    trouble = problem(names)
    if trouble is not None:
        raise BuildError(f"installed, but still not usable: {trouble}")
    print(f"installed {requests.describe(info)} in {clock(time.monotonic() - began)}")
    return 0
