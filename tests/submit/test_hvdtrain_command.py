"""The `hvdtrain` command and its `status`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from submit_helpers import TOY, Submit, hvdtrain_in, plain_environment

import hvdtrain
from hvdtrain import record
from hvdtrain.__main__ import COMMANDS
from hvdtrain.__main__ import main as hvdtrain_main
from hvdtrain.errors import UserError, run_cli
from hvdtrain.submit import status, summary
from hvdtrain.submit.lock import StudyLock


def test_version(tmp_path: Path) -> None:
    assert hvdtrain_in(tmp_path, "--version").stdout == f"hvdtrain {hvdtrain.__version__}\n"


def test_help_names_every_command(tmp_path: Path) -> None:
    done = hvdtrain_in(tmp_path, "--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        ended: object = hvdtrain_main([name, "--help"])
    except SystemExit as left:
        ended = left.code
    told = capsys.readouterr().out
    assert (ended, told.startswith("usage: ")) == (0, True)
    assert name != "testcluster" or "up|down|status|exec|run" in told


def test_no_command(tmp_path: Path) -> None:
    done = hvdtrain_in(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hvdtrain COMMAND [options]" in done.stderr


def test_an_unknown_command(tmp_path: Path) -> None:
    done = hvdtrain_in(tmp_path, "sumbit", "--gpus", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('error: there is no command "sumbit"; the commands are submit, ')
    assert done.stderr.endswith('did you mean "submit"?\n')


def test_submit_is_the_same_as_the_module(room: Path) -> None:
    arguments = ["--job", "toy.py", "--gpus", "2,4", "--dry-run"]
    module = [sys.executable, "-m", "hvdtrain.submit", *arguments]
    expected = subprocess.run(
        module, cwd=room, env=plain_environment(), capture_output=True, text=True, check=True
    ).stdout
    assert hvdtrain_in(room, "submit", *arguments).stdout == expected != ""


def test_a_user_error_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: object) -> int:
        raise UserError(f"not {argv}")

    assert run_cli(main, ["this"]) == 2
    assert capsys.readouterr() == ("", "error: not ['this']\n")


def test_head_is_enough(room: Path) -> None:
    submit = f"{sys.executable} -m hvdtrain.submit --job toy.py --gpus 1 --seeds 900 --dry-run"
    pipeline = f"{submit} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", pipeline], cwd=room, env=plain_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["#### n1-s0: runs/toy/n1-s0/script.sh", "1"]
    assert done.stderr == ""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study in every state, as its files say."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "digits"
    record.write_json(folder / "study.json", {"study": "digits"})
    for name in ("n16", "n2", "n4", "n8"):
        record.write_json(folder / name / "cell.json", {"name": name, "epochs": 10, "cluster": "local"})
    for name in ("n4", "n8", "n16"):
        record.begin(folder / name, {})
        record.EpochLog(folder / name / "epochs.jsonl").append(record.Epoch(1, val_acc=0.9, seconds=2.0))
    record.finish(folder / "n8", "failed", 1, "it broke")
    record.finish(folder / "n16", "completed", 0)
    return folder


def test_status_of_a_study_in_use(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StudyLock(study):
        assert hvdtrain_main(["status", "digits"]) == 0
    lines = [re.split(r"\s+", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["cell", "status", "epochs", "s/epoch", "samples/s", "val_acc"],
        ["n2", "pending", "0/10", "-", "-", "-"],
        ["n4", "running", "1/10", "2", "-", "0.900"],
        ["n8", "failed", "1/10", "2", "-", "0.900"],
        ["n16", "completed", "1/10", "2", "-", "0.900"],
        [""],
        ["n8", "failed:", "it", "broke"],
    ]


def test_status_when_nobody_works_on_it(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main([str(study), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in rows] == ["pending", "interrupted", "failed", "completed"]
    assert rows[2]["reason"] == "it broke"
    assert rows[1]["epochs"] == 1
    assert rows[1]["epochs_total"] == 10


@pytest.mark.parametrize("command", [["status", "--watch"], ["logs", "-f"]])
def test_nothing_is_waited_for_in_a_study_that_was_stopped(
    study: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def goes_on(seconds: float) -> None:
        raise AssertionError("it waits for a cell that nobody runs")

    monkeypatch.setattr("time.sleep", goes_on)
    (study / ".lock").touch()
    assert hvdtrain_main([*command, "digits"]) == 0


@pytest.mark.parametrize("command", [["status", "--watch"], ["logs", "-f", "digits", "n2"]])
def test_guard_a_cell_that_is_yet_to_run_is_waited_for(
    study: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    class Waits(Exception):
        pass

    def waits(seconds: float) -> None:
        raise Waits

    for name in ("n4", "n8", "n16"):
        record.finish(study / name, "completed", 0)
    monkeypatch.setattr("time.sleep", waits)
    with StudyLock(study), pytest.raises(Waits):
        hvdtrain_main(command if "digits" in command else [*command, "digits"])


def test_status_of_no_study(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main(["digist"]) == 2
    assert 'studies in runs: digits; did you mean "digits"?' in capsys.readouterr().err


def test_status_of_a_damaged_record(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study / "n4" / "epochs.jsonl").write_text("nonsense\n")
    assert status.main(["digits"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"note: .*n4/epochs.jsonl, line 1: not an epoch record .*: no epoch of n4 is shown", shown.err)
    assert re.search(r"^n4 +", shown.out, re.MULTILINE)
    (study / "n4" / "result.json").write_text("{")
    assert status.main(["digits"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_status_of_a_real_study(submit: Submit, room: Path) -> None:
    assert "record.begin" in TOY
    assert submit("--gpus", "1").returncode == 0
    done = hvdtrain_in(room, "status", "toy")
    assert done.returncode == 0
    assert re.search(r"^n1 +completed +2/2 ", done.stdout, re.MULTILINE)


def test_reasons_may_hold_names_that_are_no_utf_8(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"cell": "n1", "status": "failed", "reason": "/data/caf\udce9 does not exist"}]
    summary.print_reasons(rows)
    assert "n1 failed: /data/caf\ufffd does not exist" in capsys.readouterr().out
