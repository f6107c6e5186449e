"""A wheel installed elsewhere brings everything: commands, jobs, sbatch scripts, the tested versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked into a folder of its own as pip does it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder / "site"),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    return folder / "site"


def run(elsewhere: Path, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(elsewhere)}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_it_is_the_installed_package_that_runs(elsewhere: Path, tmp_path: Path) -> None:
    ended = run(elsewhere, tmp_path, "-c", "import hvdtrain, analysis; print(hvdtrain.__file__, analysis.__file__)")
    assert ended.stdout.count(str(elsewhere)) == 2


def test_jobs_and_scripts_come_with_it(elsewhere: Path, tmp_path: Path) -> None:
    shipped = elsewhere / "hvdtrain" / "shipped"
    assert {path.name for path in (shipped / "jobs").glob("*.py")} == {
        path.name for path in (ROOT / "jobs").glob("*.py")
    }
    assert {path.name for path in (shipped / "slurm").iterdir()} == {path.name for path in (ROOT / "slurm").iterdir()}
    assert (shipped / "constraints.txt").read_text() == (ROOT / "constraints.txt").read_text()
    ended = run(elsewhere, tmp_path, "-m", "hvdtrain.submit", "--gpus", "2", "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert str(shipped / "jobs" / "digits.py") in ended.stdout


@pytest.mark.ranks
def test_a_study_runs_from_it_and_is_reported(elsewhere: Path, tmp_path: Path) -> None:
    ended = run(elsewhere, tmp_path, "-m", "hvdtrain.submit", "--gpus", "1,2", "--epochs", "2", "--then-report")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "runs" / "digits" / "report" / "report.png").stat().st_size > 10_000
    assert (tmp_path / "runs" / "digits" / "report" / "report.html").stat().st_size > 100_000


def test_the_page_and_the_published_tables_come_with_it(elsewhere: Path, tmp_path: Path) -> None:
    program = "import analysis.references as r; print(r.path_of('caltech256_lab'))"
    lab = run(elsewhere, tmp_path, "-c", program).stdout.strip()
    assert lab.startswith(str(elsewhere))
    ended = run(elsewhere, tmp_path, "-m", "analysis", "report", lab, "--out", "out")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
