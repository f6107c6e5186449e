"""The test cluster itself: what other tests and users trying the suite rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdtrain import testcluster
from hvdtrain.testcluster import Cluster, Options, config, process
from hvdtrain.testcluster.cli import main
from hvdtrain.testcluster.plan import make_plan

pytestmark = pytest.mark.alone

_ROOT = Path(__file__).resolve().parents[2]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hvdtrain.testcluster", *arguments]


def _leftovers(name: str, directory: Path) -> list[str]:
    """Processes, namespaces, links and files of a cluster."""
    names = [*os.listdir("/run/netns"), *os.listdir("/sys/class/net")] if os.path.exists("/run/netns") else []
    found = [one for one in names if one.startswith(f"{name}-")]
    found += [f"process {pid}" for pid in process.find_marked(directory, directory / "slurm.conf")]
    return [*found, str(directory)] if directory.exists() else found


def _wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@contextmanager
def _second_cluster(letter: str, **choices: bool | int | str) -> Iterator[Cluster]:
    options = Options(name=f"{letter}{os.getpid()}", owner_pid=os.getpid(), **choices)  # type: ignore[arg-type]
    cluster = testcluster.up(options)
    try:
        yield cluster
    finally:
        testcluster.down(options)


@pytest.fixture
def free_name() -> Iterator[tuple[str, Path]]:
    """A name for a cluster that the test starts and ends by itself, and its directory."""
    options = Options(name=f"x{os.getpid()}")
    yield options.name, options.place()
    testcluster.down(options)


def test_further_partitions_and_nodes_leave_the_others(tmp_path: Path) -> None:
    settings = ("PartitionName=mine Nodes=ALL", "PartitionName=short Nodes=ALL", "KillWait=9")
    lines = config.slurm_conf(make_plan("x", tmp_path, "one-host", None, settings=settings)).splitlines()
    names = [line.split()[0].partition("=")[2] for line in lines if line.startswith("PartitionName=")]
    assert sorted(names) == ["all", "mine", "preempt", "short", "t4", "v100"]
    assert [line for line in lines if line.startswith("KillWait=")] == ["KillWait=9"]


def test_every_node_has_a_host_name_of_its_own(slurm_cluster: Cluster) -> None:
    names = slurm_cluster.run(["srun", "-N4", "hostname"], check=True).stdout.split()
    assert sorted(names) == sorted(slurm_cluster.nodes)
    assert [name.rpartition("-")[0].partition("-")[2] for name in slurm_cluster.nodes] == ["t4", "t4", "v100", "v100"]


def test_every_node_resolves_every_name(slurm_cluster: Cluster) -> None:
    plan = slurm_cluster.plan
    script = 'for name in "$@"; do getent ahostsv4 $name | sed "s/ .*//;q"; done | xargs'
    wanted = " ".join([*(node.address for node in plan.nodes), plan.host_address])
    names = [*slurm_cluster.nodes, plan.controller_name]
    told = slurm_cluster.run(["srun", "-N4", "sh", "-c", script, "sh", *names], check=True).stdout.splitlines()
    assert told == [wanted] * 4
    assert slurm_cluster.run(["sh", "-c", script, "sh", *names], check=True).stdout.splitlines() == [wanted]


def test_nodes_reach_each_other_and_nothing_else(slurm_cluster: Cluster) -> None:
    routes = slurm_cluster.run(["ip", "route"], node=slurm_cluster.nodes[0], check=True).stdout.split()
    assert routes[0] == slurm_cluster.plan.network
    assert "default" not in routes


def test_clients_work_from_the_sourced_environment(slurm_cluster: Cluster) -> None:
    """Outside of `Cluster.run`, where the nodes' names do not resolve."""
    command = ["bash", "-c", f"source {slurm_cluster.directory}/env.sh && srun -N2 -n2 hostname"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert len(set(done.stdout.split())) == 2


def test_typed_gpu_request_sets_the_visible_devices(slurm_cluster: Cluster) -> None:
    script = 'echo "$SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
    shape = ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=v100:2"]
    told = sorted(slurm_cluster.run(["srun", *shape, "sh", "-c", script], check=True).stdout.splitlines())
    first, second = slurm_cluster.nodes[2:]
    assert told == [f"0 {first} 0,1", f"1 {first} 0,1", f"2 {second} 0,1", f"3 {second} 0,1"]


def test_more_gpus_than_exist_are_refused(slurm_cluster: Cluster) -> None:
    done = slurm_cluster.run(["srun", "--nodes=1", "--gpus-per-node=t4:5", "true"])
    assert done.returncode != 0
    assert "not available" in done.stderr


def test_pmix_gives_ranks(slurm_cluster: Cluster) -> None:
    told = slurm_cluster.run(["srun", "--mpi=pmix", "-N2", "--ntasks-per-node=2", "printenv", "PMIX_RANK"], check=True)
    assert sorted(told.stdout.split()) == ["0", "1", "2", "3"]


def test_sbatch_runs_a_script(slurm_cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --output=out.txt\nsrun hostname\n")
    slurm_cluster.run(["sbatch", "--wait", str(script)], cwd=tmp_path, check=True)
    assert sorted((tmp_path / "out.txt").read_text().split()) == sorted(slurm_cluster.nodes[:2] * 2)


def test_partitions(slurm_cluster: Cluster) -> None:
    told = slurm_cluster.run(["sinfo", "--noheader", "--format=%P %l %D"], check=True).stdout.splitlines()
    wanted = ["all* 1-00:00:00 4", "t4 1-00:00:00 2", "v100 1-00:00:00 2", "preempt 1-00:00:00 4", "short 1:00 4"]
    assert told == wanted


def test_the_low_partition_is_preempted_and_its_job_requeued(slurm_cluster: Cluster) -> None:
    submit = ["sbatch", "--parsable", "--partition=preempt", "--nodes=4", "--exclusive", "--output=/dev/null"]
    job = slurm_cluster.run([*submit, "--wrap", "exec sleep 600"], check=True).stdout.strip()
    show = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    _wait_for(lambda: slurm_cluster.run(show).stdout.strip() == "RUNNING")
    slurm_cluster.run(["srun", "--nodes=4", "--exclusive", "true"], check=True)
    details = slurm_cluster.run(["scontrol", "show", "job", job], check=True).stdout
    slurm_cluster.run(["scancel", job], check=True)
    assert "JobState=PENDING" in details
    assert "Restarts=1" in details


def test_two_clusters_coexist(slurm_cluster: Cluster) -> None:
    with _second_cluster("s", link="100mbit") as other:
        assert other.plan.network != slurm_cluster.plan.network
        assert sorted(other.run(["srun", "-N4", "hostname"], check=True).stdout.split()) == sorted(other.nodes)
        assert slurm_cluster.run(["srun", "-N1", "hostname"], check=True).stdout.split() == [slurm_cluster.nodes[0]]
        shape = other.run(["tc", "qdisc", "show", "dev", "eth0"], node=other.nodes[0], check=True).stdout
        assert "tbf" in shape
        assert "100Mbit" in shape
    assert _leftovers(other.plan.name, other.directory) == []
    assert _leftovers(slurm_cluster.plan.name, slurm_cluster.directory) != []


def test_accounting(slurm_cluster: Cluster) -> None:
    with _second_cluster("a", accounting=True) as other:
        refused = other.run(["srun", "--account=nobody", "true"])
        assert "Invalid account" in refused.stderr
        other.run(["srun", "--account=test", "-N2", "--gpus-per-node=t4:1", "true"], check=True)
        ask = ["sacct", "-X", "--noheader", "--parsable2", "--format=State,Account,AllocTRES"]
        _wait_for(lambda: "COMPLETED|test|" in other.run(ask, check=True).stdout)
        assert "gres/gpu:t4=2" in other.run(ask, check=True).stdout
    assert _leftovers(other.plan.name, other.directory) == []


def test_one_host(capfd: pytest.CaptureFixture[str], free_name: tuple[str, Path]) -> None:
    shape = ["srun", "-N2", "--ntasks-per-node=1", "--gpus-per-node=v100:1", "printenv", "SLURMD_NODENAME"]
    assert main(["run", "--one-host", "--name", free_name[0], "--", *shape]) == 0
    told = capfd.readouterr()
    assert sorted(told.out.split()) == [f"{free_name[0]}-v100-1", f"{free_name[0]}-v100-2"]
    assert "one host" in told.err
    assert _leftovers(*free_name) == []


def test_down_ends_jobs_and_leaves_nothing(free_name: tuple[str, Path]) -> None:
    name, directory = free_name
    cluster = testcluster.up(Options(name=name))
    # A job that leaves its session and ignores polite signals.
    stubborn = "trap '' TERM HUP INT; setsid sleep 98765 & setsid sleep 98765 & wait"
    cluster.run(["sbatch", "--nodes=2", "--output=/dev/null", "--wrap", stubborn], check=True)
    sleepers = process.find_in_namespaces
    _wait_for(lambda: any("98765" in _arguments(pid) for pid in sleepers(cluster.plan.namespaces)))
    pids = [pid for pid in sleepers(cluster.plan.namespaces) if "98765" in _arguments(pid)]
    assert testcluster.down(Options(name=name))
    assert _leftovers(name, directory) == []
    assert not [pid for pid in pids if "98765" in _arguments(pid)]
    assert not testcluster.down(Options(name=name))


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_run_passes_the_status_on_and_leaves_nothing(free_name: tuple[str, Path]) -> None:
    assert main(["run", "--name", free_name[0], "--", "srun", "-N1", "sh", "-c", "exit 7"]) == 7
    assert _leftovers(*free_name) == []


@pytest.mark.parametrize("delay", [0.1, 0.4, 0.7, 1.0])
def test_a_killed_up_can_be_undone(free_name: tuple[str, Path], delay: float) -> None:
    with subprocess.Popen(_command("up", "--name", free_name[0]), cwd=_ROOT, stderr=subprocess.DEVNULL) as starting:
        time.sleep(delay)
        starting.kill()
    testcluster.down(Options(name=free_name[0]))
    assert _leftovers(*free_name) == []


def test_an_up_that_wrote_half_its_first_state_can_be_undone(free_name: tuple[str, Path]) -> None:
    free_name[1].mkdir()
    (free_name[1] / "state.json.new").write_text("{")
    assert testcluster.down(Options(name=free_name[0]))
    assert _leftovers(*free_name) == []


def test_the_cluster_ends_with_its_owner(free_name: tuple[str, Path]) -> None:
    command = _command("run", "--name", free_name[0], "--", "sleep", "30")
    with subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.DEVNULL, start_new_session=True) as owner:
        _wait_for((free_name[1] / "env.sh").exists)
        os.killpg(owner.pid, signal.SIGKILL)
    _wait_for(lambda: _leftovers(*free_name) == [])


def test_a_daemon_that_dies_is_reported_and_everything_removed(
    free_name: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "slurmd"
    broken.write_text(
        "#!/bin/sh\n[ \"$1\" = -V ] && echo 'slurm 22.05.8' && exit\necho 'fatal: no luck today'; exit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["up", "--name", free_name[0]]) == 1
    told = capfd.readouterr().err
    assert f"slurmd-{free_name[0]}-t4-1 ended" in told
    assert "fatal: no luck today" in told
    assert _leftovers(*free_name) == []


def test_missing_programs_are_listed_with_their_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        _command("up"),
        cwd=_ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "srun" in done.stderr
    assert "apt-get install" in done.stderr
    assert "slurm-wlm" in done.stderr


def test_root_is_needed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["up"]) == 2
    assert "needs root" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--name", "Way-Too-Long"], "--name hvd2"),
        (["--link", "fast"], "1gbit"),
        (["--dir", "/tmp/" + "x" * 60], "characters"),
        (["--link", "1gbit", "--one-host"], "one-host"),
    ],
)
def test_wrong_requests(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", *arguments]) == 2
    assert hint in capsys.readouterr().err


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(f"/tmp/hvd-other-{os.getpid()}")
    place.mkdir()
    try:
        (place / "thesis.tex").touch()
        assert main(["up", "--dir", str(place)]) == 2
        assert main(["down", "--dir", str(place)]) == 0
        assert (place / "thesis.tex").exists()
    finally:
        (place / "thesis.tex").unlink()
        place.rmdir()
    assert "not empty" in capsys.readouterr().err


def test_a_second_up_is_refused(slurm_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--name", slurm_cluster.plan.name]) == 2
    assert "is running" in capsys.readouterr().err
    assert main(["up", "--name", slurm_cluster.plan.name, "--dir", f"/tmp/hvd-elsewhere-{os.getpid()}"]) == 2
    assert "another directory" in capsys.readouterr().err
    assert main(["status", "--name", slurm_cluster.plan.name]) == 0
