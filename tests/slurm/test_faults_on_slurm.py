"""What clusters do to jobs, and that no epoch is lost or doubled: on a real cluster, with real ranks.

The stories take turns on four nodes at the same time, for most of them is waiting.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtrain import testcluster
from hvdtrain.testcluster import Cluster, state
from tests.slurm.lab import Lab, rank_process, until

pytestmark = [pytest.mark.ranks, pytest.mark.faults]
EPOCHS = 40
#: More than anyone trains: for stories that end when they are cancelled, however fast the machine is.
ENDLESS = 9000
#: A node's clock may be this far from the controller's, in seconds.
SKEW = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With accounting, short requeueing, and nodes that are soon taken for dead."""
    options = testcluster.Options(
        name=f"f{os.getpid() % 10**7}", owner_pid=os.getpid(), accounting=True, requeue_delay=6, node_timeout=15
    )
    yield testcluster.up(options)
    testcluster.down(options)


@pytest.fixture(scope="module")
def stories(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Five studies, each of which something happens to."""
    abrupt = "PartitionName=abrupt Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=60"
    cluster.run(["scontrol", "create", *abrupt.split()], check=True)
    lab = Lab(cluster, tmp_path_factory.mktemp("lab"))
    common = ["--gpus", "2", "--launcher", "gloo", "--cpus-per-task", "1", "--set", "lr=0.01"]
    # Longer than its two minutes: it is told, writes a checkpoint, and is started again. In one minute ten ranks that start at
    # the same time on two cores may not get to a first step, and then there is no other start.
    lab.submit(*common, "--study", "limit", "--time", "2", "--epochs", str(ENDLESS))
    for study, more in {
        "node": ["--gpu-type", "v100"],
        "rank": ["--gpu-type", "t4"],
        "preempted": ["--gpu-type", "t4", "--partition", "preempt"],
        "abrupt": ["--gpu-type", "t4", "--partition", "abrupt"],
    }.items():
        lab.submit(*common, *more, "--study", study, "--epochs", str(ENDLESS if study == "node" else EPOCHS))
    until(lambda: len(lab.epochs("rank", "n2-t4-lr0.01")) >= 2)
    os.kill(rank_process(lab.cell("rank", "n2-t4-lr0.01"), 1), signal.SIGKILL)
    until(lambda: all(len(lab.epochs(study, "n2-t4-lr0.01")) >= 2 for study in ("preempted", "abrupt")))
    hosts = {lab.status(study)["n2-t4-lr0.01"]["nodes"] for study in ("preempted", "abrupt")}
    # Four GPUs are what no node has left while one of these runs on it.
    takers = [
        subprocess.Popen(
            cluster.inside(["srun", f"--nodelist={host}", "--gpus-per-node=4", "sleep", "1"]), env=cluster.env
        )
        for host in hosts
    ]
    until(lambda: len(lab.epochs("node", "n2-v100-lr0.01")) >= 2)
    victim = lab.status("node")["n2-v100-lr0.01"]["nodes"]
    current = state.load(cluster.directory)
    assert current is not None
    os.kill(next(each.pid for each in current.processes if each.role == f"slurmd-{victim}"), signal.SIGKILL)
    assert [taker.wait(300) for taker in takers] == [0] * len(takers)
    return lab


def each_once(lab: Lab, study: str, cell: str, last: int) -> list[int]:
    """Check that every epoch up to `last` is there once; the restarts that they were trained in."""
    epochs = lab.epochs(study, cell)
    assert [epoch for epoch, _ in epochs] == list(range(1, last + 1))
    restarts = [restart for _, restart in epochs]
    assert restarts == sorted(restarts)
    return sorted(set(restarts))


def test_a_killed_rank_costs_one_retry(stories: Lab) -> None:
    rows = stories.wait("rank", "completed", seconds=300)
    assert each_once(stories, "rank", "n2-t4-lr0.01", EPOCHS) == [0, 1]
    log = stories.log("rank", "n2-t4-lr0.01")
    assert "started again (1 of 1 retries)" in log
    assert log.count("=== n2-t4-lr0.01: attempt ") == 2
    assert "going on after epoch" in log
    first = stories.cell("rank", "n2-t4-lr0.01") / "attempts" / "1" / "result.json"
    assert '"status": "failed"' in first.read_text()
    assert rows["n2-t4-lr0.01"]["epochs"] == EPOCHS


def test_preemption_costs_nothing(stories: Lab) -> None:
    rows = stories.wait("preempted", "completed", seconds=300)
    assert each_once(stories, "preempted", "n2-t4-lr0.01", EPOCHS) == [0, 1]
    log = stories.log("preempted", "n2-t4-lr0.01")
    assert "asked by SIGTERM; checkpoint" in log
    assert "retries" not in log
    # Both attempts are paid for: two rows of sacct, counted once each.
    told = stories.cluster.run(
        ["sacct", "-X", "-D", "--noheader", "-P", "-o", "ElapsedRaw", "-j", rows["n2-t4-lr0.01"]["job"]], check=True
    )
    seconds = [int(line) for line in told.stdout.split()]
    assert len(seconds) == 2
    assert rows["n2-t4-lr0.01"]["gpu_hours"] == pytest.approx(2 * sum(seconds) / 3600, abs=2 * 2 / 3600)
    assert rows["n2-t4-lr0.01"]["gpu_hours_estimated"] is False


def test_preemption_without_grace_costs_nothing_either(stories: Lab) -> None:
    """SLURM ends the job at once and requeues it; its KillWait (5 s here, 30 at most sites) is enough for a checkpoint."""
    stories.wait("abrupt", "completed", seconds=300)
    assert each_once(stories, "abrupt", "n2-t4-lr0.01", EPOCHS) == [0, 1]
    log = stories.log("abrupt", "n2-t4-lr0.01")
    assert "DUE TO PREEMPTION" in log
    first = stories.cell("abrupt", "n2-t4-lr0.01") / "attempts" / "1" / "result.json"
    assert '"status": "preempted"' in first.read_text(), log


def test_the_time_limit_ends_in_a_checkpoint_and_another_start(stories: Lab) -> None:
    until(lambda: stories.log("limit", "n2-lr0.01").count("going on after epoch") >= 1, 300)
    until(lambda: any(restart for _, restart in stories.epochs("limit", "n2-lr0.01")), 120)
    log = stories.log("limit", "n2-lr0.01")
    assert "asked by SIGUSR1; checkpoint" in log
    assert "--- n2-lr0.01: timeout: the time limit came (exit status 75) ---" in log
    assert "DUE TO TIME LIMIT" not in log
    assert stories("cancel", "limit").returncode == 0
    stories.wait("limit", "cancelled")
    until(lambda: stories.cluster.run(["squeue", "-h", "-n", "x"]).returncode == 0)
    time.sleep(2)
    each_once(stories, "limit", "n2-lr0.01", len(stories.epochs("limit", "n2-lr0.01")))
    assert stories.result("limit", "n2-lr0.01")["status"] == "cancelled"


def test_a_node_whose_daemon_dies(stories: Lab) -> None:
    cell = "n2-v100-lr0.01"
    until(lambda: sum(restart == 1 for _, restart in stories.epochs("node", cell)) >= 2, 300)
    assert stories("cancel", "node").returncode == 0
    stories.wait("node", "cancelled")
    until(lambda: (stories.cell("node", cell) / "result.json").exists())
    # Its first ranks lived on beside the new ones until they saw that they had been replaced.
    assert each_once(stories, "node", cell, len(stories.epochs("node", cell))) == [0, 1]
    log = stories.log("node", cell)
    assert "srun: error: Node failure on" in log
    assert log.count(f"=== {cell}: attempt ") == 2
    assert not (stories.cell("node", cell) / "running.json").exists()


def test_resume_goes_on_where_cancel_ended_it(stories: Lab) -> None:
    cell = "n2-t4-lr0.01"
    words = ["--gpus", "2", "--gpu-type", "t4", "--launcher", "gloo", "--set", "lr=0.01"]
    stories.submit(*words, "--epochs", "30", "--study", "stopped", "--cpus-per-task", "1")
    until(lambda: len(stories.epochs("stopped", cell)) >= 3)
    ended = stories("cancel", "stopped")
    assert ended.stdout.startswith(f"cancelled {cell} (job ")
    stories.wait("stopped", "cancelled")
    until(lambda: (stories.cell("stopped", cell) / "result.json").exists())
    before = stories.epochs("stopped", cell)
    assert stories("retry", "stopped").stdout == "nothing to retry: no cell failed\n"
    done = stories("resume", "stopped", "--time", "10")
    assert done.returncode == 0, done.stderr
    stories.wait("stopped", "completed")
    assert each_once(stories, "stopped", cell, 30) == [0, 1]
    assert stories.epochs("stopped", cell)[: len(before)] == before
    log = stories("logs", "stopped", "-f", "-n", "1")
    assert log.stdout.endswith(f"--- {cell}: completed (exit status 0) ---\n"), log.stdout


def test_nothing_of_the_stories_is_left(stories: Lab) -> None:
    folders = [path for path in (stories.room / "runs").rglob(".*") if path.name not in (".lock", ".rendezvous")]
    assert not [path for path in folders if ".part" in path.name or path.name.startswith(".submission")]
    assert Path(stories.room / "runs").is_dir()


def test_the_time_limit_is_the_controllers_whatever_time_a_node_has(stories: Lab) -> None:
    another_time = stories.room / "another_time.so"
    source = Path(__file__).with_name("another_time.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", another_time, source], check=True)
    cell, alone = "n1-lr0.01", ["--gpus", "1", "--launcher", "gloo", "--cpus-per-task", "1", "--set", "lr=0.01"]
    told = {"behind": -SKEW, "ahead of": SKEW}
    for words, ahead in told.items():
        clock = ["--env", f"LD_PRELOAD={another_time}", "--env", f"AHEAD={ahead}"]
        stories.submit(*alone, *clock, "--study", words.split()[0], "--time", "1", "--epochs", str(ENDLESS))
    for words in told:
        study = words.split()[0]
        until(lambda study=study: "timeout: the time limit came" in stories.log(study, cell), 180)
        log = stories.log(study, cell)
        assert f"note: this node's clock is {SKEW} s {words} the SLURM controller's" in log
        assert "asked by SIGUSR1; checkpoint" in log
        assert "DUE TO TIME LIMIT" not in log
        assert stories("cancel", study).returncode == 0
        stories.wait(study, "cancelled")
        first = stories.cell(study, cell) / "attempts" / "1" / "result.json"
        result = json.loads((first if first.exists() else stories.cell(study, cell) / "result.json").read_text())
        # Told a fifth of a minute before it ends: not at the start, and not after the end.
        assert 35 < result["slurm"]["ended"] - result["slurm"]["began"] < 60, result
        each_once(stories, study, cell, len(stories.epochs(study, cell)))
