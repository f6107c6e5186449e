"""The first job that a user runs, in each of the ways that it can be started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdtrain.paths import find_job
from tests.worlds import run_world

JOB = find_job("digits")


@pytest.mark.alone
def test_alone_it_learns_the_digits_within_a_minute(tmp_path: Path) -> None:
    began = time.monotonic()
    run = subprocess.run([sys.executable, str(JOB)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    assert time.monotonic() - began < 60
    accuracy = float(run.stdout.splitlines()[-1].split("val_acc ")[1].split()[0])
    assert accuracy > 0.97
    lines = run.stdout.splitlines()
    assert lines[:2] == ["learning rate (0.05 for one rank, rule linear, 1 ranks):", "  epochs 1-10    0.05"]
    assert len(lines) == 12
    assert list(tmp_path.iterdir()) == []


def test_it_is_short_and_explains_itself() -> None:
    assert len(JOB.read_text().splitlines()) < 60
    run = subprocess.run([sys.executable, str(JOB), "--help"], capture_output=True, text=True, check=False)
    assert run.returncode == 0
    for option in ("--epochs", "--batch-size", "--lr", "--lr-rule", "--warmup-epochs", "--seed"):
        assert option in run.stdout


def test_a_wrong_option_is_a_message() -> None:
    run = subprocess.run([sys.executable, str(JOB), "--epochs", "0"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "0 is not a positive whole number" in run.stderr


@pytest.mark.ranks
def test_under_a_launcher_it_records_what_it_prints(tmp_path: Path) -> None:
    ended = run_world(2, "digits", "--epochs", 3, options=["--run-dir", str(tmp_path)])
    assert ended.status == 0, ended.err
    epochs = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    printed = [line.split("val_acc ")[1].split()[0] for line in ended.out.splitlines() if "val_acc" in line]
    assert printed == [f"{epoch['val_acc']:.4f}" for epoch in epochs]
    assert [epoch["samples"] for epoch in epochs] == [1437] * 3
    for epoch in epochs:
        parts = ("data", "forward", "backward", "allreduce", "optimizer", "val")
        spent = sum(epoch[f"seconds_{part}"] for part in parts)
        assert 0.5 * epoch["seconds"] < spent <= epoch["seconds"] + 1e-6
        assert epoch["samples_per_second"] == pytest.approx(1437 / (epoch["seconds"] - epoch["seconds_val"]))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "completed"
    assert (result["device"], result["world_size"], result["lr_rule"]) == ("cpu", 2, "linear")


@pytest.mark.ranks
def test_training_that_diverges_says_so_on_one_line(tmp_path: Path) -> None:
    ended = run_world(2, "digits", "--epochs", 3, "--lr", 1e6, options=["--run-dir", str(tmp_path)])
    assert ended.status == 1
    assert ended.err.count("the training loss is no longer a number") == 1
    assert "try a lower --lr" in ended.err
    assert "Traceback" not in ended.err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "diverged"
    # The epoch that diverged is on record; JSON has no NaN.
    assert json.loads((tmp_path / "epochs.jsonl").read_text().splitlines()[-1])["train_loss"] is None
