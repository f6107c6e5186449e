"""The batch script of a cell: one pure function. --dry-run prints it, script.sh holds it, and it is what sbatch gets."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from hvdtrain.errors import UserError
from hvdtrain.launch.ending import warning_seconds
from hvdtrain.site.times import minutes
from hvdtrain.submit.cell import Cell, Shape

if TYPE_CHECKING:
    from hvdtrain.site.profile import Site

Directive = tuple[str, str | None]
_PREFIX = "#SBATCH "
#: What a site's memory counts -> the directive that asks for it.
MEMORY = {"node": "mem", "cpu": "mem-per-cpu", "gpu": "mem-per-gpu"}
#: What stands between Python and our own words.
_LAUNCHER = " -m hvdtrain.launch.batch "
#: Directives that tell one cell from another of equal shape; an array has its own.
_OF_ONE_CELL = ("job-name", "output")


@dataclass(frozen=True)
class Place:
    """Where a cell's script finds things; all paths absolute. `directory` is where the user typed."""

    folder: PurePath
    directory: PurePath
    python: str
    job_name: str
    stall_timeout: float | None = None


def render(cell: Cell, site: Site, place: Place) -> str:
    """The batch script that trains `cell`: `sbatch script.sh`. Any path and value is quoted, so names hold what they like."""
    given: list[Directive] = [("job-name", place.job_name)]
    given += resources(cell.shape, site, cell.gpu_type)
    log = place.folder / "log" / "job.log"
    # SLURM takes backslashes out of --output, however they are written: then the script opens its log itself.
    by_itself = "\\" in str(log)
    given += [("output", "/dev/null" if by_itself else _pattern(log)), *behaviour(site)]
    lines = ["#!/bin/bash", f"# hvdtrain cell {cell.name}", *texts(_chosen(given, site))]
    lines += [f"exec >>{shlex.quote(str(log))} 2>&1"] if by_itself else []
    lines += preparation(site)
    lines.append(command(["cd", "--", str(place.directory)]))
    lines += exports({**variables(site), **site.environment, **cell.environment})
    words = [place.python, *_LAUNCHER.split(), "--run-dir", str(place.folder), *options(site, cell.launcher)]
    words += ["--job-name", place.job_name]
    words += [] if place.stall_timeout is None else ["--stall-timeout", f"{place.stall_timeout:g}"]
    words += container_words(site, [str(place.directory), str(place.folder.parent), str(PurePath(cell.job).parent)])
    # exec: SLURM's warning reaches the launcher itself, and its exit status is the job's.
    lines.append(command(["exec", *words, cell.job, *cell.arguments]))
    return "\n".join(lines) + "\n"


def render_array(scripts: Sequence[str], *, job_name: str, folder: PurePath, parallel: int | None = None) -> str:
    """The script of a job array over cells of equal shape: task i runs `folder`/i.sh, which is the cell's script.

    `scripts` are the cells' own, of which the directives are taken; `parallel` is how many may run at once.
    """
    shared = [text for text in directives(scripts[0]) if _name(text) not in _OF_ONE_CELL]
    limit = "" if parallel is None or parallel >= len(scripts) else f"%{parallel}"
    own: list[Directive] = [
        ("job-name", job_name),
        ("array", f"0-{len(scripts) - 1}{limit}"),
        # Links to the cells' logs: what SLURM itself says of a task then stands in its cell's log too.
        ("output", "/dev/null" if "\\" in str(folder) else f"{_pattern(folder)}/%a.log"),
    ]
    lines = [
        "#!/bin/bash",
        f"# hvdtrain: {len(scripts)} cells of one shape",
        *texts(own),
        *(_PREFIX + text for text in shared),
    ]
    lines.append(f'exec bash {shlex.quote(str(folder))}/"$SLURM_ARRAY_TASK_ID.sh"')
    return "\n".join(lines) + "\n"


