"""Which jobs are a study's own: under other names, among numbers that SLURM gives again, and where the study was copied."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_stand_in import SUBMIT, Slurm, ended, now

from hvdtrain import record
from hvdtrain.submit import again, cli, control, options, queue, request, status, submissions
from hvdtrain.submit.queue import Job
from hvdtrain.submit.view import look

# --- numbers that SLURM has given to other jobs since -------------------------------------------------------------


def test_a_number_that_is_another_job_s_now(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    ended("failed")
    slurm.jobs["7"] = Job("7", "RUNNING", "other.zz")
    assert status.main(["toy"]) == 0
    assert control.cancel(["toy"]) == 0
    assert slurm.cancelled == []
    told = capsys.readouterr().out
    assert re.search(r"^n2 +failed +7 ", told, re.MULTILINE)
    assert "nothing to cancel" in told


def test_a_job_is_ours_under_the_name_that_it_gives_itself(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "hvdtrain.toml").write_text('[site]\ndirectives = ["--job-name=night"]\n')
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    assert slurm.submitted == ["night"]
    script = Path("runs/toy/n2/script.sh").read_text()
    own = shlex.split(script)[shlex.split(script).index("--job-name") + 1]
    assert own.startswith("n2.")
    for name, live in (("night", True), (own, True), ("n2.xx", False)):
        slurm.jobs["7"] = Job("7", "RUNNING", name)
        (seen,) = look(Path("runs/toy"), record.read_study(Path("runs/toy"))).cells
        assert seen.live is live, name


@pytest.mark.parametrize("site", ["", 'skip = ["job-name"]', 'directives = ["--job-name night"]'])
def test_a_job_under_another_name_is_ours_by_when_it_was_submitted(slurm: Slurm, site: str) -> None:
    Path("hvdtrain.toml").write_text(f"[site]\n{site}\n")
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    if not site:  # renamed by its user, an administrator, or a plugin of the site's
        slurm.jobs["7"] = replace(slurm.jobs["7"], name="urgent")
    slurm.state("7", "RUNNING")
    ended("failed")
    assert again.retry(["toy"]) == 0
    assert len(slurm.submitted) == 1
    assert control.cancel(["toy"]) == 0
    assert slurm.cancelled == ["7"]


def test_how_a_job_under_another_name_ended_is_asked_for_without_accounting(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.jobs["7"] = replace(slurm.jobs["7"], name="very urgent", state="FAILED")
    monkeypatch.setattr(queue, "remembered", lambda: {"7": Job("7", "FAILED", "very", exit_code="127:0")})
    (seen,) = look(Path("runs/toy"), record.read_study(Path("runs/toy"))).cells
    assert seen.status == "failed"
    assert "it never started training (exit code 127:0)" in seen.why


def test_a_job_under_another_name_of_another_day_is_not_ours(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.jobs["7"] = Job("7", "RUNNING", "urgent", submitted=now(days=1))
    assert control.cancel(["toy"]) == 0
    assert slurm.cancelled == []


def test_a_record_without_the_name_that_a_job_gives_itself(slurm: Slurm) -> None:
    Path("hvdtrain.toml").write_text('[site]\ndirectives = ["--job-name=night"]\n')
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    (path,) = Path("runs/toy/submissions").glob("*/submission.json")
    facts = record.read_json(path) or {}
    own = next(name for name in facts["names"] if name != "night")
    del facts["study"]
    record.write_json(path, {**facts, "names": ["night"]})  # as it was written once
    slurm.jobs["7"] = Job("7", "RUNNING", own, submitted=now(days=1))  # SLURM dates it anew when it starts it again
    assert control.cancel(["toy"]) == 0
    assert slurm.cancelled == ["7"]


# --- a study that is somewhere else now ---------------------------------------------------------------------------


def test_a_copied_study_is_not_trained_in_the_place_of_the_first(
    slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    ended("failed")
    slurm.jobs.clear()
    shutil.copytree("runs/toy", "runs/copy")
    assert again.retry(["copy"]) == 2
    assert len(slurm.submitted) == 1
    told = capsys.readouterr().err
    assert f"the script of n2 trains in {Path('runs/toy/n2').resolve()}" in told
    assert "--study copy --retry-failed" in told
    Path("link").symlink_to("runs/toy")
    assert again.retry(["link"]) == 0, "another name of the same place"
    slurm.jobs.clear()
    assert cli.main([*SUBMIT, "--gpus", "2", "--study", "copy", "--retry-failed"]) == 0
    assert again.retry(["copy"]) == 0


def test_the_jobs_of_a_study_are_not_those_of_its_copy(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    shutil.copytree("runs/toy", "runs/copy")
    assert control.cancel(["copy"]) == 0
    assert slurm.cancelled == []
    assert cli.main([*SUBMIT, "--gpus", "2", "--study", "copy"]) == 0
    assert sorted(slurm.jobs) == ["7", "8"]
    Path("runs/toy").rename("runs/first")
    assert control.cancel(["first"]) == 0
    assert slurm.cancelled == ["7"]


def test_a_renamed_study_keeps_its_jobs_when_another_takes_its_place(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    Path("runs/toy").rename("runs/first")
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    assert control.cancel(["first"]) == 0
    assert slurm.cancelled == ["7"]
    assert control.cancel(["toy"]) == 0
    assert slurm.cancelled == ["7", "8"]


def test_one_folder_under_two_mounts_is_one_study(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    asked = request.read(options.parse(["--gpus", "2", "--study", "toy"]), "slurm", Path.cwd())
    shutil.copytree("runs/toy", "mount/toy")  # only root can mount
    monkeypatch.setattr("os.path.samefile", lambda one, other: True)
    assert [each.job for each in submissions.read(Path("mount/toy"))] == ["7"]
    assert asked.within(Path("mount/toy")) is asked
    record.write_json(Path("mount/toy/n2/result.json"), {"status": "failed", "reason": "why"})
    slurm.jobs.clear()
    assert again.retry(["mount/toy"]) == 0
    assert len(slurm.submitted) == 2


def test_a_study_whose_first_place_cannot_be_looked_at_keeps_its_jobs(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    (path,) = Path("runs/toy/submissions").glob("*/submission.json")
    # Root may enter every folder; a name that is too long is as good as one that may not be entered.
    record.write_json(path, {**(record.read_json(path) or {}), "study": f"/{'x' * 300}"})
    assert control.cancel(["toy"]) == 0
    assert slurm.cancelled == ["7"]


@pytest.mark.parametrize("begun", [False, True])
def test_what_a_copy_has_not_submitted_is_resumed_from_its_own_place(
    slurm: Slurm, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    slurm.state("7", "RUNNING")
    if begun:
        record.begin(Path("runs/toy/n2"), {})
    shutil.copytree("runs/toy", "runs/copy")
    (seen,) = look(Path("runs/copy"), record.read_study(Path("runs/copy"))).cells
    assert seen.status == "not submitted"
    assert again.resume(["copy"]) == 2
    assert "--study copy --retry-failed" in capsys.readouterr().err
    assert cli.main([*SUBMIT, "--gpus", "2", "--study", "copy"]) == 0
    assert sorted(slurm.jobs) == ["7", "8"]


def test_a_script_that_is_handed_over_by_hand_runs(slurm: Slurm) -> None:
    assert cli.main([*SUBMIT, "--gpus", "2"]) == 0
    shutil.rmtree("runs/toy/submissions")
    record.begin(Path("runs/toy/n2"), {})
    (seen,) = look(Path("runs/toy"), record.read_study(Path("runs/toy"))).cells
    assert seen.status == "running"
