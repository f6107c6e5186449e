"""What a rank finds to be wrong before Horovod is imported."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from hvdtrain.errors import UserError
from hvdtrain.horovod_build import check
from hvdtrain.launch.preflight import (
    CONNECT_TIMEOUT_VARIABLE,
    LaunchError,
    gloo_variables,
    meeting_file,
    own_problem,
    seconds_from,
)
from hvdtrain.launch.rendezvous import Address
from hvdtrain.launch.session import Session
from hvdtrain.record import read_json
from hvdtrain.world import World
from tests.unit.starting import run, script

ALONE = World(0, 2, 0, 2, 0, 1, "node1", "cpu", "local")


@pytest.fixture
def limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_installed_horovod_fits() -> None:
    assert own_problem(ALONE, "torch") == ""


@pytest.mark.parametrize(
    ("given", "told"), [("0.5", "1"), ("0", "1"), ("7.2", "8"), ("inf", "604800"), ("1e12", "604800")]
)
def test_horovod_is_told_a_timeout_that_it_can_take(given: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole seconds: 0 ends Gloo at once, and there are numbers that its clock cannot hold."""
    monkeypatch.setattr(os, "environ", {CONNECT_TIMEOUT_VARIABLE: given, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "here"})
    Session(ALONE, "torch").prepare()
    assert os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] == told


def test_a_build_without_mpi_under_an_mpi_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    build = check.installed()
    assert build is not None
    monkeypatch.setattr(check, "installed", lambda: replace(build, mpi=None))
    told = own_problem(replace(ALONE, launcher="pmix"), "torch")
    assert "built without MPI" in told and "srun --mpi=none" in told
    assert own_problem(ALONE, "torch") == ""


def test_a_build_of_an_earlier_version_cannot_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    build = check.installed()
    assert build is not None
    monkeypatch.setattr(check, "installed", lambda: replace(build, features=()))
    assert "hvdtrain build-horovod" in own_problem(ALONE, "torch")
    assert own_problem(replace(ALONE, launcher="mpirun"), "torch") == ""


@pytest.mark.parametrize(
    ("framework", "strategy", "changed", "cuda", "refused"),
    [
        ("torch", "horovod", {}, None, True),
        ("torch", "horovod", {"launcher": "pmix"}, None, True),
        # Two ranks that share a GPU: Horovod copies through the host, which takes CUDA but no NCCL.
        ("torch", "horovod", {}, "13.0", False),
        ("torch", "horovod", {"device": "cpu"}, None, False),
        ("torch", "horovod", {"size": 1, "local_size": 1, "launcher": "none"}, None, False),
        # DistributedDataParallel's ranks only meet by Horovod.
        ("torch", "ddp", {}, None, False),
        # Its operations of Horovod's are on the CPU then, and it copies by itself.
        ("tensorflow", "horovod", {}, None, False),
    ],
)
def test_ranks_on_gpus_and_a_build_without_cuda(
    framework: str,
    strategy: str,
    changed: dict[str, Any],
    cuda: str | None,
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = check.installed()
    assert build is not None
    monkeypatch.setattr(check, "problem", lambda frameworks: None)
    monkeypatch.setattr(check, "installed", lambda: replace(build, mpi="Open MPI 5", cuda=cuda))
    problem = own_problem(replace(ALONE, **{"device": "cuda:0", **changed}), framework, strategy)
    words = ["built without CUDA", "hvdtrain build-horovod --cuda on", "nvcc", "CUDA_VISIBLE_DEVICES="]
    assert [word for word in words if word not in problem] == ([] if refused else words)


@pytest.mark.parametrize("strategy", ["horovod", "ddp"])
def test_what_averages_gradients_is_known_before_horovod_starts(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdtrain._torch import start

    def session(*given: Any) -> NoReturn:
        raise UserError(f"session for {given[1:]}")

    monkeypatch.setattr(start, "Session", session)
    monkeypatch.setattr(start, "_strategy", start._strategy)
    monkeypatch.setattr(start.launch, "active", None)  # whatever tests before this one have started
    with pytest.raises(UserError) as caught:
        start.init(strategy)
    assert str(caught.value) == f"session for ('torch', '{strategy}')"


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(limits: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    assert own_problem(ALONE, "torch") == ""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 6 * 2 * 2 + 256


def test_a_world_too_large_for_the_hard_limit_is_told_what_to_type() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    size = hard // 12 + 1
    problem = own_problem(replace(ALONE, size=size), "torch")
    assert f"the limit is {hard}" in problem
    assert f"ulimit -n {12 * size + 256}" in problem


def test_gloo_is_told_both_of_its_switches_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "localhost")
    variables = gloo_variables(ALONE, Address("10.0.0.1", 4711, "secret"), "eth0")
    assert (variables["HOROVOD_CONTROLLER"], variables["HOROVOD_CPU_OPERATIONS"]) == ("gloo", "gloo")
    assert variables["no_proxy"] == variables["NO_PROXY"] == "localhost,10.0.0.1"
    assert (variables["HOROVOD_RANK"], variables["HOROVOD_SIZE"], variables["HOROVOD_HOSTNAME"]) == ("0", "2", "node1")


def test_a_meeting_folder_that_cannot_be_written_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    folder = tmp_path / "file" / "meeting"
    variables = {f"HOROVOD_{name}": value for name, value in place.items()} | {"HVDTRAIN_RENDEZVOUS_DIR": str(folder)}
    job = script(tmp_path, "import hvdtrain.torch as ht\nht.init()\n")
    ended = run("hvdtrain.run", "--run-dir", tmp_path / "run", job, **variables)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {folder} cannot be written on "), ended.stderr
    assert "(Not a directory): set HVDTRAIN_RENDEZVOUS_DIR (or --run-dir) to a folder" in ended.stderr
    result = read_json(tmp_path / "run" / "result.json")
    assert result is not None and result["status"] == "failed" and "cannot be written" in result["reason"]


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for name in ("HVDTRAIN_RENDEZVOUS_DIR", "HVDTRAIN_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LaunchError, match=r"no home folder.*set HVDTRAIN_RENDEZVOUS_DIR \(or --run-dir\) to a folder"):
        meeting_file()
    monkeypatch.setenv("HVDTRAIN_RUN_DIR", "/shared/run")
    assert meeting_file().parent == Path("/shared/run/.rendezvous")


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_what_is_no_number_of_seconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDTRAIN_STALL_TIMEOUT", text)
    with pytest.raises(Exception, match="is not a number of seconds"):
        seconds_from("HVDTRAIN_STALL_TIMEOUT", 1.0)


@pytest.mark.parametrize(
    ("nccl", "autotune", "expected"), [(0, None, str(4 * 2**20)), (22800, None, None), (0, "1", None)]
)
def test_fusion_is_limited_where_cpus_copy_and_nobody_tunes(
    nccl: int, autotune: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_AUTOTUNE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if autotune:
        monkeypatch.setenv("HOROVOD_AUTOTUNE", autotune)
    hvd = SimpleNamespace(nccl_built=lambda: nccl, init=lambda: None, size=lambda: 1, rank=lambda: 0)
    Session(replace(ALONE, size=1, local_size=1), "torch").start(hvd)
    assert os.environ.get("HOROVOD_FUSION_THRESHOLD") == expected
