"""Which jobs are a study's own: under other names, among numbers that SLURM gives again, and where the study was copied."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from slurm_stand_in import SUBMIT, Slurm, ended

from hvdtrain import record
from hvdtrain.submit import again, cli, control, status
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
