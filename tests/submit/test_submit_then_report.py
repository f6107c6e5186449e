"""The job that writes the report after the cells, and what --dry-run says of it and of the hours that cells may take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from slurm_stand_in import SUBMIT, Slurm, ended

from hvdtrain.submit import batch_script, cli, sbatch, submissions
from hvdtrain.submit.queue import Job


@pytest.mark.parametrize("taken", [True, False])
def test_ctrl_c_while_the_report_is_submitted(slurm: Slurm, monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    def interrupted(script: str, name: str, words: Sequence[str]) -> str:
        if slurm.submitted and not taken:
            raise KeyboardInterrupt
        number = slurm.sbatch(script, batch_script.value(script, "job-name") or "", words)
        if len(slurm.submitted) == 2:
            raise KeyboardInterrupt
        return number

    monkeypatch.setattr(sbatch, "_through_submitit", interrupted)
    slurm.jobs["3"] = Job("3", "PENDING", "report-toy")  # of a study of the same name elsewhere
    assert cli.main([*SUBMIT, "--gpus", "2", "--then-report"]) == 1
    assert sorted(slurm.cancelled) == (["7", "8"] if taken else ["7"])
    assert not Path("runs").exists()


def test_ctrl_c_while_a_report_is_submitted_leaves_an_earlier_one(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(script: str, name: str, words: Sequence[str]) -> str:
        number = slurm.sbatch(script, name, words)
        if number == "10":
            raise KeyboardInterrupt
        return number

    monkeypatch.setattr(sbatch, "_through_submitit", interrupted)
    assert cli.main([*SUBMIT, "--gpus", "2", "--then-report"]) == 0
    assert cli.main([*SUBMIT, "--gpus", "4", "--then-report"]) == 1
    assert sorted(slurm.jobs) == ["7", "8"]


@pytest.mark.parametrize(
    ("gpus", "dependency"),
    [("2", ["--dependency=afterany:7"]), ("2,4", ["--dependency=afterany:8:7"])],
)
def test_a_report_waits_for_what_is_in_the_queue_already(slurm: Slurm, gpus: str, dependency: list[str]) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.state("7", "RUNNING")
    assert cli.main([*SUBMIT, "--gpus", gpus, "--then-report"]) == 0
    assert slurm.words[-1] == dependency
    assert slurm.submitted[-1].startswith("report-toy.")


def test_a_report_on_an_array_waits_for_it_once(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2", "--seeds", "3"]) == 0
    assert cli.main([*SUBMIT, "--gpus", "2", "--seeds", "3", "--then-report"]) == 0
    assert slurm.words[-1] == ["--dependency=afterany:7"]


def test_a_report_on_cells_that_have_ended_waits_for_nothing(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    ended("completed")
    slurm.jobs.clear()
    assert cli.main([*SUBMIT, "--gpus", "2", "--then-report"]) == 0
    assert slurm.words[-1] == []
    assert "submitted job 8: the report\n" in capsys.readouterr().out


def test_ctrl_c_while_a_second_report_on_the_same_jobs_is_submitted_leaves_the_first(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(script: str, name: str, words: Sequence[str]) -> str:
        number = slurm.sbatch(script, name, words)
        if number == "9":
            raise KeyboardInterrupt
        return number

    moments = itertools.count(10)
    monkeypatch.setattr(submissions, "now", lambda: f"2026-01-01T10:00:{next(moments)}")
    monkeypatch.setattr(sbatch, "_through_submitit", interrupted)
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    assert cli.main([*SUBMIT, "--gpus", "2", "--then-report"]) == 0
    assert cli.main([*SUBMIT, "--gpus", "2", "--then-report"]) == 1
    assert sorted(slurm.jobs) == ["7", "8"]


def test_a_dry_run_prints_the_script_of_the_report(slurm: Slurm, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2", "--dry-run"]) == 0
    assert "-m analysis report" not in capfd.readouterr().out
    assert cli.main([*SUBMIT, "--gpus", "2", "--then-report", "--dry-run"]) == 0
    cell, report = capfd.readouterr().out.split("#### the report, when all cells have ended\n")
    assert cell.startswith("#### n2: ")
    assert report.endswith(f"-m analysis report {Path('runs/toy').resolve()}\n")
    assert not Path("runs").exists()


def test_a_report_that_slurm_refuses_leaves_no_file(slurm: Slurm) -> None:
    slurm.accepts = 1
    assert cli.main([*SUBMIT, "--gpus", "2", "--then-report"]) == 2
    assert slurm.cancelled == ["7"]
    assert not Path("runs").exists()


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("", "2 cells of at most 60 in each start could use 6 GPU-hours"),
        ('directives = ["--time=10:00:00"]', "2 cells of at most 10:00:00 in each start could use 60 GPU-hours"),
        ('directives = ["--time=UNLIMITED"]', '"UNLIMITED" is not a time'),
    ],
)
def test_the_hours_are_those_of_the_scripts(
    slurm: Slurm, capfd: pytest.CaptureFixture[str], site: str, said: str, dry: list[str]
) -> None:
    Path("hvdtrain.toml").write_text(f"[site]\n{site}\n")
    assert cli.main([*SUBMIT, "--gpus", "2,4", "--max-gpu-hours", "5", "--time", "60", *dry]) == 2
    told = capfd.readouterr()
    assert said in told.err
    assert told.out == ""


def test_a_dry_run_counts_no_hours_of_cells_that_have_completed(slurm: Slurm) -> None:
    words = [*SUBMIT, "--max-gpu-hours", "2", "--time", "60", "--gpus"]
    assert cli.main([*words, "2"]) == 0
    ended("completed")
    assert cli.main([*words, "2,1", "--dry-run"]) == 0
    assert cli.main([*words, "2,4", "--dry-run"]) == 2
