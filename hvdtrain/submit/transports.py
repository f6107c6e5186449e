"""What carries cells to where they run, by name. Each is imported when it is asked for."""

from __future__ import annotations

import argparse
from typing import Protocol

from hvdtrain.errors import UserError
from hvdtrain.submit import values
from hvdtrain.submit.cell import Cell, Shape
from hvdtrain.submit.lock import StudyLock
from hvdtrain.submit.options import CLUSTERS
from hvdtrain.submit.request import Request
from hvdtrain.submit.study import Plan


class Transport(Protocol):
    """A place where cells run. Made from the parsed options, which it refuses where it cannot obey them."""

    name: str

    def look(self, request: Request) -> list[str]:
        """Find out what the place has and whether it can run the request; notes for the user. Not for --dry-run."""

    def shape(self, gpus: int) -> Shape:
        """How so many ranks are placed."""

    def script(self, cell: Cell, request: Request) -> str:
        """The script of a cell: the same text for --dry-run, `script.sh`, and what runs."""

    def run(self, request: Request, plan: Plan, lock: StudyLock) -> bool:
        """Run what the plan says and record how each cell ended; False when the user stopped it."""


def choose(given: argparse.Namespace) -> Transport:
    """The transport for `--cluster`.

    Raises:
        UserError: no such cluster, or it cannot obey one of the options.
    """
    name = values.word("--cluster", given.cluster, CLUSTERS)
    if name == "slurm":
        raise UserError(
            "--cluster slurm: submission to SLURM is not part of this version yet; "
            "--cluster local runs the cells on this machine"
        )
    from hvdtrain.submit.local import Local

    return Local(given)
