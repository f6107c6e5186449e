"""`hvdtrain retry` and `resume` of a study on this machine: every request that has something to do is given again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from submit_helpers import Submit, command, heed_signals, hvdtrain_in, plain_environment

from hvdtrain import record
from hvdtrain.submit.lock import StudyLock


def status(folder: Path) -> str:
    return str((record.read_json(folder / "result.json") or {}).get("status"))


def requests(room: Path) -> list[list[str]]:
    study = record.read_json(room / "runs" / "toy" / "study.json") or {}
    return [request["argv"] for request in study["requests"]]


def repair(room: Path) -> None:
    """The job, so that it no longer fails."""
    toy = room / "toy.py"
    toy.write_text(toy.read_text().replace("if epoch == options.fail_at:", "if False:"))


def test_a_cell_of_an_earlier_request_is_tried_again(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1", "--set", "fail-at=2").returncode == 1
    assert submit("--gpus", "1", "--set", "fail-at=1", "--retry-failed", "--", "--width", "9").returncode == 1
    assert submit("--gpus", "1", "--seeds", "5,").returncode == 0
    study = room / "runs" / "toy"
    stamp = (study / "n1-s5" / "result.json").read_bytes()
    asked = requests(room)
    repair(room)
    done = hvdtrain_in(room, "retry", "toy")
    assert (done.returncode, done.stderr) == (0, "")
    assert [status(study / name) for name in ("n1-fail-at2", "n1-fail-at1")] == ["completed"] * 2
    assert (study / "n1-s5" / "result.json").read_bytes() == stamp
    options = ["--job", "toy.py", "--gpus", "1", "--set"]
    assert requests(room)[len(asked) :] == [
        [*options, "fail-at=2", "--retry-failed"],
        [*options, "fail-at=1", "--retry-failed", "--", "--width", "9"],
    ], "what has nothing to do is not given again"
    done = hvdtrain_in(room, "retry", "toy")
    assert (done.returncode, done.stdout) == (0, "nothing to retry: no cell failed\n")
    assert len(requests(room)) == len(asked) + 2


def test_a_request_that_is_no_longer_legal_does_not_hold_up_the_others(submit: Submit, room: Path) -> None:
    elsewhere = room / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "toy.py").write_text((room / "toy.py").read_text())
    away = subprocess.run(
        [*command("--job", "toy.py", "--gpus", "1", "--set", "fail-at=1"), "--out", str(room / "runs")],
        cwd=elsewhere, env=plain_environment(), capture_output=True, check=False,
    )  # fmt: skip
    assert away.returncode == 1
    assert submit("--gpus", "1", "--set", "fail-at=2").returncode == 1
    elsewhere.rename(room / "moved")
    repair(room)
    done = hvdtrain_in(room, "retry", "toy")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"error: {elsewhere}: No such file or directory" in done.stderr
    assert "its submit command" in done.stderr
    study = room / "runs" / "toy"
    assert [status(study / name) for name in ("n1-fail-at1", "n1-fail-at2")] == ["failed", "completed"]


def test_a_study_in_use_is_said_once(submit: Submit, room: Path) -> None:
    for seed in ("1,", "2,"):
        assert submit("--gpus", "1", "--seeds", seed).returncode == 0
    with StudyLock(room / "runs" / "toy"):
        done = hvdtrain_in(room, "retry", "toy")
    assert done.returncode == 2
    assert done.stderr.count("is in use by another submit") == 1


@pytest.mark.parametrize(
    ("again_by", "ended", "says"),
    [
        ("resume", "cancelled", "stopped; the same command goes on"),
        ("retry", "failed", "stopped; hvdtrain resume runs/toy goes on with the cell that was running, hvdtrain retry"),
    ],
)
def test_a_stop_is_one_of_all_requests(submit: Submit, room: Path, again_by: str, ended: str, says: str) -> None:
    for seed in ("1,", "2,"):
        assert submit("--gpus", "1", "--seeds", seed, "--set", "sleep=0.3").returncode == 0
    study = room / "runs" / "toy"
    first, second = (study / f"n1-sleep0.3-s{seed}" for seed in (1, 2))
    for folder in (first, second):
        record.write_json(folder / "result.json", {"status": ended, "reason": "", "exit_code": 1})
        (folder / "epochs.jsonl").unlink()
    process = subprocess.Popen(
        [sys.executable, "-m", "hvdtrain", again_by, "toy"],
        cwd=room, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_signals,
    )  # fmt: skip
    try:
        end = time.monotonic() + 30
        while not record.read_epochs(first / "epochs.jsonl"):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, err) == (1, "")
    assert out.count("stopped; ") == out.count(says) == 1
    assert not (second / "epochs.jsonl").exists()
    assert hvdtrain_in(room, "resume", "toy").returncode == 0
    assert hvdtrain_in(room, again_by, "toy").returncode == 0
    assert (status(first), status(second)) == ("completed", "completed")


def test_a_cell_of_several_requests_is_tried_once(submit: Submit, room: Path) -> None:
    for seeds in ("1,", "1,2", "1,2,3"):
        assert submit("--gpus", "1", "--set", "fail-at=1", "--seeds", seeds).returncode == 1
    asked = len(requests(room))
    done = hvdtrain_in(room, "retry", "toy")
    assert (done.returncode, done.stderr) == (1, "")
    study = room / "runs" / "toy"
    folders = [study / f"n1-fail-at1-s{seed}" for seed in (1, 2, 3)]
    assert [len(list((folder / "attempts").iterdir())) for folder in folders] == [1, 1, 1]
    assert len(requests(room)) == asked + 3, "each had a cell that no earlier one has"
    hvdtrain_in(room, "retry", "toy")
    assert [len(list((folder / "attempts").iterdir())) for folder in folders] == [2, 2, 2]


def test_retry_leaves_to_resume_what_did_not_fail(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1", "--seeds", "1,2,3").returncode == 0
    study = room / "runs" / "toy"
    stopped, unrun, failed = (study / f"n1-s{seed}" for seed in (1, 2, 3))
    for folder, how in ((stopped, "cancelled"), (failed, "failed")):
        record.write_json(folder / "result.json", {"status": how, "reason": "", "exit_code": 1})
    for name in ("result.json", "running.json", "epochs.jsonl"):
        (unrun / name).unlink(missing_ok=True)
    done = hvdtrain_in(room, "retry", "toy")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 to run" in done.stdout
    assert [status(folder) for folder in (stopped, unrun, failed)] == ["cancelled", "None", "completed"]
    done = hvdtrain_in(room, "retry", "toy")
    assert (done.returncode, done.stdout) == (0, "nothing to retry: no cell failed\n")
    assert hvdtrain_in(room, "resume", "toy").returncode == 0
    assert [status(folder) for folder in (stopped, unrun)] == ["completed"] * 2


def test_a_study_that_was_renamed_goes_on_under_its_new_name(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1", "--seeds", "1,2").returncode == 0
    (room / "runs" / "toy").rename(room / "runs" / "first")
    study = room / "runs" / "first"
    record.write_json(study / "n1-s1" / "result.json", {"status": "cancelled", "reason": "", "exit_code": 1})
    done = hvdtrain_in(room, "resume", "first")
    assert (done.returncode, done.stderr) == (0, "")
    assert status(study / "n1-s1") == "completed"
    assert str(study / "n1-s1") in (study / "n1-s1" / "script.sh").read_text().replace("'\"'\"'", "'")
    assert not (room / "runs" / "toy").exists()


def test_what_a_request_took_from_hvdtrain_toml_is_what_goes_on(submit: Submit, room: Path) -> None:
    settings = room / "hvdtrain.toml"
    settings.write_text("gpus = [1]\n")
    assert submit("--seeds", "1,2").returncode == 0
    study = room / "runs" / "toy"
    record.write_json(study / "n1-s1" / "result.json", {"status": "cancelled", "reason": "", "exit_code": 1})
    settings.write_text('job = "digits"\ngpus = [2]\n')
    done = hvdtrain_in(room, "resume", "toy")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.parent.name for path in study.glob("*/cell.json")) == ["n1-s1", "n1-s2"]
    assert status(study / "n1-s1") == "completed"
