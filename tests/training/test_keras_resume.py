"""A Keras training that was stopped goes on as if it had not been, on as many ranks or on others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds import Ended, run_world

JOB = Path(__file__).with_name("keras_resume_job.py")
RESTART = 75


def train(ranks: int, launcher: str, backend: str, folder: Path, name: str, *arguments: object) -> Ended:
    options = ["--launcher", launcher, "--run-dir", str(folder / name)]
    out = folder / f"{name}.npz"
    return run_world(ranks, JOB, "--out", out, *arguments, options=options, KERAS_BACKEND=backend)


def epochs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By backend, where a training of 2 ranks ended that nothing interrupted."""

    @cache
    def whole(backend: str) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        ended = train(2, "local", backend, folder, "whole")
        assert ended.status == 0, ended.err
        return folder / "whole.npz"

    return whole


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("backend", "number", "place", "rank", "launcher"),
    [
        ("tensorflow", "SIGUSR1", "step", 1, "local"),
        ("tensorflow", "SIGUSR2", "data", 1, "local"),
        ("torch", "SIGUSR1", "step", 1, "local"),
        ("torch", "SIGTERM", "validation", 0, "mpirun"),
    ],
)
def test_a_signal_to_one_rank_stops_all_and_the_next_start_goes_on(
    backend: str,
    number: str,
    place: str,
    rank: int,
    launcher: str,
    uninterrupted: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    whole = uninterrupted(backend)
    options = ["--signal", number, "--place", place, "--rank", rank, "--mark", tmp_path / "mark"]
    first = train(2, launcher, backend, tmp_path, "parts", *options)
    assert first.status == RESTART, first.err
    # Data are read ahead: steps pass meanwhile, how many depends on who is faster.
    where = {"validation": "after epoch 2", "step": "after step 4 of epoch 2", "data": r"after (step \d of )?epoch 2"}
    assert re.search(rf"{number} came to rank {rank}; stopped {where[place]}; checkpoint in", first.err), first.err
    assert "Traceback" not in first.err
    assert json.loads((tmp_path / "parts" / "result.json").read_text())["status"] == "preempted"
    second = train(2, launcher, backend, tmp_path, "parts", *options)
    assert second.status == 0, second.err
    # Weights, the optimizer's state with its rate, statistics, the losses of every epoch, and what another callback saw of each
    # step: bit for bit.
    with np.load(whole) as expected, np.load(tmp_path / "parts.npz") as parts:
        assert expected.files == parts.files
        assert [name for name in expected.files if not np.array_equal(expected[name], parts[name])] == []
    assert [line[0] for line in (tmp_path / "parts.csv").read_text().splitlines()] == ["e", "0", "1", "2", "3"]
    recorded = epochs(tmp_path / "parts")
    assert [epoch["epoch"] for epoch in recorded] == [1, 2, 3, 4]
    assert [epoch["samples"] for epoch in recorded] == [101] * 4
    assert recorded[-1]["restart"] == 1


@pytest.mark.ranks
def test_a_signal_in_the_last_step_of_an_epoch_that_leaves_samples_out(tmp_path: Path) -> None:
    options = ["--uneven", "drop", "--epochs", 3, "--mark", tmp_path / "mark"]
    first = train(2, "local", "tensorflow", tmp_path, "run", *options, "--signal", "SIGUSR1", "--place", "last")
    assert first.status == RESTART, first.err
    assert "stopped after epoch 2" in first.err
    again = train(2, "local", "tensorflow", tmp_path, "run", *options)
    assert again.status == 0, again.err
    assert [(each["epoch"], each["samples"]) for each in epochs(tmp_path / "run")] == [(1, 96), (2, 96), (3, 96)]


@pytest.mark.ranks
def test_another_number_of_ranks_takes_its_own_rate_and_keeps_the_rest(tmp_path: Path) -> None:
    signal = ("--signal", "SIGUSR1", "--place", "step", "--mark", tmp_path / "mark")
    for ranks, until, status in ((2, 4, RESTART), (4, 4, 0), (1, 5, 0)):
        launcher = "none" if ranks == 1 else "local"
        ended = train(ranks, launcher, "tensorflow", tmp_path, "run", "--epochs", until, "--no-plateau", *signal)
        assert ended.status == status, ended.err
        if status == 0:
            found = float(ended.out.rpartition("rate ")[2])
            assert found == pytest.approx(0.01 * ranks * 0.9**until, rel=1e-6)
    assert "of 4 ranks, now 1" in ended.out
    # The second epoch began with two ranks; its rate was lowered then, and is not lowered twice.
    rates = [epoch["lr"] for epoch in epochs(tmp_path / "run")]
    assert rates == pytest.approx([0.01 * n * 0.9**e for e, n in enumerate((2, 4, 4, 4, 1), start=1)], rel=1e-6)
    with np.load(tmp_path / "run.npz") as arrays:
        iterations = next(
            arrays[name] for name in arrays.files if arrays[name].dtype.kind == "i" and arrays[name].ndim == 0
        )
    assert iterations == 5 * 9  # the global batch is the same throughout


@pytest.mark.ranks
def test_a_full_disk_ends_all_ranks_and_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    ended = train(2, "local", "tensorflow", tmp_path, "run", "--limit-bytes", 3000)
    assert ended.status == 2, ended.err
    assert re.search(r"cannot be written: File too large; .* is intact: make room, then start again", ended.err)
    assert ended.err.count("cannot be written") == 1
    again = train(2, "local", "tensorflow", tmp_path, "run")
    assert again.status == 0, again.err
    assert "going on with epoch 3, from" in again.out
    assert [epoch["epoch"] for epoch in epochs(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.ranks
def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    assert train(2, "local", "tensorflow", tmp_path, "run", "--epochs", 3).status == 0
    newest = max((tmp_path / "run" / "checkpoints").glob("*.ckpt"))
    os.truncate(newest, 100)
    again = train(2, "local", "tensorflow", tmp_path, "run", "--epochs", 4)
    assert again.status == 0, again.err
    assert f"checkpoint {newest} is damaged: it has 100 of" in again.out
    assert "going on with epoch 3, from" in again.out
    finished = train(2, "local", "tensorflow", tmp_path, "run", "--epochs", 4)
    assert "4 epochs were trained before" in finished.out


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_rank_whose_weights_deviate_is_named(backend: str, tmp_path: Path) -> None:
    ended = train(4, "local", backend, tmp_path, "run", "--deviate", "--rank", 2)
    assert ended.status == 2, ended.err
    assert "after step 1 rank 2 holds other parameters than the other ranks" in ended.err
    assert ended.err.count("hold other parameters") + ended.err.count("holds other parameters") == 1
