"""Batch scripts: golden files, and text that neither sbatch nor a shell may touch.

The golden files are renewed with HVDTRAIN_RENEW_GOLDEN=1 python -m pytest tests/submit/test_batch_script.py; look at
`git diff tests/submit/golden` before you commit them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain import paths
from hvdtrain.errors import UserError
from hvdtrain.site.profile import Container, Gpu, Limits, Requeue, Site
from hvdtrain.submit import batch_script, published
from hvdtrain.submit.batch_script import Place, render, render_array
from hvdtrain.submit.batches import Batch, batches
from hvdtrain.submit.cell import Cell, Shape
from hvdtrain.submit.shape import place

GOLDEN = Path(__file__).parent / "golden"


def cell(**more: object) -> Cell:
    plain = {
        "name": "n8-a100",
        "study": "digits",
        "job": "/home/ada/hvdtrain/jobs/digits.py",
        "workload": "digits",
        "gpus": 8,
        "shape": Shape(2, 4, 4),
        "launcher": "gloo",
        "cluster": "slurm",
        "gpu_type": "a100",
        "arguments": ("--epochs", "5"),
    }
    return Cell(**{**plain, **more})  # type: ignore[arg-type]


def where(directory: str = "/home/ada/lab", **more: object) -> Place:
    plain = {
        "folder": PurePosixPath(directory) / "runs" / "digits" / "n8-a100",
        "directory": PurePosixPath(directory),
        "python": "/home/ada/venv/bin/python",
        "job_name": "n8-a100.12345678",
    }
    return Place(**{**plain, **more})  # type: ignore[arg-type]


ALPS = Site(
    gpus={"a100": Gpu(slurm="nvidia_a100_80gb", partition="gpu", per_node=4)},
    account="phys",
    time="1:00:00",
    mem="64G",
    cpus_per_task=32,
    cpu_bind="cores",
    modules=["gcc/13", "cuda/12.4"],
    setup=["source /etc/profile.d/modules.sh"],
    interface="ib0",
    nccl={"DEBUG": "WARN"},
    pmix="pmix_v5",
    environment={"DATA_DIR": "/data/it's here"},
    directives=["--exclusive", "--mail-type=FAIL"],
)
UNPLEASANT = 'it\'s "a" $b %j `c` ;&|'
CASES = {
    "slurm-plain": (cell(gpu_type=None), Site(), where()),
    "slurm-full-site": (cell(launcher="pmix"), ALPS, where(stall_timeout=600.0)),
    "slurm-other-habits": (
        cell(),
        Site(
            gpus={"a100": Gpu(slurm="", constraint="a100")},
            memory="gpu",
            mem="16G",
            time="0:30",
            skip=["--signal", "open-mode"],
            requeue=Requeue(on=[], retries=0, signal_seconds=60),
            limits=Limits(gpus=16),
        ),
        where(),
    ),
    "slurm-apptainer": (cell(), Site(gpus=ALPS.gpus, container=Container(kind="apptainer", image="/i/h.sif")), where()),
    "slurm-charliecloud": (
        cell(),
        Site(gpus=ALPS.gpus, container=Container(kind="charliecloud", image="/i/h", mounts=["/data:/d"])),
        where(),
    ),
    "slurm-pyxis": (cell(), Site(gpus=ALPS.gpus, container=Container(kind="pyxis", image="hub/h:1", mounts=["/data:/d"])), where()),
    "slurm-backslash": (cell(), Site(gpus=ALPS.gpus), where("/home/a\\b c")),
    "slurm-unpleasant": (
        cell(arguments=("--text", UNPLEASANT, "--", "-x", ""), environment={"A": UNPLEASANT + "\n#SBATCH --nodes=99\n"}),
        Site(gpus=ALPS.gpus),
        where(f"/home/{UNPLEASANT}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    text = render(*CASES[name])
    golden = GOLDEN / f"{name}.sh"
    if os.environ.get("HVDTRAIN_RENEW_GOLDEN") == "1":
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        ("apptainer", "/home/ada/9:30"),
        ("charliecloud", "/home/ada/a,b"),
        ("pyxis", "/home/ada/$x"),
        ("pyxis", '/home/"ada"'),
    ],
)
def test_a_path_that_a_container_cannot_mount(kind: str, folder: str) -> None:
    site = Site(gpus=ALPS.gpus, container=Container(kind=kind, image="/i/h.sif"))
    with pytest.raises(UserError, match=f'cannot be mounted in a container: {kind} does not take [:,$"] for a part'):
        render(cell(), site, where(folder))


def test_other_paths_it_can() -> None:
    site = Site(gpus=ALPS.gpus, container=Container(kind="pyxis", image="hub/h:1"))
    assert "/home/it's #1 *x" in " ".join(shlex.split(render(cell(), site, where("/home/it's #1 *x")), comments=True))


def test_every_golden_file_has_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("slurm-*.sh")} == {*CASES, "slurm-array"}


def test_only_three_directives_fix_the_layout() -> None:
    names = [text.partition("=")[0] for text in batch_script.directives(render(cell(), ALPS, where()))]
    assert names[1:4] == ["--nodes", "--ntasks-per-node", "--gpus-per-node"]
    assert not {"--ntasks", "--gres", "--gpus", "--gpus-per-task"} & set(names)


def test_lines_of_a_value_are_no_directives() -> None:
    text = render(*CASES["slurm-unpleasant"])
    assert batch_script.value(text, "nodes") == "2"
    assert batch_script.value(text, "output") == f"/home/{UNPLEASANT}/runs/digits/n8-a100/log/job.log".replace(
        "%", "%%"
    )


@pytest.mark.parametrize("line", ["--job-name='my night'", "--job-name 'my night'"])
def test_the_last_of_several_directives_is_the_one_that_sbatch_takes(line: str) -> None:
    assert batch_script.value(f"#!/bin/bash\n#SBATCH --job-name=n2\n#SBATCH {line}\ntrue\n", "job-name") == "my night"


@pytest.mark.parametrize(
    ("requeue", "expected"),
    [
        (Requeue(), "--requeue"),
        (Requeue(on=[], retries=1), "--requeue"),  # an accident is to start the job again, which SLURM must allow
        (Requeue(on=["timeout"], retries=0), "--requeue"),
        (Requeue(on=[], retries=0), "--no-requeue"),
        (Requeue(on=[]), "--no-requeue"),
    ],
)
def test_whether_slurm_may_start_a_job_again(requeue: Requeue, expected: str) -> None:
    given = batch_script.directives(render(cell(gpu_type=None), Site(requeue=requeue), where()))
    assert {"--requeue", "--no-requeue"} & {*given} == {expected}


def test_golden_of_an_array() -> None:
    one, two = (render(cell(name=name), ALPS, where(job_name=name)) for name in ("a", "b"))
    text = render_array([one, two], job_name="digits.1", folder=PurePosixPath(f"/home/{UNPLEASANT}"), parallel=1)
    if os.environ.get("HVDTRAIN_RENEW_GOLDEN") == "1":
        (GOLDEN / "slurm-array.sh").write_text(text)
    assert text == (GOLDEN / "slurm-array.sh").read_text()


@settings(max_examples=25, deadline=None)
@given(
    value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
    argument=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
)
def test_any_text_reaches_the_launcher(value: str, argument: str) -> None:
    with tempfile.TemporaryDirectory(prefix='it\'s "$a" %j ') as folder:
        home = Path(folder)
        python = home / "python"
        python.write_text(
            f"#!/bin/bash\nexec /usr/bin/env python3 -c 'import json, os, sys; json.dump([sys.argv[2:], os.getcwd(), "
            f'os.environ["VALUE"]], open(os.environ["SEEN"], "w"))\' {chr(34)}$0{chr(34)} {chr(34)}$@{chr(34)}\n'
        )
        python.chmod(0o755)
        given_cell = cell(arguments=("--text", argument), environment={"VALUE": value, "SEEN": str(home / "seen.json")})
        text = render(
            given_cell, ALPS.model_copy(update={"modules": [], "setup": []}), where(str(home), python=str(python))
        )
        (home / "script.sh").write_text(text, newline="")
        done = subprocess.run(["bash", str(home / "script.sh")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        argv, directory, seen = json.loads((home / "seen.json").read_text())
    assert argv[-2:] == ["--text", argument]
    assert argv[argv.index("--run-dir") + 1] == f"{home}/runs/digits/n8-a100"
    assert (directory, seen) == (str(home), value)


def test_every_script_is_clean(tmp_path: Path) -> None:
    files = []
    for name, case in CASES.items():
        files.append(tmp_path / f"{name}.sh")
        files[-1].write_text(render(*case))
    # SC1091: it cannot look into files of a site. SC2016: that nothing expands is the point.
    command = ["shellcheck", "--exclude=SC1091,SC2016", *map(str, files), str(GOLDEN / "slurm-array.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# --- the scripts in slurm/ ------------------------------------------------------------------------------------------


def test_the_published_scripts_are_what_the_renderer_writes() -> None:
    folder = paths.shipped("slurm")
    assert {path.name: path.read_text() for path in folder.glob("*.sh")} == dict(published.scripts())
    assert all(os.access(path, os.X_OK) for path in folder.glob("*.sh"))


def test_every_published_job_exists() -> None:
    assert set(published.JOBS.values()) <= set(paths.job_names())


# --- batches ---------------------------------------------------------------------------------------------------------


def scripts(**shapes: int) -> dict[str, str]:
    return {
        name: render(cell(name=name, shape=place(gpus, per_node=4)), ALPS, where(job_name=name))
        for name, gpus in shapes.items()
    }


def test_one_submission_for_each_shape() -> None:
    many = {f"n{gpus}s{seed}": gpus for gpus in (2, 4, 8, 16) for seed in range(16)}
    found = batches(scripts(**many))
    assert [len(batch.cells) for batch in found] == [16] * 4
    assert [cell for batch in found for cell in batch.cells] == list(many)


def test_arrays_are_split_where_they_may_not_be_longer() -> None:
    found = batches(scripts(a=2, b=2, c=2, d=2, e=4), array_size=3)
    assert found == [Batch(("a", "b", "c")), Batch(("d",)), Batch(("e",))]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 20])
def test_no_more_run_at_once_than_allowed(most: int) -> None:
    found = batches(scripts(a=2, b=2, c=2, d=4, e=4, f=8, g=16), max_parallel=most)
    assert sorted(cell for batch in found for cell in batch.cells) == list("abcdefg")
    # Batches that wait for each other form chains, of which one batch runs at a time.
    chains: dict[int, int] = {}
    heads: dict[int, int] = {}
    for index, batch in enumerate(found):
        heads[index] = index if batch.after is None else heads[batch.after]
        chains[heads[index]] = max(chains.get(heads[index], 0), batch.parallel or len(batch.cells))
    assert sum(chains.values()) <= most
