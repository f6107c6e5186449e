"""The `hvdtrain` command: sends each subcommand to its module, imported only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

import hvdtrain
from hvdtrain.errors import UserError, nearest, run_cli

#: Subcommand -> the module whose `main(argv)` it is (or the function after a colon), and one line of help.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "submit": ("hvdtrain.submit.cli", "train a job over a grid of GPU counts and settings"),
    "status": ("hvdtrain.submit.status", "how far every cell of a study is"),
    "logs": ("hvdtrain.submit.control:logs", "what the cells of a study print"),
    "cancel": ("hvdtrain.submit.control:cancel", "end the jobs of a study"),
    "retry": ("hvdtrain.submit.again:retry", "submit again the cells that failed"),
    "resume": ("hvdtrain.submit.again:resume", "submit again the cells that were ended early"),
    "site": ("hvdtrain.site.cli", "what is particular to this cluster: show it, or find it out"),
    "doctor": ("hvdtrain.doctor.cli", "what is wrong here, before a job finds out"),
    "run": ("hvdtrain.run", "one rank of a job, under any launcher or alone"),
    "launch": ("hvdtrain.launch.cli", "start ranks of a job on this machine"),
    "new": ("hvdtrain.new", "write a job of your own to begin with"),
    "fetch": ("hvdtrain.data.fetch", "download a study's data"),
    "build-horovod": ("hvdtrain.horovod_build.cli", "compile Horovod for the installed frameworks"),
    "testcluster": ("hvdtrain.testcluster.cli", "a real SLURM cluster on one machine, for tests"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return run_cli(_dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int:
    if argv and argv[0] in COMMANDS:
        module, _, function = COMMANDS[argv[0]][0].partition(":")
        command: Callable[[Sequence[str]], int | None] = getattr(importlib.import_module(module), function or "main")
        return command(list(argv[1:])) or 0
    if argv and not argv[0].startswith("-"):
        raise UserError(
            f'there is no command "{argv[0]}"; the commands are {", ".join(COMMANDS)}{nearest(argv[0], COMMANDS)}'
        )
    parser = argparse.ArgumentParser(
        prog="hvdtrain",
        usage="hvdtrain COMMAND [options]",
        description=hvdtrain.__doc__,
        epilog="commands:\n"
        + "\n".join(f"  {name:<14} {text}" for name, (_, text) in COMMANDS.items())
        + "\n\nhvdtrain COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hvdtrain {hvdtrain.__version__}")
    parser.parse_args(argv)
    print(parser.format_help(), end="", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
