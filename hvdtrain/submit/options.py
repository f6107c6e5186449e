"""The command line of `submit` as data: which options there are, and what the help says. Only argparse is imported."""

from __future__ import annotations

import argparse
from typing import NoReturn

from hvdtrain.errors import UserError, nearest

#: Options that a scheduler obeys and one machine cannot. The local cluster refuses them instead of ignoring them.
SLURM_ONLY: dict[str, tuple[str, str]] = {
    "--gpu-type": ("TYPE[,TYPE]", "GPU types to compare, as the site calls them (axis)"),
    "--gpus-per-node": ("N", "GPUs to use on each node"),
    "--cpus-per-task": ("N", "CPU cores for each rank"),
    "--partition": ("NAME", "partition to queue in"),
    "--account": ("NAME", "account to charge"),
    "--qos": ("NAME", "quality of service"),
    "--time": ("TIME", "time limit of a cell"),
    "--mem": ("SIZE", "memory of a node"),
    "--container": ("IMAGE", "container image to run in"),
    "--site": ("FILE", "site profile: what is particular to a cluster"),
    "--max-parallel": ("N", "cells that may run at the same time"),
    "--max-gpu-hours": ("HOURS", "refuse a grid that could use more in one start of each cell, by its --time"),
}
CLUSTERS = ("auto", "local", "slurm")
LAUNCHERS = ("auto", "gloo", "pmix", "mpirun")


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that every mistake is printed by the same few lines."""

    def error(self, message: str) -> NoReturn:
        hint = (
            '; a value that begins with "-" is written --option=value'
            if message.endswith("expected one argument")
            else ""
        )
        raise UserError(f"{message}{hint}")


def split_job_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first `--`, and the job's own arguments after it."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def parse(argv: list[str]) -> argparse.Namespace:
    """The options in `argv` as text, with `job_arguments` for what follows `--`.

    Raises:
        UserError: an option that does not exist (names the nearest), a missing value, or a stray word.
    """
    own, job_arguments = split_job_arguments(argv)
    parser = build_parser()
    options, unknown = parser.parse_known_args(own)
    if unknown:
        raise UserError(_unknown(unknown[0], parser))
    options.job_arguments = job_arguments
    return options


def _unknown(word: str, parser: argparse.ArgumentParser) -> str:
    name = word.split("=", 1)[0]
    if not name.startswith("-"):
        return f'"{word}" is not an option; the job is named by --job, and arguments for it stand after --'
    legal = [option for action in parser._actions for option in action.option_strings]
    hint = nearest(name, legal) or "; --help lists them"
    return f"there is no option {name}{hint} (an option of the job is given as --set {name.lstrip('-')}=VALUE)"


def build_parser() -> argparse.ArgumentParser:
    """The parser; every value stays text here, `hvdtrain.submit.request` reads it."""
    parser = _Parser(
        prog="python -m hvdtrain.submit",
        usage="python -m hvdtrain.submit --gpus N[,N] [options] [-- job arguments]",
        description="Train one job with every combination of the given values, each in its own run folder.",
        epilog='"axis" marks options that take several values, separated by commas: all combinations are run. '
        "Exit status: 0 all cells succeeded, 1 some failed or were cancelled, 2 the request was wrong.",
        allow_abbrev=False,
    )
    _grid_options(parser.add_argument_group("what to train"))
    _study_options(parser.add_argument_group("the study"))
    _run_options(parser.add_argument_group("how to run it"))
    scheduler = parser.add_argument_group("on a SLURM cluster only", "with --cluster local these are refused")
    for name, (metavar, text) in SLURM_ONLY.items():
        scheduler.add_argument(name, metavar=metavar, help=text)
    return parser


def _grid_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gpus", metavar="N[,N]", help="ranks, one per GPU; without GPUs they run on CPUs (axis)")
    group.add_argument(
        "--job", metavar="NAME|FILE.py", help="what to train (default: job in hvdtrain.toml, else digits)"
    )
    group.add_argument("--batch-size", metavar="N[,N]", help="samples per rank and step (axis)")
    group.add_argument("--lr-rule", metavar="RULE[,RULE]", help="how the learning rate grows with the ranks (axis)")
    group.add_argument("--seeds", metavar="N|LIST", help="3 means 0,1,2; with a comma these seeds: 5,7 or 5, (axis)")
    group.add_argument("--epochs", metavar="N", help="passes over the training data")
    group.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option --KEY VALUE of the job; may be repeated (axis)",
    )


def _study_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--study", metavar="NAME", help="folder of the study below --out (default: the job's name)")
    group.add_argument("--out", metavar="DIR", default="runs", help="where studies are kept (default: runs)")
    group.add_argument("--retry-failed", action="store_true", help="run cells again that failed in an earlier call")
    group.add_argument("--dry-run", action="store_true", help="print the scripts; run nothing, create nothing")
    group.add_argument(
        "--then-report", action="store_true", help="afterwards run python -m analysis report on the study"
    )


def _run_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--cluster", metavar="NAME", default="auto", help="auto, local (this machine) or slurm (default: auto)"
    )
    group.add_argument("--launcher", metavar="NAME", default="auto", help=f"how ranks start: {', '.join(LAUNCHERS)}")
    group.add_argument(
        "--env",
        dest="environment",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="environment variable for the job; may be repeated",
    )
    group.add_argument(
        "--stall-timeout",
        metavar="SECONDS",
        help="end a cell of several ranks in which none makes progress for so long (default 300, before the first step twice "
        "that; never: --env HVDTRAIN_STALL_TIMEOUT=0)",
    )
    group.add_argument(
        "--wait", action="store_true", help="on SLURM: return when all cells have ended; here it is always so"
    )
