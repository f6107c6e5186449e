"""Scripts: golden files, and text that no shell may touch.

The golden files are renewed with HVDTRAIN_RENEW_GOLDEN=1 python -m pytest tests/submit/test_submit_script.py; look at
`git diff tests/submit/golden` before you commit them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.submit.cell import Cell, Shape
from hvdtrain.submit.script import render_local

GOLDEN = Path(__file__).parent / "golden"
SHAPE = Shape(1, 4, 0)


def cell(**more: object) -> Cell:
    plain = {
        "name": "n4-b32-linear-s0",
        "study": "digits",
        "job": "/home/ada/hvdtrain/jobs/digits.py",
        "workload": "digits",
        "gpus": 4,
        "shape": SHAPE,
        "launcher": "auto",
        "cluster": "local",
        "arguments": ("--batch-size", "32", "--lr-rule", "linear", "--seed", "0"),
    }
    return Cell(**{**plain, **more})  # type: ignore[arg-type]


CASES = {
    "plain": (cell(), "/home/ada/work", None),
    "gloo-with-timeout": (cell(launcher="gloo"), "/home/ada/work", 600.0),
    "mpirun": (cell(launcher="mpirun", gpus=2), "/home/ada/work", None),
    "unpleasant": (
        cell(
            job="/home/ada/it's here/$job.py",
            arguments=("--text", "a 'b' \"c\" $HOME `id` \\ ; & | * ~ !\n#", "--empty", "", "--", "-x"),
            environment={"GREETING": "it's $HOME\nand more", "EMPTY": "", "OMP_NUM_THREADS": "1"},
        ),
        '/home/ada/a "b" $c',
        0.5,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    given_cell, directory, timeout = CASES[name]
    text = render_local(
        given_cell,
        folder=PurePosixPath(directory) / "runs" / "digits" / given_cell.name,
        directory=PurePosixPath(directory),
        python="/home/ada/venv/bin/python",
        stall_timeout=timeout,
    )
    golden = GOLDEN / f"{name}.sh"
    if os.environ.get("HVDTRAIN_RENEW_GOLDEN") == "1":
        golden.write_text(text)
        pytest.skip(f"{golden.name} was renewed")
    assert text == golden.read_text()


def test_every_golden_file_has_a_case() -> None:
    names = {path.stem for path in GOLDEN.glob("*.sh") if not path.stem.startswith("slurm-")}
    assert names == set(CASES)


#: Anything that the kernel takes as an argument.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


@settings(max_examples=40, deadline=None)
@given(
    arguments=st.lists(TEXT, max_size=6), value=TEXT, directory=st.text("ab '\"$`\\!*\n;&|~#é", min_size=1, max_size=12)
)
def test_any_text_reaches_the_job(arguments: list[str], value: str, directory: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place).resolve() / f"_{directory}"
        home.mkdir()
        seen = home / "seen.json"
        python = home / "python"
        python.write_text(
            f"#!{sys.executable} -S\nimport json, os, sys\n"
            "json.dump([sys.argv[1:], os.getcwd(), os.environ['VALUE']], open('seen.json', 'w'))\n"
        )
        python.chmod(0o755)
        job = str(home / "job.py")
        script = render_local(
            cell(job=job, arguments=tuple(arguments), environment={"VALUE": value}),
            folder=home / "run",
            directory=home,
            python=str(python),
        )
        (home / "script.sh").write_text(script, newline="")
        done = subprocess.run(["bash", str(home / "script.sh")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        argv, where, environment = json.loads(seen.read_text())
    assert argv[argv.index(job) + 1 :] == arguments
    assert argv[: argv.index(job)] == [
        *("-m", "hvdtrain.launch", "-n", "4", "--launcher", "auto", "--run-dir", str(home / "run")),
    ]
    assert (where, environment) == (str(home), value)


def test_a_failing_job_fails_the_script(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/bash\nexit 7\n")
    python.chmod(0o755)
    (tmp_path / "script.sh").write_text(render_local(cell(), folder=tmp_path, directory=tmp_path, python=str(python)))
    assert subprocess.run(["bash", str(tmp_path / "script.sh")], check=False).returncode == 7
