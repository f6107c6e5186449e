"""Ranks on several nodes of a real SLURM cluster, without ssh: plain srun with Gloo, and srun --mpi=pmix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hvdtrain.testcluster import Cluster
from tests.slurm.lab import until
from tests.worlds import run_world

TESTS = Path(__file__).parent.parent
EQUIVALENCE = TESTS / "training" / "equivalence_job.py"
FAULTY = TESTS / "launch" / "faulty_job.py"
CASES = ("sgd_momentum", "adam", "last_step_shared_out", "rank_dependent_branches")
pytestmark = pytest.mark.ranks


def srun(
    cluster: Cluster,
    options: list[str],
    script: Path,
    *arguments: object,
    run_dir: Path | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a script as the ranks of a job step."""
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent), **environment}
    if run_dir is not None:
        settings["HVDTRAIN_RUN_DIR"] = str(run_dir)
    rank = [sys.executable, "-m", "hvdtrain.run", str(script), *map(str, arguments)]
    assignments = [f"{name}={value}" for name, value in settings.items()]
    return cluster.run(["srun", "--kill-on-bad-exit=1", *options, "env", *assignments, *rank], timeout=240)


TWO_BY_TWO = ["--nodes=2", "--ntasks-per-node=2"]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    out = tmp_path_factory.mktemp("one") / "state.pt"
    ended = run_world(1, EQUIVALENCE, "--union", 12, "--out", out, "--cases", *CASES)
    assert ended.status == 0, ended.err
    states: dict[str, dict[str, torch.Tensor]] = torch.load(out)
    return states


