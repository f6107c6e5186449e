"""`python -m hvdtrain.launch`: what it refuses, what it records, where output goes; and the commands it makes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.errors import UserError
from hvdtrain.horovod_build import check
from hvdtrain.launch import cli
from hvdtrain.launch.launchers import REGISTRY, Request
from hvdtrain.machine import find_mpirun
from hvdtrain.record import read_json
from tests.unit.starting import environment, run, script
from tests.unit.test_machine import with_smi

JOB = """
import os, sys
rank = os.environ.get("HOROVOD_RANK", "0")
# In one piece each: unbuffered, print writes word by word, and ranks share the file.
sys.stdout.write(f"out of rank {rank}\\n")
sys.stderr.write(f"err of rank {rank}\\n")
if sys.argv[1] == "text":
    sys.exit("text of the job")
sys.exit(int(sys.argv[1]))
"""


def result_of(folder: Path) -> dict[str, Any]:
    result = read_json(folder / "result.json")
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-n", "0", "JOB"), ["-n 0: a world has at least one rank"]),
        (("-n", "-3", "JOB"), ["-n -3: a world has at least one rank"]),
        (("-n", "2", "--cpus-per-task", "0", "JOB"), ["--cpus-per-task 0: a rank has at least one core"]),
        (("-n", "2", "digit"), ['no job "digit"', "the jobs are", "digits", 'did you mean "digits"?']),
        (("-n", "2", "no/such.py"), ['job file "no/such.py" does not exist']),
        (
            ("-n", "2", "--launcher", "mpirum", "JOB"),
            ['no launcher "mpirum"', "auto, none, local, mpirun, gloo, pmix", 'did you mean "mpirun"?'],
        ),
        (("-n", "2", "--launcher", "none", "JOB"), ["launcher none starts one rank, not 2", "leave --launcher out"]),
        (("-n", "2", "--launcher", "gloo", "JOB"), ['launcher gloo needs "srun"', "not on the PATH"]),
    ],
)
def test_a_mistake_is_refused_before_anything_starts(
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    job = str(script(tmp_path, JOB))
    given = [job if each == "JOB" else each for each in arguments]
    assert cli.main(["--run-dir", str(tmp_path / "run"), *given, "0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert [word for word in words if word not in err] == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [("JOB",), ("-n", "two", "JOB"), ("-n", "2"), ("-n", "2", "--stall", "1", "JOB")])
def test_usage(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m hvdtrain.launch" in capsys.readouterr().err


def test_the_command_ends_with_the_status_of_a_mistake() -> None:
    ended = run("hvdtrain.launch", "-n", 0, "digits")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "error: -n 0: a world has at least one rank\n")


def test_a_recorded_world_has_a_log_of_each_rank_and_a_result(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    ended = run("hvdtrain.launch", "-n", 3, "--launcher", "local", "--run-dir", folder, script(tmp_path, JOB), 0)
    assert (ended.returncode, ended.stdout) == (0, "out of rank 0\n")
    assert ended.stderr.startswith("err of rank 0\nwarning: this job never called init()")
    assert sorted(os.listdir(folder / "log")) == ["rank-1.log", "rank-2.log"]
    for rank in (1, 2):
        lines = (folder / "log" / f"rank-{rank}.log").read_text().splitlines()
        assert sorted(lines) == [f"err of rank {rank}", f"out of rank {rank}"]
    result = result_of(folder)
    assert (result["status"], result["exit_code"], result["reason"]) == ("completed", 0, "")
    assert sorted(os.listdir(folder)) == [".run.lock", "log", "result.json"]


def test_without_a_run_folder_all_ranks_share_the_output(tmp_path: Path) -> None:
    ended = run("hvdtrain.launch", "-n", 2, "--launcher", "local", script(tmp_path, JOB), 0)
    assert sorted(ended.stdout.splitlines()) == ["out of rank 0", "out of rank 1"]
    assert sorted(os.listdir(tmp_path)) == ["my $(job)'s.py"]


def test_one_rank_that_was_asked_for_trains_alone_in_an_allocation_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # they stay pytest's
    assert cli.main(["-n", "1", str(script(tmp_path, JOB)), "0"]) == 0
    assert capfd.readouterr() == ("out of rank 0\n", "err of rank 0\n")


@pytest.mark.parametrize(
    ("ranks", "end", "status", "reason"),
    [
        (2, "3", 3, "the job called sys.exit(3)"),
        (1, "text", 1, "text of the job"),
    ],
)
def test_a_failed_world_is_recorded(tmp_path: Path, ranks: int, end: str, status: int, reason: str) -> None:
    folder = tmp_path / "run"
    options = ("--run-dir", folder, "--launcher", "local")
    ended = run("hvdtrain.launch", "-n", ranks, *options, script(tmp_path, JOB), end)
    assert ended.returncode == status
    assert ("text of the job\n" in ended.stderr) == (end == "text")
    result = result_of(folder)
    assert (result["status"], result["exit_code"], result["reason"]) == ("failed", status, reason)


def test_a_rank_that_is_killed_is_recorded(tmp_path: Path) -> None:
    job = script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    ended = run("hvdtrain.launch", "-n", 2, "--launcher", "local", "--run-dir", tmp_path / "run", job)
    assert ended.returncode == 139
    result = result_of(tmp_path / "run")
    assert (result["status"], result["exit_code"]) == ("failed", 139)
    assert result["reason"] == "ended by signal SIGSEGV"


# --- GPUs under mpirun ---


@dataclass
class Started:
    """What was started last, and with which variables; nothing runs."""

    command: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, command: Sequence[str], environment: dict[str, str], stop: signal.Signals | None) -> int:
        self.command, self.environment = command, environment
        return 0


def show_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """nvidia-smi lists so many."""
    listed = "".join(f"echo 'GPU {index}: Tesla T4 (UUID: GPU-{index})'\n" for index in range(number))
    monkeypatch.setenv("PATH", with_smi(folder, f"#!/bin/sh\n{listed}"))


@pytest.fixture
def by_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """`auto` takes mpirun on a machine with four GPUs, outside of any allocation."""
    show_gpus(tmp_path, monkeypatch, 4)
    for name in os.environ.keys() - environment().keys() | {"CUDA_VISIBLE_DEVICES"}:
        monkeypatch.delenv(name, raising=False)
    started = Started()
    monkeypatch.setattr(cli, "_mpi_is_ready", lambda: True)
    monkeypatch.setattr("hvdtrain.launch.launchers.find_mpirun", lambda: "/bin/sh")
    monkeypatch.setattr(cli, "_run", started)
    return started


@pytest.mark.parametrize(
    ("ranks", "variables", "expected"),
    [
        (2, {}, "0,1"),
        (4, {}, "0,1,2,3"),
        (2, {"CUDA_VISIBLE_DEVICES": "3,1,2"}, "3,1"),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, ""),
        (2, {"SLURM_JOB_NUM_NODES": "1"}, "0,1"),
        # Ranks of other nodes have GPUs of their own, which mpirun's variables would hide.
        (2, {"SLURM_JOB_NUM_NODES": "2"}, None),
        (8, {"SLURM_JOB_NUM_NODES": "2"}, None),
        (2, {"PBS_NODEFILE": "one"}, "0,1"),
        (8, {"PBS_NODEFILE": "two"}, None),
        (8, {"LSB_DJOB_HOSTFILE": "two"}, None),
        (8, {"PRTE_MCA_prte_default_hostfile": "nowhere"}, None),
    ],
)
def test_ranks_of_mpirun_see_as_many_gpus_as_they_are(
    by_mpirun: Started,
    ranks: int,
    variables: dict[str, str],
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "one").write_text("node1\nnode1\n")
    (tmp_path / "two").write_text("node1 slots=4\nnode2 slots=4\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value) if "FILE" in name.upper() else value)
    assert cli.main(["-n", str(ranks), str(script(tmp_path, JOB))]) == 0
    assert list(by_mpirun.command[:1]) == ["/bin/sh"]
    assert by_mpirun.environment.get("CUDA_VISIBLE_DEVICES") == expected


# They share the one GPU, or train on CPUs where their framework has no CUDA, or say themselves what is visible.
@pytest.mark.parametrize(("gpus", "ranks"), [(1, 2), (1, 4), (4, 5)])
def test_of_more_ranks_than_gpus_under_mpirun_each_chooses_its_device(
    by_mpirun: Started, gpus: int, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(tmp_path, monkeypatch, gpus)
    assert cli.main(["-n", str(ranks), str(script(tmp_path, JOB))]) == 0
    assert list(by_mpirun.command[:1]) == ["/bin/sh"]
    assert "CUDA_VISIBLE_DEVICES" not in by_mpirun.environment


# --- commands ---

COMMAND = ["python", "-m", "hvdtrain.run", "it's.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("name", "request_", "before"),
    [
        ("none", Request(1, COMMAND), []),
        (
            "gloo",
            Request(8, COMMAND, cpus=4),
            ["srun", "--export=ALL", "--kill-on-bad-exit=1", "--cpus-per-task=4", "--ntasks=8", "--mpi=none"],
        ),
        (
            "gloo",
            Request(8, COMMAND, cpus=4, nodes=2),
            ["srun", "--export=ALL", "--kill-on-bad-exit=1", "--cpus-per-task=4", "--nodes=2", "--ntasks-per-node=4", "--mpi=none"],
        ),
        (
            "pmix",
            Request(4, COMMAND, nodes=1),
            ["srun", "--export=ALL", "--kill-on-bad-exit=1", "--cpus-per-task=1", "--nodes=1", "--ntasks-per-node=4", "--mpi=pmix"],
        ),
        (
            "pmix",
            Request(4, COMMAND, pmix="pmix_v4", options=["--overlap"]),
            ["srun", "--export=ALL", "--kill-on-bad-exit=1", "--cpus-per-task=1", "--ntasks=4", "--overlap", "--mpi=pmix_v4"],
        ),
        ("local", Request(3, COMMAND, cpus=2), [sys.executable, "-m", "hvdtrain.launch.local", "-n", "3", "--cpus", "2", "--"]),
    ],
)  # fmt: skip
def test_commands(name: str, request_: Request, before: list[str]) -> None:
    assert REGISTRY[name].command(request_) == [*before, *COMMAND]


@pytest.mark.parametrize(("user", "allowed"), [(0, ["--allow-run-as-root"]), (1000, [])])
def test_mpirun_command(monkeypatch: pytest.MonkeyPatch, user: int, allowed: list[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    options = ["-n", "3", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    assert REGISTRY["mpirun"].command(Request(3, COMMAND)) == [find_mpirun() or "mpirun", *allowed, *options, *COMMAND]


@pytest.mark.parametrize("name", ["gloo", "pmix"])
def test_srun_is_given_only_flags_that_slurm_22_and_later_have(name: str) -> None:
    # srun takes any unambiguous prefix: a misspelt flag may pass unseen on one version and fail on the next.
    legal = {"--export", "--kill-on-bad-exit", "--cpus-per-task", "--nodes", "--ntasks-per-node", "--ntasks", "--mpi"}
    command = REGISTRY[name].command(Request(8, COMMAND, cpus=4, nodes=2))
    flags = command[1 : -len(COMMAND)]
    assert {flag.partition("=")[0] for flag in flags} <= legal
    assert len({flag.partition("=")[0] for flag in flags}) == len(flags)


def test_every_launcher_is_registered_under_its_name_and_says_what_it_is() -> None:
    assert list(REGISTRY) == ["none", "local", "mpirun", "gloo", "pmix"]
    assert all(name == launcher.name and launcher.about for name, launcher in REGISTRY.items())


def test_auto_starts_one_rank_without_a_launcher() -> None:
    assert cli.choose("auto", 1).name == "none"
    assert cli.choose("auto", 2).name in ("local", "mpirun")
    assert cli.choose("local", 1).name == "local"


@pytest.mark.parametrize(
    ("mpi", "launcher"), [("Open MPI 5.0.11", "mpirun"), ("Open MPI unknown", "mpirun"), ("MPICH 4.2.1", "local"), (None, "local")]
)  # fmt: skip
def test_auto_takes_only_an_mpirun_that_tells_ranks_their_places(
    mpi: str | None, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = check.installed()
    assert build is not None
    monkeypatch.setattr(check, "installed", lambda: replace(build, mpi=mpi))
    monkeypatch.setattr(cli, "find_mpirun", lambda: "/bin/sh")
    monkeypatch.setattr("hvdtrain.launch.launchers.find_mpirun", lambda: "/bin/sh")
    assert cli.choose("auto", 2).name == launcher


def test_the_launcher_none_has_one_rank() -> None:
    assert cli.choose("none", 1).name == "none"
    with pytest.raises(UserError, match="one rank, not 4"):
        cli.choose("none", 4)
