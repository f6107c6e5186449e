"""Submission, retry and cancel where SLURM is silent, refuses, or goes away in the middle."""

from __future__ import annotations

import errno
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from slurm_stand_in import SUBMIT, Slurm, ended

from hvdtrain import record
from hvdtrain.submit import again, batch_script, cli, control, sbatch, submissions
from hvdtrain.submit.view import look

# --- SLURM is silent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "result"), [("retry", None), ("resume", "preempted"), ("submit", "preempted"), ("submit", None)]
)
def test_nothing_is_submitted_while_nobody_says_what_runs(
    slurm: Slurm, capsys: pytest.CaptureFixture[str], by: str, result: str | None
) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    if result is not None:
        ended(result)
    slurm.silent = {"squeue"}
    call = {"retry": again.retry, "resume": again.resume, "submit": cli.main}[by]
    words = [*SUBMIT, "--gpus", "2", "--retry-failed"] if by == "submit" else ["toy"]
    with pytest.MonkeyPatch.context() as patch:
        if by == "submit":  # which first asks whether there is a cluster
            patch.setattr("hvdtrain.submit.slurm.Slurm.look", lambda self, request: [])
        assert call(words) == 2
    assert len(slurm.submitted) == 1
    assert "Unable to contact slurm controller" in capsys.readouterr().err


