"""The SLURM transport: cells become jobs, and this process may go."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hvdtrain import attempts, record
from hvdtrain.errors import UserError
from hvdtrain.launch import choice
from hvdtrain.site.commands import SlurmError
from hvdtrain.site.profile import Site
from hvdtrain.submit import (
    batch_script,
    batches,
    cluster,
    limits,
    queue,
    report_job,
    sbatch,
    submissions,
    values,
    watch,
)
from hvdtrain.submit.cell import Cell, Shape, fingerprint
from hvdtrain.submit.lock import StudyLock
from hvdtrain.submit.nodes import nodes_for
from hvdtrain.submit.request import Request
from hvdtrain.submit.shape import place
from hvdtrain.submit.study import Known, Plan, keep, read_known, write_cell
from hvdtrain.submit.study import plan as plan_of
from hvdtrain.submit.view import look as look_at


class Slurm:
    """Submits cells to the cluster that sbatch here talks to."""

    name = "slurm"

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        if given.launcher == "mpirun":
            raise UserError(
                "--launcher mpirun: under SLURM ranks are started by srun; legal with --cluster slurm are auto, gloo, pmix",
            )
        self._parallel = None if given.max_parallel is None else values.count("--max-parallel", given.max_parallel)
        self._per_node = None if given.gpus_per_node is None else values.count("--gpus-per-node", given.gpus_per_node)
        self._most_hours = (
            None if given.max_gpu_hours is None else values.positive("--max-gpu-hours", given.max_gpu_hours, "hours")
        )
        self.profile, self.facts = cluster.read(given)

    @property
    def site(self) -> Site:
        """The complete profile."""
        return self.profile.site

    def resolve(self, request: Request) -> tuple[Request, list[str]]:
        """The request with what the cluster decides: the names of GPU types, and the launcher.

        Raises:
            UserError: the site has no such type, or no cell may have so much time.
        """
        origin = "--time" if self._given.time is not None else f"{self.profile.origins.get('time')}: time"
        limits.check_time(self.site.limits, self.site.time, origin)
        request = replace(request, grid=replace(request.grid, gpu_types=self._types(request.grid.gpu_types)))
        wanted, chosen = request.common.launcher, False
        notes = []
        if wanted == "auto":
            wanted, why = self.site.launcher, "from the site profile"
            if wanted == "auto":
                grid = request.grid
                shapes = (self.shape(gpus, each) for gpus in grid.gpus for each in grid.gpu_types or (None,))
                several = any(shape.nodes > 1 for shape in shapes)
                wanted, why = choice.choose("auto", several)
                chosen = True
            notes.append(f"launcher {wanted}: {why}")
        types = list(self.site.gpus)
        if not request.grid.gpu_types and len(types) > 1:
            notes.append(
                f"this cluster has GPUs of types {', '.join(types)} and no --gpu-type was given: SLURM picks, and a cell "
                "that gets several types is marked mixed and stays out of fits"
            )
        return replace(request, common=replace(request.common, launcher=wanted), launcher_chosen=chosen), notes

    def look(self, request: Request) -> list[str]:
        """Whether there is a cluster to submit to."""
        if self.facts is None:
            queue.live_and_recent()  # raises what is wrong with it
        return []

    def shape(self, gpus: int, gpu_type: str | None = None) -> Shape:
        """How so many ranks lie on this cluster's nodes."""
        nodes = nodes_for(self.profile, self.facts, gpu_type)
        per_node = nodes.per_node
        if self._per_node is not None:
            if per_node is not None and self._per_node > per_node:
                raise UserError(
                    f"--gpus-per-node {self._per_node}: nodes here have {per_node}; nearest: --gpus-per-node {per_node}"
                )
            per_node = self._per_node
        shape = place(
            gpus,
            per_node=per_node,
            nodes=nodes.number,
            sizes=nodes.sizes,
            most=self.site.limits.gpus,
            with_gpus=nodes.with_gpus,
            what=gpu_type or "",
        )
        self._check_cores(shape, None if gpu_type is None else self.site.gpu(gpu_type).slurm, nodes.cpus_per_task)
        return shape

    def _check_cores(self, shape: Shape, slurm_type: str | None, each: int | None) -> None:
        """SLURM may take a job that no node of the cluster can ever run, and let it wait."""
        tasks = shape.tasks_per_node
        groups = self.facts.groups if self.facts is not None else []
        most = max((group.cpus for group in groups if slurm_type is None or slurm_type in group.gpus), default=0)
        if each is None or not most or each * tasks <= most:
            return
        way = f"nearest: --cpus-per-task {most // tasks}" if most >= tasks else "spread them: --gpus-per-node"
        raise UserError(
            f"--cpus-per-task {each}: {tasks} ranks on a node would take {each * tasks} CPUs, and no such node has more than "
            f"{most}; {way}"
        )

    def script(self, cell: Cell, request: Request) -> str:
        """The bytes of the cell's script."""
        folder = request.directory / request.cell_folder(cell.name)
        study = request.directory / request.folder
        where = batch_script.Place(
            folder=Path(os.path.abspath(folder)),
            directory=request.directory,
            python=sys.executable,
            job_name=submissions.job_name(cell.name, Path(os.path.abspath(study)), [cell.name]),
            stall_timeout=request.stall_timeout,
        )
        for text in (where.folder, where.directory, cell.job):
            if "\n" in str(text):
                raise UserError(f"{str(text)!r}: sbatch cannot take a path with a line break in it; rename the folder")
        cpus = nodes_for(self.profile, self.facts, cell.gpu_type).cpus_per_task
        return batch_script.render(cell, self.site.model_copy(update={"cpus_per_task": cpus}), where)

    def more_scripts(self, cells: list[Cell], request: Request) -> list[tuple[str, str]]:
        """What else --dry-run prints: the scripts of arrays, with where they are written, and that of the report.

        Raises:
            UserError: the cells that have not completed could take too many hours, as far as that is known without asking SLURM.
        """
        study = Path(os.path.abspath(request.directory / request.folder))
        scripts = {cell.name: self.script(cell, request) for cell in cells}
        if self._most_hours is not None:
            known = {name: self._renamed(cell) for name, cell in read_known(study).items()}
            self._check_hours(plan_of(cells, known, study.name, retry_failed=request.retry_failed).run, scripts)
        number, found = submissions.next_number(study), []
        for index, batch in enumerate(self._batches(scripts)):
            part = {name: scripts[name] for name in batch.cells}
            submission, text = submissions.draft(study, part, number + index, batch.parallel)
            if submission.array:
                path = request.folder / submissions.FOLDER / submission.folder / "script.sh"
                found.append((f"array of {', '.join(batch.cells)}: {path}", text))
        if request.then_report and not request.wait:
            found.append(("the report, when all cells have ended", report_job.script(self.site, study, ())[1]))
        return found

    def review(self, folder: Path, known: Mapping[str, Known]) -> Mapping[str, Known]:
        """What is known of a study's cells, with what the queue says of them.

        Raises:
            SlurmError: SLURM does not answer, so nobody knows which of them wait or run.
        """
        known = {name: self._renamed(cell) for name, cell in known.items()}
        if not known or not (folder / "study.json").exists():  # without it nothing was handed over
            return known
        views = look_at(folder, record.read_study(folder), must_answer=True).cells
        return {
            # A job in a state that is not known here may run.
            view.name: replace(
                known[view.name], status="running" if view.live and view.status == "unknown" else view.status
            )
            if view.job or view.status == "unknown"
            else known[view.name]
            for view in views
            if view.name in known
        }

    def hand_over(self, request: Request, plan: Plan, undo: contextlib.ExitStack) -> list[str]:
        """Submit what the plan says; all of it or nothing. Lines for the user.

        Raises:
            UserError: SLURM refuses, or a limit of jobs or hours would be exceeded.
        """
        study = Path(os.path.abspath(request.folder))
        cells = {cell.name: cell for cell in plan.run}
        scripts = {name: self.script(cell, request) for name, cell in cells.items()}
        self._check_hours(plan.run, scripts)
        report = request.then_report and not request.wait
        limits.check_jobs(
            self.site.limits, len(cells) + report, f"{len(cells)} cells{' and a report' if report else ''}"
        )
        for name, cell in cells.items():
            undo.callback(attempts.put_back, study / name, attempts.set_aside(study / name))
            for file in ("cell.json", "script.sh"):
                keep(study / name / file, undo)
            write_cell(study / name, cell, scripts[name])
        self._rename_types(study, undo)
        done: list[str] = []
        taken: list[submissions.Submission] = []
        undo.callback(_take_back, study, taken, undo)
        lines = []
        for batch in self._batches(scripts):
            words = [] if batch.after is None else [f"--dependency=afterany:{done[batch.after]}"]
            submission, text = submissions.prepare(study, {name: scripts[name] for name in batch.cells}, batch.parallel)
            try:
                submission = sbatch.submit(study, submission, text, words)
            except sbatch.Unanswered:
                undo.pop_all()  # a job that SLURM may have taken needs its folder
                raise
            assert submission.job is not None
            done.append(submission.job)
            taken.append(submission)
            what = (
                batch.cells[0]
                if not submission.array
                else f"{len(batch.cells)} cells, {batch.cells[0]} to {batch.cells[-1]}"
            )
            lines.append(f"submitted job {submission.job}: {what}")
        if report:
            lines.append(report_job.submit(self.site, study, done, plan.waiting, undo))
        return lines

    def run(self, request: Request, plan: Plan, lock: StudyLock) -> bool:
        """With --wait, return when all jobs have ended; False when the user stopped waiting."""
        lock.release()  # jobs run on whether or not anybody waits, and other commands may look after them
        return watch.until_ended(request.folder, [cell.name for cell in plan.cells]) if request.wait else True

    # --- parts ---

    def _types(self, given: Sequence[str]) -> tuple[str, ...]:
        """GPU types by the profile's names: records of one type under several names would be measurements of several."""
        found: dict[str, str] = {}
        for name in given:
            key = self.site.gpu_key(name)
            if key in found:
                raise UserError(f"--gpu-type {found[key]},{name}: both are the type {key} here; give it once")
            found[key] = name
        return tuple(found)

    def _rename_types(self, study: Path, undo: contextlib.ExitStack) -> None:
        """In the records of all cells: one GPU type under two names would be two in a report of them and of what is added now."""
        for name, cell in read_known(study).items():
            facts = self._renamed(cell).facts
            if facts.get("gpu_type") != cell.facts.get("gpu_type"):
                keep(study / name / "cell.json", undo)
                record.write_json(study / name / "cell.json", {**facts, "hash": fingerprint(facts)})

    def _renamed(self, cell: Known) -> Known:
        """A cell of a version that recorded the name of a GPU type which the user typed, with the profile's."""
        name = cell.facts.get("gpu_type")
        with contextlib.suppress(UserError):  # the site may have no such type any more
            return replace(cell, facts={**cell.facts, "gpu_type": self.site.gpu_key(name)}) if name else cell
        return cell

    def _check_hours(self, cells: Sequence[Cell], scripts: Mapping[str, str]) -> None:
        """By the time limit in the scripts, all of one site: a directive of its profile goes before --time."""
        if cells:
            time = batch_script.value(next(iter(scripts.values())), "time")
            limits.check_hours(self._most_hours, [cell.gpus for cell in cells], time, fixed=time != self.site.time)

    def _batches(self, scripts: Mapping[str, str]) -> list[batches.Batch]:
        return batches.batches(scripts, array_size=self.site.limits.array_size, max_parallel=self._parallel)


def _take_back(study: Path, taken: list[submissions.Submission], undo: contextlib.ExitStack) -> None:
    """Cancel what was accepted before SLURM refused the rest. Where that fails, nothing more is undone: jobs need their cells."""
    numbers = [str(submission.job) for submission in taken]
    try:
        if numbers:
            sbatch.cancel(numbers)
    except SlurmError as error:
        undo.pop_all()
        here = shlex.quote(os.path.relpath(study))
        what = f"job{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} {'were' if len(numbers) > 1 else 'was'} accepted"
        print(
            f"note: {error}\nnote: {what} before, and may run: hvdtrain status {here} shows the cells, hvdtrain cancel {here} "
            "ends them",
            file=sys.stderr,
        )
        return
    for submission in taken:
        submissions.forget(study, submission)
