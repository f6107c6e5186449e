"""What is shown while cells run, and estimates."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from submit_helpers import Submit, command, plain_environment

from hvdtrain.record import Epoch
from hvdtrain.submit import estimate


def epochs(*seconds: float | None) -> list[Epoch]:
    return [Epoch(number, seconds=each) for number, each in enumerate(seconds, start=1)]


def test_a_cell_is_estimated_from_its_recent_epochs() -> None:
    assert estimate.cell_remaining(epochs(90, 2, 2, 2, 2, 2), 10, 100, None) == 8
    assert estimate.cell_remaining(epochs(2, 2), 2, 4, None) == 0
    assert estimate.cell_remaining(epochs(2, None), 3, 4, None) == 2


def test_before_its_first_epoch_it_is_estimated_from_its_like() -> None:
    assert estimate.cell_remaining([], 10, 5, 20) == 15
    assert estimate.cell_remaining([], 10, 25, 20) == 0
    assert estimate.cell_remaining([], 10, 5, None) is None
    assert estimate.cell_remaining(epochs(2), None, 5, None) is None
    assert estimate.usual_seconds(2, [(1, 10), (2, 6), (2, 8), (4, 1)]) == 7
    assert estimate.usual_seconds(8, [(1, 10), (2, 6)]) == 8
    assert estimate.usual_seconds(8, []) is None


def test_a_study_is_the_cell_and_those_to_come() -> None:
    assert estimate.study_remaining(4, 6, 2, pending=[2, 1], ended=[(1, 20)]) == 4 + 10 + 20
    assert estimate.study_remaining(4, 6, 2, pending=[8], ended=[]) == 14
    assert estimate.study_remaining(4, 6, 2, pending=[], ended=[]) == 4
    assert estimate.study_remaining(None, 6, 2, pending=[1], ended=[]) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.04, "0.0 s"),
        (9.9, "9.9 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3723, "1 h 02 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert estimate.shown(seconds) == text


def test_a_pipe_gets_lines(submit: Submit) -> None:
    done = submit("--gpus", "1", "--epochs", "3", "--", "--sleep", "0.4")
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert "[1/1] n1: 1 rank" in lines
    (epoch,) = (line for line in lines if line.startswith("[1/1] n1: epoch 1/3"))
    assert epoch == "[1/1] n1: epoch 1/3  val_acc 0.500  0.5 s/epoch  2,000 samples/s  left: 1.0 s, of the study 1.0 s"
    assert any(re.fullmatch(r"\[1/1\] n1: completed: 3 epochs in [\d.]+ s, val_acc 0\.833", line) for line in lines)


def on_a_terminal(room: Path, *arguments: str, **environment: str) -> str:
    """Standard output of a submit that believes it talks to a person."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("--job", "toy.py", *arguments),
        cwd=room,
        env=plain_environment(**{"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30", **environment}),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(timeout=30) == 0
    return seen.decode()


def test_a_terminal_gets_bars(room: Path) -> None:
    seen = on_a_terminal(room, "--gpus", "1", "--seeds", "2", "--epochs", "3", "--", "--sleep", "0.4")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert re.search(r"study +\S+ +2 cells +[\d.]+ s, [\d.]+ s left", plain)
    assert re.search(r"\[1/2\] n1-s0 +\S+ +1 rank  epoch 1/3  val_acc 0\.500 +[\d.]+ s, [\d.]+ s left", plain)
    assert re.search(r"\[2/2\] n1-s1 +\S+ +1 rank  before the first epoch", plain)
    assert "[2/2] n1-s1: completed: 3 epochs in " in plain
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") > 0, "the cursor must come back"


def test_a_dumb_terminal_gets_lines(room: Path) -> None:
    assert "\x1b" not in on_a_terminal(room, "--gpus", "1", TERM="dumb")