def test_cancel_does_not_say_that_nothing_runs_while_nobody_knows(
    slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.silent = {"squeue"}
    assert control.cancel(["toy"]) == 2
    told = capsys.readouterr()
    assert "nothing to cancel" not in told.out
    assert "give the command again when SLURM answers" in told.err


def test_a_job_in_a_state_that_is_not_known_may_run(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.state("7", "SOMETHING_NEW")
    assert again.retry(["toy"]) == 0
    assert cli.main([*SUBMIT, "--gpus", "2", "--retry-failed"]) == 0
    told = capsys.readouterr().out
    assert "nothing to retry: no cell failed" in told
    assert "0 to run, 1 in the queue already" in told
    assert len(slurm.submitted) == 1
    ended("preempted")
    assert again.resume(["toy"]) == 0
    assert len(slurm.submitted) == 1
    assert control.cancel(["toy"]) == 0
    assert slurm.cancelled == ["7"]


def test_a_job_that_slurm_has_forgotten_is_tried_again(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.jobs.clear()
    assert again.retry(["toy"]) == 0
    assert len(slurm.submitted) == 2


# --- what retry and cancel are given, and what SLURM makes of it --------------------------------------------------


def test_what_could_not_be_cancelled_is_not_noted_as_cancelled(
    slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.silent = {"scancel"}
    assert control.cancel(["toy"]) == 2
    assert "Unable to contact slurm controller" in capsys.readouterr().err
    assert submissions.read(Path("runs/toy"))[0].cancelled == ()
    slurm.silent = set()
    assert control.cancel(["toy"]) == 0
    assert submissions.read(Path("runs/toy"))[0].cancelled == ("n2",)


@pytest.mark.parametrize("before", ["failed", "timeout", "preempted"])
def test_a_cell_that_was_cancelled_stays_so_when_slurm_has_forgotten_its_job(slurm: Slurm, before: str) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    ended(before, requeued=True)  # it waits to be started again
    assert control.cancel(["toy"]) == 0
    slurm.jobs.clear()
    (seen,) = look(Path("runs/toy"), record.read_study(Path("runs/toy"))).cells
    assert (seen.status, seen.why) == ("cancelled", "by hvdtrain cancel")


def test_guard_a_cell_that_completed_while_it_was_cancelled_has_completed(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    assert control.cancel(["toy"]) == 0
    ended("completed")
    slurm.jobs.clear()
    (seen,) = look(Path("runs/toy"), record.read_study(Path("runs/toy"))).cells
    assert seen.status == "completed"


@pytest.mark.parametrize("given", ["0", "-1", "two"])
def test_no_cell_at_a_time_is_refused(slurm: Slurm, capsys: pytest.CaptureFixture[str], given: str) -> None:
    assert cli.main([*SUBMIT, "--gpus", "1,2"]) == 0
    ended("failed")
    slurm.jobs.clear()
    assert again.retry(["toy", "--max-parallel", given]) == 2
    assert f'--max-parallel "{given}": legal is one whole number from 1' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "now", "given"),
    [
        ('memory = "cpu"\nmem = "4G"', None, "--mem-per-cpu=8G"),
        ('memory = "gpu"\nmem = "4G"', 'memory = "cpu"', "--mem-per-gpu=8G"),
        ('directives = ["--mem-per-cpu 4G"]', None, "--mem-per-cpu=8G"),
        ('memory = "cpu"', None, "--mem-per-cpu=8G"),
        ('mem = "4G"', 'memory = "cpu"', "--mem=8G"),
        ("", None, "--mem=8G"),
    ],
)
def test_memory_is_given_anew_as_the_script_asks_for_it(slurm: Slurm, before: str, now: str | None, given: str) -> None:
    Path("hvdtrain.toml").write_text(f"[site]\n{before}\n")
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    ended("failed")
    slurm.jobs.clear()
    Path("hvdtrain.toml").write_text(f"[site]\n{before if now is None else now}\n")
    assert again.retry(["toy", "--mem", "8G", "--time", "60"]) == 0
    assert sorted(slurm.words[-1]) == [given, "--time=60"]


def test_no_memory_is_asked_for_where_the_site_never_does(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    Path("hvdtrain.toml").write_text('[site]\nmemory = "none"\n')
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    ended("failed")
    slurm.jobs.clear()
    assert again.retry(["toy", "--mem", "8G"]) == 2
    assert '--mem 8G: nobody asks for memory here (memory = "none" in the site profile)' in capsys.readouterr().err
    assert len(slurm.submitted) == 1


@pytest.mark.parametrize("line", ["# don't", "# --run-dir /elsewhere --job-name", "echo don't", "echo --job-name"])
def test_a_script_that_was_changed_by_hand_is_submitted_again(slurm: Slurm, line: str) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    ended("failed")
    slurm.jobs.clear()
    script = Path("runs/toy/n2/script.sh").resolve()
    assert batch_script.argument(f"{script.read_text()}{line}\n", "--run-dir") == str(script.parent)
    for text in (f"{script.read_text()}{line}\n", f"#!/bin/bash\npython -m hvdtrain.launch.batch {line}\n"):
        script.write_text(text)
        assert again.retry(["toy"]) == 0
        slurm.jobs.clear()
        ended("failed")
    assert len(slurm.submitted) == 3


def test_cells_of_this_machine_are_not_handed_to_slurm(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--gpus", "1,2,4"]) == 0
    slurm.jobs.clear()
    for cell, how in {"n1": "failed", "n2": "failed", "n4": "preempted"}.items():
        ended(how, cell)
    for name in ("n1", "n4"):  # beside SLURM's cells a study may have some that ran here
        path = Path("runs/toy") / name / "cell.json"
        record.write_json(path, {**(record.read_json(path) or {}), "cluster": "local"})
    capsys.readouterr()
    assert again.retry(["toy"]) == 0
    assert [name.partition(".")[0] for name in slurm.submitted[3:]] == ["n2"]
    note = "n1, n4 ran without SLURM: the submit command goes on with them, --retry-failed if they failed"
    assert note in capsys.readouterr().err
    slurm.jobs.clear()
    ended("failed")
    assert again.retry(["toy", "n2"]) == 0
    assert "note" not in capsys.readouterr().err
    assert again.resume(["toy"]) == 0
    told = capsys.readouterr()
    assert told.out == "nothing to resume: no cell on SLURM was ended early\n"
    assert note in told.err
    for words in (["toy", "n1"], ["toy", "n1", "n2"]):
        assert again.retry(words) == 2
        assert "error: n1 ran without SLURM: the submit command" in capsys.readouterr().err
    assert len(slurm.submitted) == 5


# --- a submission that ends in the middle -------------------------------------------------------------------------


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_no_job_and_no_file_stays_of_a_submission_that_is_not_written_down(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, written: int, error: BaseException
) -> None:
    """The first time it is written before SLURM is asked, the second time with the job's number."""
    write, calls = submissions._write, itertools.count(1)

    def fails(study: Path, submission: submissions.Submission) -> None:
        if next(calls) == written:
            raise error
        write(study, submission)

    monkeypatch.setattr(submissions, "_write", fails)
    assert cli.main([*SUBMIT, "--gpus", "2"]) == (2 if isinstance(error, OSError) else 1)
    assert slurm.cancelled == ["7"] * (written - 1)
    assert not Path("runs").exists()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_job_that_can_be_neither_noted_nor_cancelled_keeps_its_cell(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    def fails(*given: object, **changes: object) -> None:
        raise error

    slurm.silent = {"scancel"}
    with monkeypatch.context() as patch:
        patch.setattr(submissions, "update", fails)
        assert cli.main([*SUBMIT, "--gpus", "2"]) == 2
    told = capsys.readouterr().err
    assert str(error) in told
    assert "`hvdtrain cancel` ends it" in told
    slurm.silent = set()
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    assert "0 to run, 1 in the queue already" in capsys.readouterr().out
    assert again.retry(["toy"]) == 0
    assert len(slurm.submitted) == 1


def test_ctrl_c_while_an_unanswered_job_is_looked_for(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(script: str, name: str, words: Sequence[str]) -> str:
        slurm.sbatch(script, name, words)
        raise sbatch.Refused("sbatch timed out")

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sbatch, "_through_submitit", unanswered)
    monkeypatch.setattr(sbatch, "_look_for", interrupted)
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 1
    assert slurm.cancelled == ["7"]
    assert not Path("runs").exists()


def test_a_folder_that_an_interrupted_submit_has_left_is_filled(slurm: Slurm) -> None:
    Path("runs/toy/submissions/0001-n2.ab").mkdir(parents=True)
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0


def test_what_slurm_took_stays_when_it_cannot_be_cancelled(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.accepts, slurm.silent = 1, {"scancel"}
    assert cli.main([*SUBMIT, "--gpus", "1,2"]) == 2
    told = capsys.readouterr().err
    assert "no more today" in told
    assert "job 7 was accepted" in told
    assert Path("runs/toy/study.json").exists()
    assert Path("runs/toy/n1/cell.json").exists()
    slurm.accepts, slurm.silent = 100, set()
    capsys.readouterr()
    assert cli.main([*SUBMIT, "--gpus", "1,2"]) == 0
    assert "1 to run, 1 in the queue already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gpus", "hours", "advice"),
    [
        ("8,16", "12", "could use 24 GPU-hours; it fits with --time 30 (minutes), or with fewer cells"),
        ("120", "1", "could use 120 GPU-hours; it fits with fewer GPUs or cells"),
        ("120", "2", "could use 120 GPU-hours; it fits with --time 1 (minutes), or with fewer cells"),
    ],
)
def test_what_would_fit_is_not_refused_in_its_turn(
    slurm: Slurm, capsys: pytest.CaptureFixture[str], gpus: str, hours: str, advice: str
) -> None:
    words = [*SUBMIT, "--gpus", gpus, "--max-gpu-hours", hours, "--time"]
    assert cli.main([*words, "60"]) == 2
    told = capsys.readouterr().err
    assert advice in told
    if found := re.search(r"--time (\d+) ", told):
        assert cli.main([*words, found[1]]) == 0


def test_records_of_a_training_by_hand_outlast_a_submission_that_is_refused(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    epochs = Path("runs/toy/n4/epochs.jsonl")
    epochs.parent.mkdir()
    epochs.write_text("{}\n")
    slurm.accepts = len(slurm.submitted)
    assert cli.main([*SUBMIT, "--gpus", "4"]) == 2
    assert epochs.read_text() == "{}\n"
    assert not [epochs.parent / name for name in ("cell.json", "script.sh") if (epochs.parent / name).exists()]
