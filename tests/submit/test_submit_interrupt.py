"""Ctrl-C, SIGTERM, kill -9 and a second submit: the study stays whole, and the next call goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from submit_helpers import Submit, command, heed_signals, plain_environment

from hvdtrain import record
from tests.dying_submit import DIES_WRITING

Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(room: Path) -> Iterator[Started]:
    """Starts a submit that goes on while the test does."""
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str, program: list[str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*(program or command()), "--job", "toy.py", *arguments],
            cwd=room,
            env=plain_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def training(folder: Path) -> Callable[[], bool]:
    """Whether the cell has finished an epoch."""
    return lambda: bool(record.read_epochs(folder / "epochs.jsonl"))


def rank_of(folder: Path) -> int:
    seen = record.read_json(folder / "seen.json")
    assert seen is not None
    return int(seen["pid"])


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and merely not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_is_recorded_and_the_next_call_goes_on(
    start: Started, submit: Submit, room: Path, number: signal.Signals
) -> None:
    long = ("--gpus", "1", "--seeds", "2", "--epochs", "2", "--set", "sleep=0.4")
    process = start(*long)
    first, second = (room / "runs" / "toy" / f"n1-sleep0.4-s{seed}" for seed in (0, 1))
    wait_for(training(first))
    rank = rank_of(first)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "")
    assert not alive(rank)
    result = record.read_json(first / "result.json")
    assert result is not None
    assert (result["status"], result["reason"]) == ("cancelled", f"stopped by {number.name}")
    assert not (first / "running.json").exists()
    assert not (second / "epochs.jsonl").exists()
    assert "stopped; the same command goes on" in out
    assert re.search(r"^n1-sleep0.4-s0 +cancelled +1/2 ", out, re.MULTILINE)
    assert re.search(r"^n1-sleep0.4-s1 +pending +0/2 ", out, re.MULTILINE)

    done = submit(*long)
    assert done.returncode == 0
    assert "2 cells: 2 to run" in done.stdout
    assert [epoch.epoch for epoch in record.read_epochs(first / "epochs.jsonl")] == [1, 2]
    assert len(record.read_epochs(first / "attempts" / "1" / "epochs.jsonl")) == 1


def test_a_second_ctrl_c_ends_a_deaf_job_at_once(start: Started, submit: Submit, room: Path) -> None:
    request = ("--gpus", "1", "--epochs", "500", "--", "--sleep", "0.2", "--deaf", "--start-helper")
    process = start(*request)
    folder = room / "runs" / "toy" / "n1"
    wait_for(training(folder))
    rank, helper = rank_of(folder), int((folder / "helper").read_text())
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while "stopping n1" not in process.stdout.readline():
        pass
    began = time.monotonic()
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert time.monotonic() - began < 8, "the grace is 15 s; the second Ctrl-C ends it"
    assert not alive(rank)
    assert not alive(helper)
    assert (record.read_json(folder / "result.json") or {})["status"] == "cancelled"
    assert (record.read_json(folder / "cell.json") or {})["name"] == "n1"
    assert record.read_epochs(folder / "epochs.jsonl")


@pytest.mark.parametrize(("asked", "said"), [(True, "summary\n"), (False, "")])
def test_one_more_ctrl_c_while_the_summary_is_printed(asked: bool, said: str) -> None:
    code = (
        "import os, signal\nfrom hvdtrain.submit.stop import Stop\npress = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        f"with Stop():\n    {asked} and press()\npress()\nprint('summary')"
    )
    done = subprocess.run(
        [command()[0], "-c", code],
        capture_output=True,
        text=True,
        env=plain_environment(),
        preexec_fn=heed_signals,
        check=False,
    )
    assert (done.stdout, done.returncode == 0) == (said, asked), done.stderr


def test_a_deaf_job_is_killed_after_the_grace(start: Started, room: Path) -> None:
    short_grace = (
        "import sys\nfrom hvdtrain.submit import attempt, cli\nattempt.GRACE_SECONDS = 0.5\nsys.exit(cli.main())"
    )
    program = [command()[0], "-c", short_grace]
    process = start("--gpus", "1", "--epochs", "500", "--", "--sleep", "0.2", "--deaf", program=program)
    folder = room / "runs" / "toy" / "n1"
    wait_for(training(folder))
    rank = rank_of(folder)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert not alive(rank)
    assert (record.read_json(folder / "result.json") or {})["status"] == "cancelled"


def test_kill_9_in_the_middle(start: Started, submit: Submit, room: Path) -> None:
    request = ("--gpus", "1", "--seeds", "2", "--epochs", "3", "--set", "sleep=0.4")
    process = start(*request)
    study = room / "runs" / "toy"
    wait_for(training(study / "n1-sleep0.4-s1"))
    rank = rank_of(study / "n1-sleep0.4-s1")
    first = (study / "n1-sleep0.4-s0" / "result.json").read_bytes()
    process.kill()
    process.wait()
    done = submit(*request)
    assert not alive(rank)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 cells: 1 to run, 1 finished already" in done.stdout
    assert (study / "n1-sleep0.4-s0" / "result.json").read_bytes() == first
    again = study / "n1-sleep0.4-s1"
    assert [epoch.epoch for epoch in record.read_epochs(again / "epochs.jsonl")] == [1, 2, 3]


def test_kill_9_while_cells_are_written(start: Started, submit: Submit, room: Path) -> None:
    process = start("--gpus", "1", "--seeds", "3", program=[command()[0], "-c", DIES_WRITING])
    assert process.wait(timeout=30) == -signal.SIGKILL
    study = room / "runs" / "toy"
    assert sorted(path.name for path in study.iterdir()) == [".lock", "n1-s0", "n1-s1"]
    other = submit("--gpus", "1", "--seeds", "3", "--epochs", "3")
    assert other.returncode == 2
    assert "already has a cell n1-s0 with another configuration" in other.stderr
    assert sorted(path.name for path in study.iterdir()) == [".lock", "n1-s0", "n1-s1"]
    done = submit("--gpus", "1", "--seeds", "3")
    assert done.returncode == 0, done.stderr
    assert "3 cells: 3 to run" in done.stdout


def test_two_submits_at_once(start: Started, submit: Submit, room: Path) -> None:
    process = start("--gpus", "1", "--epochs", "500", "--", "--sleep", "0.1")
    folder = room / "runs" / "toy" / "n1"
    wait_for(training(folder))
    done = submit("--gpus", "1", "--seeds", "1")
    assert done.returncode == 2
    assert f"the study runs/toy is in use by another submit (process {process.pid} on " in done.stderr
    assert sorted(path.name for path in folder.parent.iterdir()) == [".lock", "n1", "study.json"]
    assert submit("--gpus", "1", "--study", "other").returncode == 0
    assert process.poll() is None


def test_an_ignored_hangup_stays_ignored(room: Path) -> None:
    """`nohup python -m hvdtrain.submit ... &` goes on when the terminal closes."""
    process = subprocess.Popen(
        command("--job", "toy.py", "--gpus", "1", "--epochs", "2", "--", "--sleep", "0.4"),
        cwd=room,
        env=plain_environment(),
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    wait_for(training(room / "runs" / "toy" / "n1"))
    os.kill(process.pid, signal.SIGHUP)
    assert process.wait(timeout=30) == 0


def test_a_reader_that_goes_away_ends_the_study_in_order(start: Started, room: Path) -> None:
    process = start("--gpus", "1", "--epochs", "500", "--", "--sleep", "0.3")
    folder = room / "runs" / "toy" / "n1"
    wait_for(training(folder))
    rank = rank_of(folder)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    assert not alive(rank)
    assert (record.read_json(folder / "result.json") or {})["status"] == "cancelled"
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stdout = process.stderr = None
