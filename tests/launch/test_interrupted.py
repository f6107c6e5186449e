"""Ctrl-C, or a closed terminal, while ranks train: they leave a checkpoint, and the run is cancelled, whatever started them."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from hvdtrain.record import read_json
from tests.unit.starting import eventually, started

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("launcher", "ranks", "number"),
    [
        ("none", 1, signal.SIGINT),
        ("local", 2, signal.SIGINT),
        ("local", 2, signal.SIGHUP),
        ("mpirun", 2, signal.SIGINT),
        ("mpirun", 2, signal.SIGHUP),
    ],
)
def test_whoever_interrupts_a_training_cancels_it_and_keeps_a_checkpoint(
    tmp_path: Path, launcher: str, ranks: int, number: signal.Signals
) -> None:
    options = ("-n", ranks, "--launcher", launcher, "--run-dir", tmp_path)
    epochs = tmp_path / "epochs.jsonl"
    with started("-m", "hvdtrain.launch", *options, "digits", "--epochs", 100_000) as process:
        assert eventually(lambda: epochs.exists() and epochs.stat().st_size > 0, seconds=60)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stderr is not None
        said = process.stderr.read().decode()
    named = re.findall(r"; checkpoint ([^;]+);", said)
    assert len(named) == 1 and Path(named[0]).exists() and "Traceback" not in said, said
    result = read_json(tmp_path / "result.json") or {}
    assert (result["status"], result["exit_code"]) == ("cancelled", 128 + number)
    assert result["reason"] == f"ended by signal {number.name}"