def render_report(
    site: Site, study: PurePath, folder: PurePath, directory: PurePath, python: str, job_name: str
) -> str:
    """The script of the job that writes a study's report: one task, no GPU, whatever became of the cells."""
    given: list[Directive] = [("job-name", job_name), ("nodes", "1"), ("ntasks", "1")]
    queue: list[tuple[str, str | None]] = [("partition", site.partition), ("account", site.account), ("qos", site.qos)]
    given += [(name, text) for name, text in queue if text is not None]
    given += [("output", _pattern(folder / "report.log")), ("open-mode", "append")]
    lines = [
        "#!/bin/bash",
        f"# hvdtrain: the report of {study.name}",
        *texts(_chosen(given, site)),
        *preparation(site),
    ]
    lines.append(command(["cd", "--", str(directory)]))
    lines.append(command(["exec", python, "-m", "analysis", "report", str(study)]))
    return "\n".join(lines) + "\n"


def directives(script: str) -> list[str]:
    """The `--name=value` texts of a script's #SBATCH lines, in order."""
    # As sbatch does, up to the first command: a value may hold lines that look alike.
    head = itertools.takewhile(lambda line: line.startswith("#") or not line, script.splitlines())
    return [line.removeprefix(_PREFIX) for line in head if line.startswith(_PREFIX)]


def likeness(script: str) -> tuple[str, ...]:
    """What scripts of one array have in common: every directive but the names."""
    return tuple(text for text in directives(script) if _name(text) not in _OF_ONE_CELL)


def value(script: str, name: str) -> str | None:
    """The value of a directive in a script, unquoted, of several the last, which sbatch takes; None when it is not there."""
    for text in reversed(directives(script)):
        if _name(text) == name:
            words = shlex.split(text.lstrip("-").removeprefix(name).lstrip("= "))
            return words[0] if words else ""
    return None


def argument(script: str, option: str) -> str | None:
    """What a cell's script gives our launcher for an option, such as `--run-dir`; None when it does not."""
    _, launcher, words = script.partition(_LAUNCHER)
    reader = shlex.shlex(words, posix=True)
    reader.whitespace_split = True
    given: list[str] = []
    # Lines added by hand after ours may be such that only a shell understands them.
    with contextlib.suppress(ValueError):
        given.extend(reader if launcher else ())
    at = given.index(option) + 1 if option in given else len(given)
    return given[at] if at < len(given) else None


# --- parts, shared with the scripts that come with the project -------------------------------------------------------


def resources(shape: Shape, site: Site, gpu_type: str | None = None) -> list[Directive]:
    """What is asked for: the layout, CPUs, memory, time, and where to queue.

    Only --nodes, --ntasks-per-node and --gpus-per-node fix a layout: with --ntasks alone SLURM may put 3 + 1 ranks on two
    nodes, and an untyped --gres may mix GPU types.
    """
    gpu = None if gpu_type is None else site.gpu(gpu_type)
    typed = "" if gpu is None else (gpu_type if gpu.slurm is None else gpu.slurm) or ""
    mem = MEMORY.get(site.memory)
    found: list[Directive] = [("nodes", str(shape.nodes)), ("ntasks-per-node", str(shape.tasks_per_node))]
    if shape.gpus_per_node:
        found.append(("gpus-per-node", f"{typed}{':' if typed else ''}{shape.gpus_per_node}"))
    possible: list[tuple[str, object]] = [
        ("cpus-per-task", site.cpus_per_task),
        (mem or "", site.mem if mem else None),
        ("time", site.time),
        ("partition", (gpu.partition if gpu else None) or site.partition),
        ("constraint", gpu.constraint if gpu else None),
        ("account", site.account),
        ("qos", site.qos),
        ("reservation", site.reservation),
    ]
    return [*found, *((name, str(text)) for name, text in possible if text is not None)]


def behaviour(site: Site) -> list[Directive]:
    """How SLURM treats the job: logs that are added to, a warning before the end, another start after preemption."""
    limit = None if site.time is None else minutes(site.time) * 60
    warning = math.ceil(warning_seconds(site.requeue.signal_seconds, limit))
    return [
        ("open-mode", "append"),
        ("signal", f"B:USR1@{warning}"),
        ("requeue" if site.requeue.on or site.requeue.retries else "no-requeue", None),
    ]


