"""The script of a cell: one pure function. --dry-run prints it, script.sh holds it, and it is what runs."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from hvdtrain.submit.cell import Cell

#: `gloo` says how ranks talk; on one machine it is the launcher's own starter that starts such ranks, not srun.
_STARTERS = {"gloo": "local"}


def render_local(
    cell: Cell,
    *,
    folder: PurePath,
    directory: PurePath,
    python: str,
    stall_timeout: float | None = None,
) -> str:
    """The script that trains `cell` on this machine: `bash script.sh`.

    `folder` is the cell's run folder and `directory` where the user typed the command, both absolute: relative paths
    among the job's arguments mean what they meant there. Any text is quoted, so names may hold what they like.
    """
    starter = _STARTERS.get(cell.launcher, cell.launcher)
    launch = [python, "-m", "hvdtrain.launch", "-n", str(cell.gpus), "--launcher", starter, "--run-dir", str(folder)]
    launch += [] if stall_timeout is None else ["--stall-timeout", f"{stall_timeout:g}"]
    lines = ["#!/bin/bash", f"# hvdtrain cell {cell.name}", "set -euo pipefail", _command(["cd", "--", str(directory)])]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in cell.environment.items()]
    # exec: signals reach the launcher itself, and its exit status is the script's.
    lines.append(_command(["exec", *launch, cell.job, *cell.arguments]))
    return "\n".join(lines) + "\n"


def _command(words: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)
