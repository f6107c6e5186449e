"""A folder of checkpoints must survive whatever happens to it or to the process that writes it."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdtrain.checkpoint import CheckpointError, Saved, Store


def save(store: Store, step: int, content: bytes = b"weights", score: float | None = None) -> Saved:
    return store.save(lambda file: file.write(content) and None, epoch=step // 10, step=step, score=score)


def never(text: str) -> None:
    pytest.fail(text)


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").newest(never) is None
    assert Store(tmp_path / "none").best() is None


def test_it_gives_back_what_was_saved(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(lambda file: file.write(b"abc") and None, epoch=2, step=17, score=0.5, facts={"size": 4})
    found = store.newest(never)
    assert found is not None
    assert (found.epoch, found.step, found.score, found.facts) == (2, 17, 0.5, {"size": 4})
    assert found.path.read_bytes() == b"abc"


def test_a_fact_that_is_added_later_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(lambda file: file.write(b"abc") and None, epoch=2, step=17, score=0.5, facts={"size": 4})
    before = store.all()[0]
    store.note(before, over=True)
    found = store.newest(never)
    assert found == dataclasses.replace(before, facts={"size": 4, "over": True})
    assert len(list(tmp_path.iterdir())) == 2


def test_the_last_k_and_the_best_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    for step, score in [(10, 0.5), (20, 0.9), (30, 0.7), (40, 0.8), (50, float("nan"))]:
        save(store, step, score=score)
    assert [saved.step for saved in store.all()] == [20, 40, 50]
    best = store.best()
    assert best is not None
    assert best.step == 20
    assert len(list(tmp_path.iterdir())) == 6


def test_a_later_save_of_an_earlier_step_is_the_newest(tmp_path: Path) -> None:
    """Training that went back to an earlier checkpoint goes on from there."""
    store = Store(tmp_path)
    save(store, 20)
    save(store, 10)
    found = store.newest(never)
    assert found is not None
    assert found.step == 10


@pytest.mark.parametrize("how", ["truncated", "changed", "removed", "manifest"])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path: Path, how: str) -> None:
    store = Store(tmp_path)
    save(store, 10)
    newest = save(store, 20)
    if how == "truncated":
        os.truncate(newest.path, 3)
    elif how == "changed":
        newest.path.write_bytes(b"w3ights")
    elif how == "removed":
        newest.path.unlink()
    else:
        os.truncate(newest.path.with_suffix(".json"), 20)
    said: list[str] = []
    found = store.newest(said.append)
    assert found is not None
    assert found.step == 10
    assert len(said) == 1
    assert str(newest.path) in said[0]
    assert said[0].endswith("taking the one before")
    # The next save outlives the damaged one.
    save(store, 12)
    assert store.newest(never).step == 12  # type: ignore[union-attr]


def test_all_damaged_is_an_error_that_names_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (10, 20):
        os.truncate(save(store, step).path, 0)
    with pytest.raises(CheckpointError, match=r"move .* away"):
        store.newest(lambda text: None)


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    """Only what a killed save of ours left is removed."""
    theirs = [
        "best.ckpt",
        "epoch=3-step=40.ckpt",
        "3-best-epoch-two-step-last.ckpt",
        ".download.part",
        ".state.json.77",
    ]
    aside = [".ckpt.part", ".json.7", ".json.7.9"]
    for name in [*theirs, "00007-epoch-1-step-10.ckpt", *(f".00008-epoch-1-step-10{end}" for end in aside)]:
        (tmp_path / name).write_text("there before")
    saved = save(Store(tmp_path), 20)
    ours = [saved.path.name, saved.path.with_suffix(".json").name]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*theirs, *ours])


def test_a_failing_write_leaves_nothing_and_keeps_the_one_before(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, 10)

    def half(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise RuntimeError("cannot pickle")

    with pytest.raises(RuntimeError):
        store.save(half, epoch=2, step=20)
    assert len(list(tmp_path.iterdir())) == 2
    assert store.newest(never).step == 10  # type: ignore[union-attr]


def test_a_full_disk_keeps_the_one_before_and_says_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            save(store, 20, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    message = str(caught.value)
    assert "File too large" in message
    assert "MiB are free" in message
    assert "00001-epoch-1-step-10.ckpt) is intact: make room" in message
    assert store.newest(never).step == 10  # type: ignore[union-attr]
    assert len(list(tmp_path.iterdir())) == 2


WRITER = """
import sys
from pathlib import Path
from hvdtrain.checkpoint import Store
store = Store(Path(sys.argv[1]))
newest = store.newest(print)
step = newest.step if newest else 0
def write(file):
    for _ in range(200):
        file.write(step.to_bytes(4, "big") * 2048)
while True:
    step += 1
    store.save(write, epoch=step, step=step)
    print(step, flush=True)
"""


def test_twenty_kills_in_the_middle_of_a_save_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    reported = 0
    interrupted = 0
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.03))
        process.kill()
        said = process.stdout.read().split()
        process.wait()
        reported = max([reported, *map(int, said)])
        interrupted += any(path.name.endswith(".part") for path in tmp_path.iterdir())
        found = Store(tmp_path).newest(never)
        assert found is not None
        # A save that was reported is there; one more may be there that had no time to be reported.
        assert found.step >= reported
        assert found.path.read_bytes() == found.step.to_bytes(4, "big") * 2048 * 200
        reported = found.step
    assert interrupted > 0, "no kill hit a save: the test shows nothing"
    save(Store(tmp_path), reported + 1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_manifest_is_json_that_anyone_can_read(tmp_path: Path) -> None:
    saved = save(Store(tmp_path), 10, score=float("inf"))
    content = json.loads(saved.path.with_suffix(".json").read_text())
    assert content["score"] is None
    assert content["size"] == len(b"weights")