def options(site: Site, launcher: str) -> list[str]:
    """Words for `hvdtrain.launch.batch`; what is its default is left out."""
    requeue = site.requeue
    words = ["--launcher", launcher]
    words += [] if site.pmix == "pmix" else ["--pmix", site.pmix]
    words += [] if site.cpus_per_task is None else ["--cpus-per-task", str(site.cpus_per_task)]
    words += [] if site.cpu_bind is None else [f"--srun=--cpu-bind={site.cpu_bind}"]
    words += [] if requeue.signal_seconds == 120 else ["--warning", str(requeue.signal_seconds)]
    words += [] if set(requeue.on) == {"preempted", "timeout"} else [f"--requeue-on={','.join(requeue.on)}"]
    words += [] if requeue.retries == 1 else ["--retries", str(requeue.retries)]
    return words


#: What ends a path where mounts are written; pyxis also has a shell read them, between double quotes.
_NO_MOUNT = (re.compile("[:,]"), re.compile('[:,"$`]'))


def container_words(site: Site, paths: Sequence[str]) -> list[str]:
    """Words for `hvdtrain.launch.batch` that put ranks into the site's container, with these paths mounted.

    Raises:
        UserError: a path cannot be written as a mount.
    """
    container = site.container
    if container.kind == "none" or container.image is None:
        return []
    for path in paths:
        if found := _NO_MOUNT[container.kind == "pyxis"].search(path):
            raise UserError(
                f"{path} cannot be mounted in a container: {container.kind} does not take {found[0]} for a part of a path; move it"
            )
    mounts = list(dict.fromkeys([*paths, *container.mounts]))
    if container.kind == "pyxis":
        both = ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in mounts)
        # It begins in the home folder otherwise.
        there = [f"--container-workdir={paths[0]}", f"--container-mounts={both}"]
        srun = [f"--container-image={container.image}", *there, *container.options]
        return [*(f"--srun={word}" for word in srun), "--python", container.python]
    binds = [word for mount in mounts for word in ("--bind", mount)]
    if container.kind == "charliecloud":
        # It begins in the image's root. The host's GPU driver must have been put into the image (ch-fromhost).
        inside = ["ch-run", "--cd", paths[0], *binds, *container.options, container.image, "--"]
    else:
        # --nv brings the host's GPU driver in; without a GPU it only warns.
        inside = [container.kind, "exec", "--nv", *binds, *container.options, container.image]
    # As one argument: argparse would take a "--" of its own for an end of ours.
    return [f"--inside={shlex.join(inside)}", "--python", container.python]


def preparation(site: Site) -> list[str]:
    """The lines before ours. Modules' own scripts use variables that are not set, so -u comes after them."""
    if not site.setup and not site.modules:
        return ["set -euo pipefail"]
    modules = [command(["module", "load", *site.modules])] if site.modules else []
    return ["set -eo pipefail", *site.setup, *modules, "set -u"]


def variables(site: Site) -> dict[str, str]:
    """What the profile's network and NCCL parts mean as variables."""
    both = {} if site.interface is None else dict.fromkeys(("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"), site.interface)
    return {**both, **{f"NCCL_{name.removeprefix('NCCL_')}": text for name, text in site.nccl.items()}}


def exports(values: dict[str, str]) -> list[str]:
    """`export NAME=value` lines."""
    return [f"export {name}={shlex.quote(text)}" for name, text in values.items()]


def texts(given: Iterable[Directive]) -> list[str]:
    """Lines for sbatch, which takes quotes in them as a shell does and expands no variables."""
    return [f"{_PREFIX}--{name}" + ("" if text is None else f"={shlex.quote(text)}") for name, text in given]


def command(words: Iterable[str]) -> str:
    """A command line that means exactly these words."""
    return " ".join(shlex.quote(word) for word in words)


def _chosen(given: Sequence[Directive], site: Site) -> list[Directive]:
    """Without those that the site skips; its own come last and win, because sbatch takes the last."""
    kept = [(name, text) for name, text in given if name not in site.skip]
    extra = [_split(text) for text in site.directives]
    named = {name for name, _ in extra}
    return [*(pair for pair in kept if pair[0] not in named), *extra]


def _split(text: str) -> Directive:
    name, equals, rest = text.lstrip("-").partition("=")
    return name, rest if equals else None


def _name(text: str) -> str:
    match = re.match(r"-*([a-z0-9-]+)", text)
    return match[1] if match else text


def _pattern(path: PurePath) -> str:
    """A path in which sbatch finds none of its own %-patterns."""
    return str(path).replace("%", "%%")
