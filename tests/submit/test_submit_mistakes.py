"""Every mistake: a clear sentence on standard error, exit status 2, and nothing created."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
from submit_helpers import Submit, command, plain_environment

from hvdtrain import machine
from hvdtrain.submit import cli

MISTAKES = [
    ([], "--gpus is missing: say how many ranks to train with, such as --gpus 2,4"),
    (["--gpus", "0"], '"0" is not legal; legal: whole numbers from 1'),
    (["--gpus", "2,,4"], "without it: --gpus 2,4"),
    (["--gpus", "2,abc"], '"abc" is not legal'),
    (["--gpus", "-1"], '"-1" is not legal'),
    (["--gpus", ""], "there is an empty entry"),
    (["--gpus", "2,2"], "2 is there twice, which changes nothing"),
    (["--gpus", "-1,2"], 'a value that begins with "-" is written --option=value'),
    (["--gpus=-1,2"], '"-1" is not legal'),
    (["--gpus"], "--gpus: expected one argument"),
    (["2"], '"2" is not an option'),
    (["--gpu", "2"], 'there is no option --gpu; did you mean "--gpus"?'),
    (["--gpus", "2", "--batchsize=3"], 'did you mean "--batch-size"?'),
    (["--gpus", "2", "--width", "3"], "is given as --set width=VALUE"),
    (["--gpus", "2", "--job", "nosuch.py"], 'job file "nosuch.py" does not exist'),
    (["--gpus", "2", "--job", "digit"], 'did you mean "digits"?'),
    (["--gpus", "2", "--batch-size", "32,32"], "32 is there twice"),
    (["--gpus", "2", "--seeds", "0"], "--seeds"),
    (["--gpus", "2", "--seeds", "5,5"], "5 is there twice"),
    (["--gpus", "2", "--epochs", "0"], "--epochs 1"),
    (["--gpus", "2", "--epochs", "1,2"], "legal is one whole number from 1"),
    (["--gpus", "2", "--lr-rule", "quadratic"], "legal: adascale, auto, linear, none, sqrt"),
    (["--gpus", "1", "--lr-rule", "linear,sqrt"], "every rule is the same at 1 rank"),
    (["--gpus", "2", "--set", "widht=3"], 'did you mean "--width"?'),
    (["--gpus", "2", "--set", "width"], "legal is key=value"),
    (["--gpus", "2", "--set", "width=abc"], "takes a whole number"),
    (["--gpus", "2", "--set", "model=medium"], "legal is small, large"),
    (["--gpus", "2", "--set", "fast=1"], "is a switch without a value"),
    (["--gpus", "2", "--set", "batch-size=3"], "has an option of its own: --batch-size 3"),
    (["--gpus", "2", "--set", "seed=3"], "has an option of its own: --seeds 3,"),
    (["--gpus", "2", "--env", "novalue"], "legal is NAME=value"),
    (["--gpus", "2", "--study", "a/b"], "legal is the name of one folder"),
    (["--gpus", "2", "--out", ""], "legal is the folder"),
    (["--gpus", "2", "--cluster", "slurn"], 'did you mean "slurm"?'),
    (["--gpus", "2", "--cluster", "slurm", "--launcher", "mpirun"], "under SLURM ranks are started by srun"),
    (["--gpus", "2", "--launcher", "mpi"], "legal is auto, gloo, pmix, mpirun"),
    (["--gpus", "2", "--launcher", "pmix"], "only under srun"),
    (["--gpus", "2", "--stall-timeout", "soon"], "legal is a positive number of seconds"),
    (["--gpus", "2", "--epochs", "2", "--", "--epochs", "3"], "--epochs is given twice"),
    *[
        (["--gpus", "2", option, "1"], f"only a SLURM cluster obeys {option}")
        for option in (
            *("--partition", "--account", "--qos", "--time", "--mem", "--container", "--site", "--gpus-per-node"),
            *("--gpu-type", "--cpus-per-task", "--max-parallel"),
        )
    ],
]


@pytest.mark.parametrize("dry", [False, True], ids=["", "dry"])
@pytest.mark.parametrize(("arguments", "said"), MISTAKES, ids=[" ".join(given) for given, _ in MISTAKES])
def test_mistakes(
    room: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
    dry: bool,
) -> None:
    monkeypatch.chdir(room)
    job = [] if "--job" in arguments else ["--job", "toy.py"]
    before = sorted(os.listdir(room))
    assert cli.main([*job, *(["--dry-run"] if dry else []), *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert out == ""
    assert sorted(os.listdir(room)) == before


def test_from_the_shell(submit: Submit, room: Path) -> None:
    done = submit("--gpus", "2,,4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('error: --gpus "2,,4": ')
    assert not (room / "runs").exists()


def test_a_broken_job_file(submit: Submit, room: Path) -> None:
    (room / "toy.py").write_text("def f(:\n")
    done = submit("--gpus", "2")
    assert done.returncode == 2
    assert "is not valid Python" in done.stderr
    assert "line 1" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("job = [", "is not valid TOML"),
        ("jobs = 'x'", 'there is no setting "jobs"; legal are job, gpus; did you mean "job"?'),
        ("job = 3", "legal is job ="),
        ("gpus = [1.5]", "legal is job ="),
        ("gpus = true", "legal is job ="),
        ("gpus = [2, 2]", "2 is there twice"),
        ("gpus = 0", '"0" is not legal'),
        ("job = 'nosuch.py'\ngpus = 1", 'job file "nosuch.py" does not exist'),
    ],
)
def test_mistakes_in_the_settings_file(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    monkeypatch.chdir(room)
    (room / "hvdtrain.toml").write_text(content)
    assert cli.main(["--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_the_settings_file_names_job_and_gpus(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(room)
    (room / "hvdtrain.toml").write_text("job = 'toy.py'\ngpus = [2, 4]\n")
    assert cli.main(["--dry-run"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("####")] == [
        "#### n2: runs/toy/n2/script.sh",
        "#### n4: runs/toy/n4/script.sh",
    ]
    assert cli.main(["--dry-run", "--gpus", "8"]) == 0
    assert "#### n8:" in capsys.readouterr().out


@pytest.mark.parametrize("out", ["/proc/nothing", "toy.py/runs"])
def test_an_out_that_cannot_be_written(submit: Submit, room: Path, out: str) -> None:
    before = sorted(os.listdir(room))
    done = submit("--gpus", "1", "--out", out)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write ")
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(room)) == before


def test_a_full_disk_leaves_nothing_behind(room: Path) -> None:
    """A limit on file sizes makes every longer write fail, as a full disk does."""
    before = sorted(os.listdir(room))
    done = subprocess.run(
        command("--job", "toy.py", "--gpus", "1", "--seeds", "3"),
        cwd=room,
        env=plain_environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write ")
    assert sorted(os.listdir(room)) == before


def test_a_full_disk_leaves_an_older_study_as_it_was(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1", "--seeds", "1").returncode == 0
    study = room / "runs" / "toy"
    before = {path: path.read_bytes() for path in study.rglob("*") if path.is_file() and path.name != ".lock"}
    done = subprocess.run(
        command("--job", "toy.py", "--gpus", "1", "--seeds", "3"),
        cwd=room,
        env=plain_environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)),
    )
    assert done.returncode == 2
    assert {path: path.read_bytes() for path in study.rglob("*") if path.is_file() and path.name != ".lock"} == before


def test_a_folder_that_is_not_a_study(submit: Submit, room: Path) -> None:
    (room / "runs" / "toy").mkdir(parents=True)
    (room / "runs" / "toy" / "thesis.tex").write_text("years of work")
    done = submit("--gpus", "1")
    assert done.returncode == 2
    assert "is not a study" in done.stderr
    assert os.listdir(room / "runs" / "toy") == ["thesis.tex"]


def test_a_damaged_record(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1").returncode == 0
    epochs = room / "runs" / "toy" / "n1" / "epochs.jsonl"
    kept = epochs.read_text()
    epochs.write_text("nonsense\n")
    done = submit("--gpus", "1,2")  # n1 has its result; whatever became of its epochs keeps n2 from nothing
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    epochs.write_text(kept)
    (room / "runs" / "toy" / "n1" / "result.json").write_text("{")
    done = submit("--gpus", "1")
    assert done.returncode == 2
    assert "is damaged" in done.stderr


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(machine.UserError) as caught:
        machine.check_ranks([2, 4, 8], gpus=4, cores=64)
    assert "8 ranks need 8 GPUs and this machine shows 4; legal are 1 to 4; without the rest: --gpus 2,4" in str(
        caught.value
    )
    assert machine.check_ranks([2, 4], gpus=4, cores=1) == []


def test_more_ranks_than_cores_are_allowed_and_said() -> None:
    assert machine.check_ranks([1, 4], gpus=0, cores=2) == [
        "4 ranks share 2 cores: efficiency beyond 2 ranks measures the machine, not the training"
    ]
    assert machine.check_ranks([1, 2], gpus=0, cores=2) == []


def fake_smi(folder: Path, body: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_visible_gpus(tmp_path: Path) -> None:
    environ = fake_smi(tmp_path / "bin", "printf 'GPU 0: Tesla T4 (UUID: GPU-a)\\nGPU 1: Tesla T4 (UUID: GPU-b)\\n'")
    assert machine.visible_gpus(environ) == ["0", "1"]
    assert machine.visible_gpus({**environ, "CUDA_VISIBLE_DEVICES": "1"}) == ["1"]
    assert machine.visible_gpus({**environ, "CUDA_VISIBLE_DEVICES": ""}) == []
    assert machine.visible_gpus({**environ, "CUDA_VISIBLE_DEVICES": "-1"}) == []
    assert machine.visible_gpus({"PATH": "/nowhere"}) == []
    assert machine.visible_gpus(fake_smi(tmp_path / "broken", "echo no driver; exit 9")) == []


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SMI_SECONDS", 0.3)
    with pytest.raises(machine.UserError, match="did not answer"):
        machine.visible_gpus(fake_smi(tmp_path / "bin", "exec sleep 60"))


def test_the_command_line_asks_the_machine(submit: Submit, tmp_path: Path, room: Path) -> None:
    environ = fake_smi(tmp_path / "bin", "echo 'GPU 0: Tesla T4 (UUID: GPU-a)'")
    done = submit("--gpus", "1,2", CUDA_VISIBLE_DEVICES="0", **environ)
    assert done.returncode == 2
    assert "2 ranks need 2 GPUs and this machine shows 1" in done.stderr
    assert not (room / "runs").exists()


def test_mpirun_that_is_not_there(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(room)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert cli.main(["--job", "toy.py", "--gpus", "1", "--launcher", "mpirun"]) == 2
    assert "there is no mpirun" in capfd.readouterr().err
    assert not (room / "runs").exists()
    assert machine.find_mpirun() is None
    (tmp_path / "mpirun").touch()
    assert machine.find_mpirun() == str(tmp_path / "mpirun")
