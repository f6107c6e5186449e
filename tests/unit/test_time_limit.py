"""When a batch job ends: SLURM's times, and a time limit that somebody changes while the job runs."""

from __future__ import annotations

import datetime
import os
import signal
from pathlib import Path

import pytest

from hvdtrain.launch import allocation, batch
from hvdtrain.launch.allocation import Allocation
from hvdtrain.launch.time_limit import TimeLimit
from hvdtrain.site import commands


class Srun:
    """Ranks that only note what they are told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def poll(self) -> None:
        """It runs."""

    def send_signal(self, number: int) -> None:
        self.told.append(number)


def started(monkeypatch: pytest.MonkeyPatch, said: Allocation | None) -> tuple[batch.Batch, Srun, list[float]]:
    """A batch job whose clock has just rung, SLURM's answer to it, its ranks, and what its clock is then set to."""

    def ask(job: str, seconds: float = 60.0) -> Allocation:
        assert seconds <= 5.0, "ranks are to be told in time"
        if said is None:
            raise commands.SlurmError("no answer")
        return said

    made = object.__new__(batch.Batch)
    made.job = Allocation("7", "7", "RUNNING", end=2000.0)
    made.limit = TimeLimit(made.job, left=120.0)
    made.warning = 120.0
    ranks, rings = Srun(), list[float]()
    made.process = ranks  # type: ignore[assignment]
    monkeypatch.setattr(allocation, "ask", ask)
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: rings.append(seconds))
    made._signal(signal.SIGALRM, None)
    return made, ranks, rings


@pytest.mark.parametrize(
    "said",
    [
        Allocation("7", "7", "RUNNING", end=2000.0),
        Allocation("7", "7", "RUNNING", end=1900.0),
        Allocation("7", "7", "RUNNING", end=9000.0, restarts=1),
        Allocation("7", "7", "COMPLETING", end=9000.0),
        None,
    ],
)
def test_ranks_are_told_before_the_time_limit(monkeypatch: pytest.MonkeyPatch, said: Allocation | None) -> None:
    _, ranks, rings = started(monkeypatch, said)
    assert (ranks.told, rings) == ([signal.SIGUSR1], [])


def test_a_time_limit_that_was_lifted_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ranks, rings = started(monkeypatch, Allocation("7", "7", "RUNNING"))
    assert (ranks.told, rings, made.limit.left()) == ([], [], None)


def test_a_time_limit_that_was_extended_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ranks, rings = started(monkeypatch, Allocation("7", "7", "RUNNING", end=5600.0))
    assert ranks.told == []
    assert rings == [pytest.approx(3600, abs=1)]
    assert made.limit.left() == pytest.approx(3720, abs=1)


@pytest.mark.parametrize(
    ("state", "end", "left"),
    [
        ("RUNNING", 2000.0, 600),
        ("RUNNING", 1450.0, 50),  # shortened: SLURM has told the ranks
        ("RUNNING", 9000.0, 600),  # too late for ranks that stop already
        ("COMPLETING", 1450.0, 600),  # when it was cancelled, not its limit
        ("RUNNING", None, 600),
    ],
)
def test_what_is_left_when_ranks_have_ended(state: str, end: float | None, left: float) -> None:
    limit = TimeLimit(Allocation("7", "7", "RUNNING", end=2000.0), left=600.0)
    assert limit.left_at_the_end(Allocation("7", "7", state, end=end)) == pytest.approx(left, abs=1)


def test_without_a_time_limit_nothing_is_left_of_it() -> None:
    limit = TimeLimit(Allocation("7", "7", "RUNNING"), left=None)
    assert limit.left() is limit.left_at_the_end(Allocation("7", "7", "RUNNING", end=1.0)) is None


SCONTROL = """\
#!/bin/sh
# 02:30 comes twice in Berlin on that night; SLURM does not say which it means.
[ "$SLURM_TIME_FORMAT" = %s ] && end=1792891800 || end=2026-10-25T02:30:00
printf 'JobId=7 JobName=x\\n   StartTime=Unknown EndTime=%s\\n' $end
"""


def test_times_are_the_same_in_the_hour_that_comes_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")  # a user's own choice
    assert allocation.ask("7").end == 1792891800


def test_a_time_in_words_and_one_that_is_not_known() -> None:
    told = "JobId=7 JobName=x\n   StartTime=Unknown EndTime={}"
    words = datetime.datetime(2026, 1, 2, 12, 0, 30)
    assert allocation.parse("7", told.format(words.isoformat())).end == words.timestamp()
    assert allocation.parse("7", told.format("Unknown")).end is None
    assert allocation.parse("7", told.format("1796067000").replace("Unknown", "1796066820")).end == 1796067000