@pytest.mark.parametrize(
    ("layout", "controller"),
    [
        (TWO_BY_TWO, "gloo"),
        ([*TWO_BY_TWO, "--mpi=pmix"], "mpi"),
        (["--nodes=2", "--ntasks=3"], "gloo"),
        ([*TWO_BY_TWO, "--distribution=cyclic"], "gloo"),
    ],
    ids=["gloo", "pmix", "uneven", "cyclic"],
)
def test_ranks_on_two_nodes_end_where_one_rank_ends(
    slurm_cluster: Cluster,
    layout: list[str],
    controller: str,
    one_rank: dict[str, dict[str, torch.Tensor]],
    tmp_path: Path,
) -> None:
    out = tmp_path / "state.pt"
    arguments = ["--union", 12, "--out", out, "--cases", *CASES]
    ended = srun(slurm_cluster, layout, EQUIVALENCE, *arguments, run_dir=tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "completed"
    assert result["controller"] == controller
    assert len(result["hosts"]) == 2
    assert json.loads(out.with_suffix(".json").read_text())["differing"] == []
    states = torch.load(out)
    for name in CASES:
        for key, value in states[name].items():
            assert torch.allclose(value, one_rank[name][key], rtol=0, atol=1e-5 if name == "adam" else 1e-6), (
                name,
                key,
            )


@pytest.mark.parametrize(("rank", "mpi"), [(3, []), (0, []), (2, ["--mpi=pmix"])])
def test_a_killed_rank_on_another_node_ends_the_step(
    slurm_cluster: Cluster, rank: int, mpi: list[str], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    arguments = ["--fault", "sigkill", "--rank", rank, "--mark", mark]
    ended = srun(slurm_cluster, [*TWO_BY_TWO, *mpi], FAULTY, *arguments, run_dir=tmp_path / "run")
    assert ended.returncode != 0
    # Under PMIx slurmstepd notices first and ends the step without naming the rank.
    assert ("Job step aborted" if mpi else f"task {rank}: Killed") in ended.stderr
    assert mark.exists(), ended.stderr
    # A quiet machine needs 0.3 to 3 seconds; survivors that nobody ends would wait for 300.
    assert time.time() - mark.stat().st_mtime < 40
    # srun ends before SLURM has cleaned up behind it.
    until(lambda: slurm_cluster.run(["squeue", "--noheader"]).stdout.strip() == "")


def test_a_traceback_from_another_node_reaches_the_job_output_first(slurm_cluster: Cluster, tmp_path: Path) -> None:
    ended = srun(slurm_cluster, TWO_BY_TWO, FAULTY, "--fault", "raise", "--rank", 3, run_dir=tmp_path / "run")
    assert ended.returncode != 0
    assert ended.stderr.startswith("hvdtrain: Traceback"), ended.stderr
    assert "the data of this rank are unreadable" in ended.stderr


def test_an_interface_that_does_not_leave_the_node_is_refused(slurm_cluster: Cluster, tmp_path: Path) -> None:
    ended = srun(slurm_cluster, TWO_BY_TWO, FAULTY, run_dir=tmp_path / "run", HOROVOD_GLOO_IFACE="lo")
    # srun says 143 (SIGTERM) for the ranks that it ended because the first one left.
    assert ended.returncode in (2, 143)
    assert ended.stderr.count("does not leave the node") == 1, ended.stderr


def test_a_host_name_that_does_not_resolve_is_said_once(slurm_cluster: Cluster, tmp_path: Path) -> None:
    ended = srun(slurm_cluster, TWO_BY_TWO, FAULTY, run_dir=tmp_path / "run", SLURM_STEP_NODELIST="ghost-[1-2]")
    assert ended.returncode in (2, 143)
    assert ended.stderr.count('host name "ghost-1" does not resolve') == 1, ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_world_smaller_than_launched_stops_before_the_first_step(slurm_cluster: Cluster, tmp_path: Path) -> None:
    # What happens when SLURM's PMIx and the MPI that Horovod was built with do not find each other: N worlds of one.
    script = tmp_path / "alone.py"
    script.write_text(
        "import os\nfor name in [n for n in os.environ if n.startswith('PMIX_')]:\n"
        "    if name != 'PMIX_RANK': del os.environ[name]\n"
        "import hvdtrain.torch as ht\nht.init()\nprint('trained')\n"
    )
    ended = srun(slurm_cluster, TWO_BY_TWO, script, run_dir=tmp_path / "run", PMIX_RANK="0")
    assert ended.returncode in (2, 143), ended.stderr
    assert "trained" not in ended.stdout
    assert "Horovod says rank 0 of 1" in ended.stderr
    assert "started rank 0 of 4" in ended.stderr
    assert "srun --mpi=pmix" in ended.stderr


def test_the_batch_script_without_srun_is_refused(slurm_cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{sys.executable} -m hvdtrain.run digits\n")
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    options = ["--wait", "--nodes=1", "--ntasks-per-node=4", f"--output={tmp_path}/log", f"--chdir={tmp_path}"]
    ended = slurm_cluster.run(
        ["env", f"PYTHONPATH={environment['PYTHONPATH']}", "sbatch", *options, str(script)], timeout=240
    )
    assert ended.returncode == 2
    assert "was not started by srun" in (tmp_path / "log").read_text()


def test_sbatch_script_from_the_clone(slurm_cluster: Cluster, tmp_path: Path) -> None:
    python = Path(sys.executable).parent
    run_dir = tmp_path / "run"
    command = [
        "env",
        f"PATH={python}:{os.environ['PATH']}",
        f"PYTHONPATH={TESTS.parent}",
        f"HVDTRAIN_RUN_DIR={run_dir}",
        "sbatch",
        "--wait",
        f"--output={tmp_path}/log",
        str(TESTS.parent / "slurm" / "digits_2gpu.sh"),
        "--epochs",
        "3",
    ]
    ended = slurm_cluster.run(command, timeout=240, cwd=TESTS.parent)
    assert ended.returncode == 0, (tmp_path / "log").read_text()
    epochs = [json.loads(line) for line in (run_dir / "epochs.jsonl").read_text().splitlines()]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert json.loads((run_dir / "result.json").read_text())["world_size"] == 2
