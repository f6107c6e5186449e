"""The local transport: the cells of a study one after the other on this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdtrain import machine, record
from hvdtrain.errors import UserError
from hvdtrain.lock import Locked
from hvdtrain.run_folder import hold
from hvdtrain.submit import progress, summary
from hvdtrain.submit.attempt import Attempt, adopt_orphans
from hvdtrain.submit.cell import Cell, Shape
from hvdtrain.submit.lock import StudyLock
from hvdtrain.submit.options import SLURM_ONLY
from hvdtrain.submit.request import Request
from hvdtrain.submit.script import render_local
from hvdtrain.submit.stop import Stop
from hvdtrain.submit.study import Known, Plan, write_cell


class Local:
    """Runs every cell's script with bash, and records how it ended."""

    name = "local"

    def __init__(self, given: argparse.Namespace) -> None:
        _refuse(given)
        self._auto = given.cluster == "auto"
        self._gpus = 0

    def resolve(self, request: Request) -> tuple[Request, list[str]]:
        """Nothing here depends on a site."""
        return request, []

    def look(self, request: Request) -> list[str]:
        """Find out what this machine has; notes for the user.

        Raises:
            UserError: the machine cannot run the request.
        """
        self._gpus = len(machine.visible_gpus({**os.environ, **request.common.environment}))
        notes = machine.check_ranks(list(request.grid.gpus), self._gpus, machine.cores())
        if request.common.launcher == "mpirun" and machine.find_mpirun() is None:
            raise UserError(
                "--launcher mpirun: there is no mpirun on the PATH; leave --launcher out to start ranks without it"
            )
        if self._auto and shutil.which("sbatch"):
            notes.append("this machine has sbatch, but no SLURM cluster answers it: the cells run here")
        return notes

    def shape(self, gpus: int, gpu_type: str | None = None) -> Shape:
        """All ranks on this machine."""
        return Shape(nodes=1, tasks_per_node=gpus, gpus_per_node=gpus if self._gpus else 0)

    def script(self, cell: Cell, request: Request) -> str:
        """The bytes of the cell's script."""
        return render_local(
            cell,
            folder=request.directory / request.cell_folder(cell.name),
            directory=request.directory,
            python=sys.executable,
            stall_timeout=request.stall_timeout,
        )

    def more_scripts(self, cells: list[Cell], request: Request) -> list[tuple[str, str]]:
        """There are none."""
        return []

    def review(self, folder: Path, known: Mapping[str, Known]) -> Mapping[str, Known]:
        """The records say everything."""
        return known

    def hand_over(self, request: Request, plan: Plan, undo: contextlib.ExitStack) -> list[str]:
        """Nothing: this process runs the cells itself."""
        return []

    def run(self, request: Request, plan: Plan, lock: StudyLock) -> bool:
        """Run the cells of `plan` in order; False when the user stopped it before the end."""
        view = progress.View(plan.run, ended=_ended(request, plan))
        with Stop() as stop, progress.make_display(view) as display:
            adopt_orphans()
            for index, cell in enumerate(plan.run):
                if stop.asked:
                    return False
                view.index, view.epochs = index, []
                folder = request.cell_folder(cell.name)
                try:
                    self._prepare(cell, folder, request)
                except Locked as refusal:  # its script was started by hand, and keeps what it writes
                    display.say(f"{view.place}: not started: {refusal}")
                    continue
                attempt = Attempt(cell, folder, lock)
                result = attempt.run(view, display, stop)
                display.ended(result)
                if result["status"] not in ("completed", "cancelled"):
                    display.say(summary.failure(folder))
                if result["status"] == "completed":
                    view.ended.append((cell.gpus, view.elapsed()))
                if result["status"] == "cancelled":
                    return False
        return True

    def _prepare(self, cell: Cell, folder: Path, request: Request) -> None:
        """The cell's folder as its script needs it: nothing in one where a training works is moved or written."""
        with contextlib.ExitStack() as held:
            if (lock := hold(folder, "--study")) is not None:
                held.enter_context(contextlib.closing(lock))
            write_cell(folder, cell, self.script(cell, request))


def _refuse(given: argparse.Namespace) -> None:
    """An option that would silently change nothing is a mistake."""
    for option in SLURM_ONLY:
        value = getattr(given, option[2:].replace("-", "_"))
        if value is not None:
            raise UserError(
                f"{option} {value}: only a SLURM cluster obeys {option}; "
                "--cluster local would ignore it, so leave it out"
            )
    if given.launcher == "pmix":
        raise UserError(
            "--launcher pmix: ranks find each other by PMIx only under srun; "
            "legal with --cluster local are auto, gloo, mpirun"
        )


def _ended(request: Request, plan: Plan) -> list[tuple[int, float]]:
    """Ranks and seconds of the cells that completed in earlier calls."""
    ranks = {cell.name: cell.gpus for cell in plan.cells}
    results = {name: record.read_json(request.cell_folder(name) / "result.json") or {} for name in plan.finished}
    return [(ranks[name], result["seconds"]) for name, result in results.items() if result.get("seconds") is not None]
