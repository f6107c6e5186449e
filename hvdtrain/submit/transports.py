"""What carries cells to where they run, by name. Each is imported when it is asked for."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from hvdtrain.submit import values
from hvdtrain.submit.cell import Cell, Shape
from hvdtrain.submit.lock import StudyLock
from hvdtrain.submit.options import CLUSTERS
from hvdtrain.submit.request import Request
from hvdtrain.submit.study import Known, Plan


class Transport(Protocol):
    """A place where cells run. Made from the parsed options, which it refuses where it cannot obey them."""

    name: str

    def resolve(self, request: Request) -> tuple[Request, list[str]]:
        """The request with what the place decides, and notes for the user. For --dry-run too."""

    def look(self, request: Request) -> list[str]:
        """Find out what the place has and whether it can run the request; notes for the user. Not for --dry-run."""

    def shape(self, gpus: int, gpu_type: str | None = None) -> Shape:
        """How so many ranks are placed."""

    def script(self, cell: Cell, request: Request) -> str:
        """The script of a cell: the same text for --dry-run, `script.sh`, and what runs."""

    def more_scripts(self, cells: list[Cell], request: Request) -> list[tuple[str, str]]:
        """Headings and texts of scripts beside the cells' own, for --dry-run, which a limit may be against."""

    def review(self, folder: Path, known: Mapping[str, Known]) -> Mapping[str, Known]:
        """What is known of a study's cells, with what the place knows."""

    def hand_over(self, request: Request, plan: Plan, undo: contextlib.ExitStack) -> list[str]:
        """Hand the plan's cells over, all or none; lines for the user. `undo` takes back what is not complete."""

    def run(self, request: Request, plan: Plan, lock: StudyLock) -> bool:
        """Run what the plan says and record how each cell ended; False when the user stopped it."""


def choose(given: argparse.Namespace) -> Transport:
    """The transport for `--cluster`.

    Raises:
        UserError: no such cluster, or it cannot obey one of the options.
    """
    name = values.word("--cluster", given.cluster, CLUSTERS)
    if name == "slurm" or (name == "auto" and _has_slurm()):
        from hvdtrain.submit.slurm import Slurm

        return Slurm(given)
    from hvdtrain.submit.local import Local

    return Local(given)


def _has_slurm() -> bool:
    """Whether this machine belongs to a SLURM cluster, up or down; that the programs are installed is not enough."""
    from hvdtrain.site import commands

    if not commands.present():
        return False
    try:
        commands.call(["scontrol", "show", "config"])
    except commands.SlurmError as error:
        # The words of every client that finds no slurm.conf, neither a file nor one served by a controller.
        return "configuration source" not in str(error) and "slurm.conf" not in str(error)
    return True
