"""Training that was stopped goes on as if it had not been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.resume_job import INTERRUPTIONS
from tests.worlds import Ended, run_world

JOB = Path(__file__).with_name("resume_job.py")


#: Under Gloo an element's place in what is sent decides in which order more than two ranks add it, and which gradients Horovod
#: sends together depends on their timing: two uninterrupted runs differ then, too. Sent one by one they do not.
ONE_BY_ONE = {"HOROVOD_FUSION_THRESHOLD": "0"}


def train(ranks: int, launcher: str, folder: Path, *arguments: object) -> Ended:
    out = folder / "ended.json"
    options = ["--launcher", launcher, "--run-dir", str(folder / "run")]
    variables = ONE_BY_ONE if ranks > 2 and launcher == "local" else {}
    return run_world(ranks, JOB, "--out", out, *arguments, options=options, **variables)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "launcher", "options"),
    [
        (1, "none", ()),
        (2, "local", ("--workers", 2)),
        # Here rank 0 is through before the first signal.
        (2, "mpirun", ("--join", 8)),
        (4, "local", ()),
    ],
)
def test_interrupted_three_times_it_ends_bit_by_bit_where_it_would_have(
    ranks: int, launcher: str, options: tuple[Any, ...], tmp_path: Path
) -> None:
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    through.mkdir()
    stopped.mkdir()
    ended = train(ranks, launcher, through, *options)
    assert ended.status == 0, ended.err
    for attempt, (signals, _, _, _) in enumerate(INTERRUPTIONS):
        ended = train(ranks, launcher, stopped, *options, "--interrupted")
        assert ended.status == 75, ended.err
        # Whatever comes after the first signal changes nothing.
        assert ended.err.count(f"asked by {signals[0]}; checkpoint ") == 1, ended.err
        assert "Traceback" not in ended.err
        result = json.loads((stopped / "run" / "result.json").read_text())
        assert (result["status"], result["exit_code"]) == ("preempted", 75)
        assert len(list((stopped / "run" / "checkpoints").glob("*.ckpt"))) <= 3
        if attempt:
            assert ended.err.count("going on after epoch") == 1
    ended = train(ranks, launcher, stopped, *options, "--interrupted")
    assert ended.status == 0, ended.err
    expected, found = (json.loads((folder / "ended.json").read_text()) for folder in (through, stopped))
    assert found == expected
    assert len({rank["digest"] for rank in found["ranks"]}) == 1
    # Each rank draws other random numbers than the others while it trains, and the same afterwards.
    assert len({tuple(rank["drawn"]) for rank in found["ranks"]}) == ranks
    assert len({tuple(rank["drawn afterwards"]) for rank in found["ranks"]}) == 1
    assert [json.loads(line)["epoch"] for line in (stopped / "run" / "epochs.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
    ]

    if ranks > 1:
        return
    again = train(ranks, launcher, stopped, *options)
    assert again.status == 0, again.err
    assert "trained already: 3 epochs are on record" in again.out
    assert json.loads((stopped / "ended.json").read_text())["history"] == expected["history"]
