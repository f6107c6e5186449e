"""Whole studies on this machine, through the real command line and the real launcher with one rank."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from submit_helpers import Submit

from hvdtrain import record
from hvdtrain.machine import cores
from hvdtrain.run_folder import take


def load(path: Path) -> dict[str, Any]:
    value = record.read_json(path)
    assert value is not None, f"{path} is not there"
    return value


def test_a_study_from_beginning_to_end(submit: Submit, room: Path) -> None:
    done = submit(
        *("--gpus", "1", "--batch-size", "8,16", "--seeds", "5,", "--set", "text=it's $HOME", "--epochs", "3"),
        *("--env", "TOY_VARIABLE=a b'c", "--wait", "--", "--width", "9"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    study = room / "runs" / "toy"
    cells = record.read_study(study)
    assert len(cells) == 2
    folder = next(cell.folder for cell in cells if cell.cell["batch_size"] == 8)
    assert re.fullmatch(r"n1-b8-text_it_s_HOME_[0-9a-f]{6}-s5", folder.name)
    seen = load(folder / "seen.json")
    arguments = ["--epochs", "3", "--batch-size", "8", "--seed", "5", "--text", "it's $HOME", "--width", "9"]
    assert (seen["argv"], seen["cwd"], seen["environment"]) == (arguments, str(room), "a b'c")
    written = load(folder / "cell.json")
    assert written.pop("hash")
    assert written == {
        "name": folder.name,
        "study": "toy",
        "job": str(room / "toy.py"),
        "workload": "toy",
        "gpus": 1,
        "gpu_type": None,
        "batch_size": 8,
        "lr_rule": "auto",
        "seed": 5,
        "epochs": 3,
        "settings": {"text": "it's $HOME"},
        "arguments": arguments,
        "extra_arguments": ["--width", "9"],
        "environment": {"TOY_VARIABLE": "a b'c"},
        "shape": {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": 0},
        "launcher": "auto",
        "cluster": "local",
    }
    assert load(folder / "result.json")["status"] == "completed"
    log = (folder / "log" / "job.log").read_text().splitlines()
    assert re.fullmatch(rf"=== {re.escape(folder.name)}: attempt 1, 1 rank, .* ===", log[0])
    assert "epoch 3 is done" in log
    assert f"[1/2] {folder.name}: completed: 3 epochs in " in done.stdout
    assert re.search(rf"^{re.escape(folder.name)} +completed +3/3 +0.5 +2,000 +0.833$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("next: python -m analysis report runs/toy\n")


def test_dry_run_prints_the_bytes_that_run(submit: Submit, room: Path) -> None:
    before = os.listdir(room)
    request = ("--gpus", "1", "--seeds", "2", "--set", 'text=é "$x"', "--stall-timeout", "60")
    printed = submit(*request, "--dry-run").stdout
    assert os.listdir(room) == before
    assert submit(*request).returncode == 0
    expected = ""
    for cell in record.read_study(room / "runs" / "toy"):
        expected += f"#### {cell.folder.name}: runs/toy/{cell.folder.name}/script.sh\n"
        expected += (cell.folder / "script.sh").read_text()
    assert printed == expected


def test_study_json(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1").returncode == 0
    assert submit("--gpus", "1", "--seeds", "1").returncode == 0
    study = load(room / "runs" / "toy" / "study.json")
    assert study["study"] == "toy"
    first, second = study["requests"]
    assert first["argv"] == ["--job", "toy.py", "--gpus", "1"]
    assert second["argv"] == ["--job", "toy.py", "--gpus", "1", "--seeds", "1"]
    assert study["created"] == first["created"] <= second["created"]
    assert first["git"]["job"] is None
    assert first["versions"]["python"]
    assert first["versions"]["hvdtrain"]
    assert {"torch", "tensorflow", "horovod"} <= first["versions"].keys()


def test_the_jobs_commit_is_recorded(submit: Submit, room: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=room, check=True)
    subprocess.run(["git", "add", "toy.py"], cwd=room, check=True)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, "commit", "-qm", "x", "--allow-empty"], cwd=room, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=room, check=True, capture_output=True, text=True
    ).stdout.strip()
    assert submit("--gpus", "1").returncode == 0
    (room / "toy.py").write_text((room / "toy.py").read_text() + "\n# changed\n")
    assert submit("--gpus", "1", "--seeds", "1").returncode == 0
    clean, dirty = (request["git"]["job"] for request in load(room / "runs" / "toy" / "study.json")["requests"])
    assert (clean["commit"], clean["dirty"]) == (head, False)
    assert (dirty["commit"], dirty["dirty"]) == (head, True)


def test_a_second_call_runs_what_is_new(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1", "--seeds", "1").returncode == 0
    stamp = (room / "runs/toy/n1-s0/result.json").read_bytes()
    done = submit("--gpus", "1", "--seeds", "2")
    assert done.returncode == 0
    assert "study runs/toy: 2 cells: 1 to run, 1 finished already" in done.stdout
    assert (room / "runs/toy/n1-s0/result.json").read_bytes() == stamp
    assert not (room / "runs/toy/n1-s0/attempts").exists()
    assert load(room / "runs/toy/n1-s1/result.json")["status"] == "completed"


def test_another_configuration_changes_nothing(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1", "--epochs", "2").returncode == 0
    before = {path: path.read_bytes() for path in room.rglob("*") if path.is_file() and path.name != ".lock"}
    done = submit("--gpus", "1", "--seeds", "1", "--epochs", "2")  # n1-s0: the same as n1
    assert "n1-s0 is the same configuration as n1" in done.stdout
    done = submit("--gpus", "1", "--epochs", "3")
    assert done.returncode == 2
    assert "another configuration: epochs 2 -> 3" in done.stderr
    assert "--study toy-2" in done.stderr
    after = {path: path.read_bytes() for path in room.rglob("*") if path.is_file() and path.name != ".lock"}
    changed = {path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {"study.json"}  # the second request, which was legal
    assert submit("--gpus", "1", "--epochs", "3", "--study", "toy-2").returncode == 0


def test_a_failed_cell(submit: Submit, room: Path) -> None:
    done = submit("--gpus", "1", "--set", "fail-at=2,9")
    assert done.returncode == 1
    assert load(room / "runs/toy/n1-fail-at2/result.json")["status"] == "failed"
    assert load(room / "runs/toy/n1-fail-at9/result.json")["status"] == "completed"
    assert "[1/2] n1-fail-at2: failed: " in done.stdout
    assert "  log: runs/toy/n1-fail-at2/log/job.log; its last lines:\n    | epoch 1 is done\n" in done.stdout
    assert "    | epoch 2 caught fire\n" in done.stdout
    assert re.search(r"^n1-fail-at2 +failed +1/2 ", done.stdout, re.MULTILINE)
    assert "--retry-failed" in done.stdout

    again = submit("--gpus", "1", "--set", "fail-at=2,9")
    assert again.returncode == 1
    assert "0 to run, 1 finished already, 1 failed before" in again.stdout
    assert "n1-fail-at2 failed in an earlier call: " in again.stdout

    toy = room / "toy.py"
    toy.write_text(toy.read_text().replace("if epoch == options.fail_at:", "if False:"))
    repaired = submit("--gpus", "1", "--set", "fail-at=2,9", "--retry-failed")
    assert repaired.returncode == 0
    folder = room / "runs/toy/n1-fail-at2"
    assert load(folder / "result.json")["status"] == "completed"
    assert load(folder / "attempts/1/result.json")["status"] == "failed"
    assert len(record.read_epochs(folder / "attempts/1/epochs.jsonl")) == 1
    log = (folder / "log/job.log").read_text()
    assert log.index("attempt 1") < log.index("caught fire") < log.index("attempt 2")


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", "ended by signal 9 (SIGKILL)"),
        ("(folder / 'epochs.jsonl').write_text('nonsense\\n'); sys.exit(3)", "not an epoch record"),
    ],
    ids=["launcher-killed", "nonsense-in-epochs"],
)
def test_an_end_that_nobody_recorded(submit: Submit, room: Path, ending: str, reason: str) -> None:
    toy = room / "toy.py"
    toy.write_text(toy.read_text().replace("log = record", f"{ending}\nlog = record", 1))
    done = submit("--gpus", "1")
    assert done.returncode == 1, done.stdout
    result = load(room / "runs/toy/n1/result.json")
    assert result["status"] == "failed"
    assert reason in result["reason"]
    assert not (room / "runs/toy/n1/running.json").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(load(room / "runs/toy/n1/seen.json")["pid"], 0)


def test_a_launcher_that_never_starts(submit: Submit, room: Path) -> None:
    done = submit("--gpus", "1", "--env", "PYTHONHOME=/nowhere")
    assert done.returncode == 1
    result = load(room / "runs/toy/n1/result.json")
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert result["reason"].startswith("exit status 1: ")


def test_trouble_with_the_disk_in_the_middle(submit: Submit, room: Path) -> None:
    assert submit("--gpus", "1", "--set", "fail-at=1").returncode == 1
    (room / "runs/toy/n1-fail-at1/attempts").write_text("a file where a folder must be")
    done = submit("--gpus", "1", "--set", "fail-at=1", "--retry-failed")
    assert done.returncode == 1
    assert "error: stopped: cannot write " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cell_in_which_a_training_works_already_is_left_alone(submit: Submit, room: Path) -> None:
    """Its script was started by hand."""
    request = ("--gpus", "1", "--seeds", "2")
    study = room / "runs" / "toy"
    submit(*request, "--set", "fail-at=1", "--study", "toy")
    first, second = study / "n1-fail-at1-s0", study / "n1-fail-at1-s1"
    (first / "result.json").unlink()
    lock = take(first)
    assert lock is not None
    with closing(lock):
        (first / "running.json").write_text("{}")
        before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
        done = submit(*request, "--set", "fail-at=1", "--study", "toy", "--retry-failed")
        assert (done.returncode, done.stderr) == (1, "")
        assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    assert "[1/2] n1-fail-at1-s0: not started: another training works in " in done.stdout
    assert "give another --study" in done.stdout
    assert (second / "attempts" / "1").exists()


def test_more_ranks_than_cores_are_said_once(submit: Submit) -> None:
    ranks = cores() + 1
    done = submit("--gpus", f"1,{ranks}", "--env", "PYTHONHOME=/nowhere")  # ends before any rank starts
    assert done.stdout.count(f"note: {ranks} ranks share ") == 1


def test_then_report_runs_even_after_a_failure(submit: Submit, room: Path) -> None:
    (room / "analysis").mkdir()
    (room / "analysis" / "__init__.py").write_text("")
    (room / "analysis" / "__main__.py").write_text("import sys\nprint('REPORT ON', sys.argv[1:])\n")
    done = submit("--gpus", "1", "--set", "fail-at=1", "--then-report")
    assert done.returncode == 1
    assert done.stdout.endswith("REPORT ON ['report', 'runs/toy']\n")
    assert "next:" not in done.stdout
    (room / "analysis" / "__main__.py").write_text("import sys\nsys.exit(5)\n")
    done = submit("--gpus", "1", "--study", "other", "--then-report")
    assert done.returncode == 1
    assert "the report ended with exit status 5" in done.stderr


def test_an_absolute_out_and_a_job_in_another_folder(submit: Submit, room: Path, tmp_path: Path) -> None:
    out = tmp_path / "far $away"
    assert submit("--gpus", "1", "--out", str(out), "--study", "my study").returncode == 0
    assert load(out / "my study" / "n1" / "result.json")["status"] == "completed"
    assert not (room / "runs").exists()
