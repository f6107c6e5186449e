"""One GPU type that the user, the profile and SLURM call by several names is one type in a study's records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from slurm_stand_in import SUBMIT, Slurm, ended

from hvdtrain import record
from hvdtrain.submit import cli


@pytest.fixture
def a100(slurm: Slurm) -> Slurm:
    """A site that has its own long name for the type."""
    Path("hvdtrain.toml").write_text('[site.gpus.a100]\nslurm = "nvidia_a100_80gb"\nper_node = 4\nnodes = 2\n')
    return slurm


@pytest.mark.parametrize("spelling", ["a100", "A100", "nvidia_a100_80gb", "NVIDIA"])
def test_a_gpu_type_has_the_name_of_the_profile(a100: Slurm, capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2", "--gpu-type", spelling]) == 0
    (path,) = Path("runs/toy").glob("*/cell.json")
    assert (path.parent.name, (record.read_json(path) or {})["gpu_type"]) == ("n2-a100", "a100")
    assert "--gpus-per-node=nvidia_a100_80gb:2\n" in path.with_name("script.sh").read_text()
    assert cli.main([*SUBMIT, "--gpus", "2", "--gpu-type", "a100"]) == 0
    assert "0 to run, 1 in the queue already" in capsys.readouterr().out


def test_two_names_of_one_gpu_type_are_a_mistake(a100: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2", "--gpu-type", "A100,nvidia_a100_80gb"]) == 2
    assert "--gpu-type A100,nvidia_a100_80gb: both are the type a100 here; give it once" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_cells_that_have_another_name_of_their_gpu_type_are_recognised(
    a100: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2", "--gpu-type", "a100"]) == 0
    old = Path("runs/toy/n2-A100")
    Path("runs/toy/n2-a100").rename(old)  # as it was recorded once
    shutil.rmtree("runs/toy/submissions")
    facts = record.read_json(old / "cell.json") or {}
    record.write_json(old / "cell.json", {**facts, "name": "n2-A100", "gpu_type": "A100"})
    ended("completed", "n2-A100")
    capsys.readouterr()
    assert cli.main([*SUBMIT, "--gpus", "2", "--gpu-type", "a100"]) == 0
    told = capsys.readouterr().out
    assert "n2-a100 is the same configuration as n2-A100, which the study has already" in told
    assert "0 to run, 1 finished already" in told
    ended("failed", "n2-A100")
    words = ["--gpus", "2", "--gpu-type", "a100", "--retry-failed", "--time", "60"]
    assert cli.main([*SUBMIT, *words, "--max-gpu-hours", "2", "--dry-run"]) == 0
    assert cli.main([*SUBMIT, *words, "--max-gpu-hours", "1", "--dry-run"]) == 2


def test_what_is_added_to_a_study_has_its_gpu_type_in_one_name_with_what_is_there(a100: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2", "--gpu-type", "a100"]) == 0
    path = Path("runs/toy/n2-a100/cell.json")
    before = record.read_json(path) or {}
    record.write_json(path, {**before, "gpu_type": "A100", "hash": "of that name"})
    ended("completed", "n2-a100")
    old = path.read_bytes()
    a100.accepts = len(a100.submitted)
    assert cli.main([*SUBMIT, "--gpus", "4", "--gpu-type", "a100"]) == 2
    assert path.read_bytes() == old
    a100.accepts = 100
    assert cli.main([*SUBMIT, "--gpus", "4", "--gpu-type", "a100"]) == 0
    assert record.read_json(path) == before
