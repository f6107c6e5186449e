"""The doctor: what it finds, on this machine and on broken ones."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.doctor import check, cli, slurm
from hvdtrain.doctor.check import REGISTRY, Context, examine
from hvdtrain.horovod_build.check import BuildInfo
from hvdtrain.site.detect import Facts


def outcome(name: str, folder: Path) -> dict[str, str]:
    cli.examine((), folder)  # registers all checks
    return examine(next(each for each in REGISTRY.checks if each.name == name), Context(folder))


def test_about_thirty_checks_as_json_and_an_exit_status(tmp_path: Path) -> None:
    environment = {**os.environ, "HOROVOD_GLOO_IFACE": "eth77"}
    command = [sys.executable, "-m", "hvdtrain", "doctor", "--json", "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    found = {each["name"]: each for each in told}
    assert len(told) == len(found) >= 25
    for each in told:
        explained = bool(each["why"]) and bool(each["fix"])
        assert explained == (each["status"] in ("failed", "warning")), each
    assert done.returncode == 1
    assert found["interface"]["status"] == "failed"
    assert "HOROVOD_GLOO_IFACE=eth77" in found["interface"]["what"]
    assert found["horovod-build"]["status"] == found["horovod-loads"]["status"] == "ok"
    assert not (tmp_path / "runs").exists(), "looking creates nothing"
    assert list(tmp_path.iterdir()) == []


def test_text_says_what_why_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOROVOD_HIERARCHICAL_ALLREDUCE", "1")
    cli._print([outcome("horovod-variables", tmp_path)])
    told = capsys.readouterr().out
    assert "WARNING horovod-variables" in told
    assert "why it matters: it hangs or aborts under Gloo" in told
    assert "what to type:   unset HOROVOD_HIERARCHICAL_ALLREDUCE" in told


@pytest.mark.parametrize(
    ("name", "environment", "status", "words"),
    [
        ("interface", {"HOROVOD_GLOO_IFACE": "nope"}, "failed", "there is no such interface"),
        ("interface", {"HOROVOD_GLOO_IFACE": "lo", "NCCL_SOCKET_IFNAME": "ib0"}, "warning", "differ (ib0, lo)"),
        ("threads", {"OMP_NUM_THREADS": "4096"}, "warning", "OMP_NUM_THREADS=4096 on"),
        ("horovod-variables", {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}, "warning", "HOROVOD_GLOO_TIMEOUT_SECONDS=30"),
        ("horovod-variables", {"PMIX_RANK": "0"}, "warning", "outside of any launcher"),
        ("proxy", {"http_proxy": "http://p"}, "ok", "the launcher exempts the nodes"),
        ("other-names", {"SLURM_JOB_NODELIST": "ghost-[1-2]"}, "failed", "ghost-1, ghost-2 cannot be resolved"),
    ],
)
def test_a_broken_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, environment: dict[str, str], status: str, words: str
) -> None:
    for variable in ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME", "SLURM_PROCID"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    found = outcome(name, tmp_path)
    assert found["status"] == status
    assert words in found["what"]


@pytest.mark.parametrize(
    ("mpi", "types", "fix"),
    [
        ("Open MPI 5.0.11", ["none", "pmi2"], "ask the administrator for SLURM's PMIx plugin (libpmix)"),
        ("MPICH 4.2", ["none", "pmix_v4"], "pip install 'hvdtrain[mpi]', then hvdtrain build-horovod"),
    ],
)
def test_what_keeps_auto_from_mpi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mpi: str, types: list[str], fix: str
) -> None:
    monkeypatch.setattr(slurm, "_facts", lambda: Facts([], mpi=types))
    monkeypatch.setattr(
        "hvdtrain.horovod_build.check.installed", lambda: BuildInfo("0", "k", "e", "3", "linux", "g++", mpi=mpi)
    )
    found = outcome("launcher", tmp_path)
    assert (found["status"], found["fix"]) == ("warning", fix)


@pytest.mark.parametrize(("versions", "status"), [({"torch": "2"}, "failed"), ({"tensorflow": "2"}, "ok")])
def test_a_horovod_without_cuda_beside_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], status: str
) -> None:
    monkeypatch.setattr("hvdtrain.machine.visible_gpus", lambda environ: ["0"])
    monkeypatch.setattr(
        "hvdtrain.horovod_build.check.installed", lambda: BuildInfo("0", "k", "e", "3", "linux", "g++", **versions)
    )
    found = outcome("cuda", tmp_path)
    assert (found["status"], "PyTorch" in found["what"] + found["why"]) == (status, "torch" in versions)


@pytest.mark.parametrize(
    ("broken", "status", "what"),
    [
        (["torch"], "ok", "tensorflow: the extension loads"),
        (["torch", "tensorflow"], "skipped", "not tried: see horovod-build"),
    ],
)
def test_only_an_extension_that_was_tried_is_said_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: list[str], status: str, what: str
) -> None:
    info = BuildInfo("0", "k", "e", "3", "linux", "g++", torch="2", tensorflow="2")
    monkeypatch.setattr("hvdtrain.horovod_build.check.installed", lambda: info)
    monkeypatch.setattr("hvdtrain.horovod_build.check.problem", lambda names: "broken" if names[0] in broken else None)
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: subprocess.CompletedProcess(args, 0))
    found = outcome("horovod-loads", tmp_path)
    assert (found["status"], found["what"]) == (status, what)


def test_few_open_files(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        assert outcome("open-files", tmp_path)["status"] == "warning"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_folder_that_cannot_be_written() -> None:
    assert outcome("run-folder", Path("/proc/sys"))["status"] == "failed"
    assert outcome("atomic-rename", Path("/proc/sys"))["status"] == "failed"


@pytest.mark.parametrize(
    ("variables", "status", "words"),
    [
        ({"HOME": "home"}, "ok", "/home/.cache/hvdtrain/rendezvous"),
        # Ranks that plain srun starts, without a run folder, meet in the home.
        ({"HOME": "file"}, "warning", "/file/.cache/hvdtrain/rendezvous cannot be written: Not a directory"),
        ({"HOME": "file", "HVDTRAIN_RUN_DIR": "run"}, "ok", "/run/.rendezvous"),
        ({"HOME": "file", "HVDTRAIN_RENDEZVOUS_DIR": "shared"}, "ok", "/shared"),
        ({"HOME": "home", "HVDTRAIN_RENDEZVOUS_DIR": "file/x"}, "failed", "/file/x cannot be written: Not a directory"),
    ],
)
def test_where_ranks_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], status: str, words: str
) -> None:
    (tmp_path / "file").touch()
    for name in ("HVDTRAIN_RUN_DIR", "HVDTRAIN_RENDEZVOUS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HVDTRAIN_TESTCLUSTER", "1")  # elsewhere what is in /tmp is a warning
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    found = outcome("meeting-folder", tmp_path / "studies")
    assert (found["status"], words in found["what"]) == (status, True), found
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HOME": "/home/ada"}, "studies"),
        ({"HOME": "/tmp"}, "/tmp/.cache"),
        ({"HVDTRAIN_RENDEZVOUS_DIR": "/tmp/x"}, "/tmp/x"),
    ],
)
def test_folders_of_one_machine_alone_are_no_place_to_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: str
) -> None:
    for name in ("HVDTRAIN_TESTCLUSTER", "HVDTRAIN_RUN_DIR", "HVDTRAIN_RENDEZVOUS_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = outcome("meeting-folder", Path("/tmp/studies" if place == "studies" else "/home/ada/studies"))
    assert found["status"] == "warning"
    assert place in found["what"] and "looks like a folder of this machine alone" in found["what"]


def test_a_wrong_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hvdtrain.toml").write_text('[site]\npartion = "x"\n')
    monkeypatch.chdir(tmp_path)
    found = outcome("profile", tmp_path)
    assert found["status"] == "failed"
    assert 'did you mean "partition"?' in found["what"]


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        ("", "skipped", "names no container"),
        ('kind = "charliecloud"\nimage = "/"', "failed", "ch-run is not on the PATH"),
        ('kind = "apptainer"\nimage = "/no/such.sif"', "failed", "there is no image /no/such.sif"),
        ('kind = "apptainer"\nimage = "docker://hub/h:1"', "ok", "apptainer and docker://hub/h:1 are here"),
        ('kind = "apptainer"', "skipped", "names no image"),
        ('kind = "pyxis"\nimage = "hub/h:1"', "failed", "does not list --container-image"),
        ('kind = "pyxis"\nimage = "hub/h:1"\n#--container-image', "ok", "pyxis is here"),
    ],
)
def test_what_starts_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, status: str, words: str
) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    (tmp_path / "srun").write_text(f"#!/bin/sh\necho '{lines}'\n")
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "hvdtrain.toml").write_text(f"[site.container]\n{lines}\n")
    monkeypatch.setenv("SLURM_JOB_ID", "1")  # elsewhere what is missing is a warning
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = outcome("container", tmp_path)
    assert (found["status"], words in found["what"]) == (status, True), found


def test_a_check_that_breaks_is_a_finding(tmp_path: Path) -> None:
    def broken(context: Context) -> check.Finding:
        raise RuntimeError("no luck")

    found = examine(check.Check("broken", "node", broken), Context(tmp_path))
    assert found["status"] == "failed"
    assert "RuntimeError: no luck" in found["what"]


def test_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--on-nodes", "0"]) == 2
    assert "--on-nodes 0: legal is a number of nodes from 1" in capsys.readouterr().err
