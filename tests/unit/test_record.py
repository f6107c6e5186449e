"""The run folder: what a reader may rely on, whatever happened to the writer."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hvdtrain import record
from hvdtrain.record import Epoch, EpochLog, read_epochs, read_json, write_json


def numbers(path: Path) -> list[int]:
    return [epoch.epoch for epoch in read_epochs(path)]


# --- epochs ---


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "cell" / "epochs.jsonl"
    log = EpochLog(path)
    assert read_epochs(path) == []
    first = Epoch(1, train_loss=1.5, val_acc=0.5, samples=1000, seconds=2.0, restart=1)
    log.append(first)
    # On disk at once: somebody may be looking.
    assert read_epochs(path) == [first]
    log.append(Epoch(2))
    assert numbers(path) == [1, 2]


def test_the_line_has_every_field_of_the_schema_and_null_for_what_was_not_measured(tmp_path: Path) -> None:
    EpochLog(tmp_path / "e").append(Epoch(1, val_acc=0.5))
    line = json.loads((tmp_path / "e").read_text())
    names = """epoch train_loss train_acc val_loss val_acc lr samples seconds seconds_data seconds_forward
        seconds_backward seconds_allreduce seconds_optimizer seconds_val samples_per_second grad_norm noise_scale restart"""
    assert list(line) == names.split()
    assert {name for name, value in line.items() if value is not None} == {"epoch", "val_acc", "restart"}


def test_a_restart_leaves_each_epoch_once(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    log = EpochLog(path)
    for number in (1, 2, 3):
        log.append(Epoch(number, restart=0))
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"epoch": 4, "train_lo')  # killed while it wrote
    again = EpochLog(path, next_epoch=3)
    assert numbers(path) == [1, 2]
    again.append(Epoch(3, restart=1))
    again.append(Epoch(4, restart=1))
    assert [(epoch.epoch, epoch.restart) for epoch in read_epochs(path)] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert path.read_text().count("\n") == 4
    assert os.listdir(tmp_path) == ["epochs.jsonl"]


def test_a_run_from_the_beginning_starts_with_no_epochs(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    EpochLog(path).append(Epoch(1))
    EpochLog(path)
    assert read_epochs(path) == []


@pytest.mark.parametrize("number", [1, 2])
def test_an_epoch_is_not_recorded_twice(tmp_path: Path, number: int) -> None:
    path = tmp_path / "epochs.jsonl"
    log = EpochLog(path)
    log.append(Epoch(2))
    with pytest.raises(ValueError, match=rf"epoch {number} is already recorded in {path} \(last: 2\)"):
        log.append(Epoch(number))
    with pytest.raises(ValueError, match="already recorded"):
        EpochLog(path, next_epoch=3).append(Epoch(number))


def test_a_half_written_tail_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    EpochLog(path).append(Epoch(1))
    whole = path.read_text()
    for length in (*range(0, len(whole), 9), len(whole) - 1):
        path.write_text(whole + whole.replace("1", "2", 1)[:length])
        assert numbers(path) == [1]


@pytest.mark.parametrize("line", ["{", "[1]", "3", "null", '{"val_acc": 0.5}', '"epoch"'])
def test_a_complete_line_that_is_no_epoch_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "epochs.jsonl"
    path.write_text(f'{{"epoch": 1}}\n{line}\n{{"epoch": 3}}\n')
    with pytest.raises(ValueError, match=f"{path}, line 2: not an epoch record"):
        read_epochs(path)


def test_fields_of_a_later_version_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    path.write_text('{"epoch": 1, "val_acc": 0.5, "humidity": 3}\n')
    assert read_epochs(path) == [Epoch(1, val_acc=0.5)]


def test_no_file_is_no_epochs(tmp_path: Path) -> None:
    assert read_epochs(tmp_path / "epochs.jsonl") == []


def test_a_number_that_is_none_is_null(tmp_path: Path) -> None:
    EpochLog(tmp_path / "e").append(Epoch(1, train_loss=math.nan, val_loss=math.inf))
    assert "NaN" not in (tmp_path / "e").read_text() and "Infinity" not in (tmp_path / "e").read_text()
    assert read_epochs(tmp_path / "e") == [Epoch(1)]


# --- files that are there complete or not at all ---


def test_write_json_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    write_json(path, {"a": 1})
    write_json(path, {"loss": math.nan, "nested": [-math.inf, {"x": math.inf, "ü": (1, 2.5)}]})
    assert read_json(path) == {"loss": None, "nested": [None, {"x": None, "ü": [1, 2.5]}]}
    assert os.listdir(path.parent) == ["result.json"]


def test_what_json_cannot_hold_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": 2, "b": object()})
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["result.json"]


WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from hvdtrain.record import write_json
number = int(sys.argv[2])
print("ready", flush=True)
while True:
    number += 1
    write_json(Path(sys.argv[1]), {"number": number, "filler": [number] * 5000, "end": number})
"""


def test_a_writer_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"number": 0, "end": 0})
    seen = 0
    for attempt in range(8):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(seen)], stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
                # A busy machine may take its time to a first write; killed it is in the midst of some later one.
                until = time.monotonic() + 20
                while (read_json(path) or {})["number"] <= seen and time.monotonic() < until:
                    time.sleep(0.001)
                time.sleep(0.004 * attempt)
            finally:
                writer.kill()
        value = read_json(path)
        assert value is not None and value["number"] == value["end"] > seen
        seen = value["number"]


FULL_DISK = """
import resource, signal, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from hvdtrain.record import write_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_json(Path(sys.argv[1]), {"filler": "x" * 10000})
except OSError as error:
    print(error.strerror)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    ended = subprocess.run([sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, check=True)
    assert ended.stdout == "File too large\n"
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["result.json"]


def test_read_json(tmp_path: Path) -> None:
    assert read_json(tmp_path / "no.json") is None
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"list\.json holds a list, not an object"):
        read_json(tmp_path / "list.json")


def test_the_run_folder_is_the_launchers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(record.RUN_DIR_VARIABLE, raising=False)
    assert record.run_dir() is None
    monkeypatch.setenv(record.RUN_DIR_VARIABLE, "")
    assert record.run_dir() is None
    monkeypatch.setenv(record.RUN_DIR_VARIABLE, str(tmp_path))
    assert record.run_dir() == tmp_path


@pytest.mark.parametrize(("value", "count"), [(None, 0), ("", 0), ("0", 0), ("3", 3)])
def test_restart_count(monkeypatch: pytest.MonkeyPatch, value: str | None, count: int) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if value is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", value)
    assert record.restart_count() == count


def test_threads_of_one_process_may_write_the_same_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: record.write_json(tmp_path / "f.json", {"n": n}), range(400)))
    assert record.read_json(tmp_path / "f.json")["n"] in range(400)
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]
