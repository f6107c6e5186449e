"""The sbatch scripts that come with the project."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent.parent / "slurm").glob("*.sh"))


def test_shellcheck_finds_nothing() -> None:
    ended = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_layout_is_the_one_in_the_name(script: Path) -> None:
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script.read_text(), flags=re.MULTILINE))
    gpus = int(re.search(r"_(\d+)gpu\.sh$", script.name)[1])  # type: ignore[index]
    assert int(directives["nodes"]) * int(directives["ntasks-per-node"]) == gpus
    assert directives["gpus-per-node"] == directives["ntasks-per-node"]
    assert directives["open-mode"] == "append"
