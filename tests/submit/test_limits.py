"""What the site profile allows at most: refused before anything is written or asked of SLURM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hvdtrain.errors import UserError
from hvdtrain.site.files import Layer, combine
from hvdtrain.site.profile import Limits
from hvdtrain.submit import cli, limits, queue
from hvdtrain.submit.queue import Job


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.mark.parametrize(
    ("profile", "words", "message"),
    [
        ("", ["--time", "2:00:01"], "--time asks for 2:00:01, and one cell may have 2:00:00"),
        ('time = "1-00"\n', [], "hvdtrain.toml here: time asks for 1-00, and one cell may have 2:00:00"),
        ("", ["--time", "1-0", "--dry-run"], "(limits.time of the site profile); nearest: --time 2:00:00"),
    ],
)
def test_more_time_than_a_cell_may_have(
    room: Path, profile: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (room / "hvdtrain.toml").write_text(f'[site]\n{profile}[site.limits]\ntime = "2:00:00"\n')
    assert cli.main(["--cluster", "slurm", "--gpus", "2", *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in room.iterdir()] == ["hvdtrain.toml"]


@pytest.mark.parametrize("asked", ["120", "2:00:00", "0:30", None])
def test_as_much_as_allowed_is_allowed(asked: str | None) -> None:
    limits.check_time(Limits(time="2:00:00"), asked, "--time")
    limits.check_time(Limits(), asked, "--time")


def test_a_time_limit_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match=r'limits.time = \'soon\': "soon" is not a time such as 90'):
        combine([Layer("site.toml", {"limits": {"time": "soon"}})])
    with pytest.raises(UserError, match=r'--time "soon" is not a time'):
        limits.check_time(Limits(), "soon", "--time")


def test_jobs_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def live_and_recent() -> Mapping[str, Job]:
        states = {"12_0": "RUNNING", "12_1": "PENDING", "9": "COMPLETED"}
        return {number: Job(number, state) for number, state in states.items()}

    monkeypatch.setattr(queue, "live_and_recent", live_and_recent)
    limits.check_jobs(Limits(jobs=5), 3, "3 cells")
    with pytest.raises(UserError, match="4 cells would make 6 jobs of yours in the queue, and 5 are allowed") as error:
        limits.check_jobs(Limits(jobs=5), 4, "4 cells")
    assert "at most 3 can be submitted now" in str(error.value)
