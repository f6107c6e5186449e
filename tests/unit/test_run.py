"""`python -m hvdtrain.run`: one rank of a job, here alone; how it ends and what is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hvdtrain.run
from hvdtrain.record import read_json
from tests.unit.starting import environment, eventually, run, script, started


@pytest.mark.parametrize(
    ("text", "status", "outcome", "reason", "said"),
    [
        ("pass", 0, "completed", "", ""),
        ("raise SystemExit", 0, "completed", "", ""),
        ("import sys; sys.exit(0)", 0, "completed", "", ""),
        ("import sys; sys.exit(4)", 4, "failed", "the job called sys.exit(4)", ""),
        ("import sys; sys.exit('no data')", 1, "failed", "no data", "no data\n"),
        ("import sys; sys.exit(ValueError('bad split'))", 1, "failed", "bad split", "bad split\n"),
        ("import sys; sys.exit(2.5)", 1, "failed", "2.5", "2.5\n"),
        (
            "from hvdtrain.errors import UserError; raise UserError('no folder data')",
            2, "failed", "no folder data", "error: no folder data\n",
        ),
        (
            "from hvdtrain.errors import Diverged; raise Diverged('the loss is nan')",
            1, "diverged", "the loss is nan", "error: the loss is nan\n",
        ),
        ("raise KeyboardInterrupt", 130, "cancelled", "interrupted", ""),
    ],
)  # fmt: skip
def test_how_a_job_ends(tmp_path: Path, text: str, status: int, outcome: str, reason: str, said: str) -> None:
    ended = run("hvdtrain.run", "--run-dir", tmp_path / "run", script(tmp_path, text))
    assert (ended.returncode, ended.stderr) == (status, said)
    result = read_json(tmp_path / "run" / "result.json")
    assert result is not None
    assert (result["status"], result["exit_code"], result["reason"]) == (outcome, status, reason)


def test_a_traceback_begins_in_the_job(tmp_path: Path) -> None:
    job = script(tmp_path, "def load():\n    raise ValueError('bad\\nfile')\n\nload()\n")
    ended = run("hvdtrain.run", "--run-dir", tmp_path / "run", job)
    assert ended.returncode == 1
    frames = [line for line in ended.stderr.splitlines() if line.startswith("  File")]
    assert frames == [f'  File "{job}", line 4, in <module>', f'  File "{job}", line 2, in load']
    result = read_json(tmp_path / "run" / "result.json")
    assert result is not None and result["reason"] == "ValueError: bad\nfile"


def test_a_syntax_error_shows_the_line(tmp_path: Path) -> None:
    ended = run("hvdtrain.run", script(tmp_path, "x = 1\nfor in x:\n"))
    assert ended.returncode == 1
    assert "line 2" in ended.stderr and "SyntaxError" in ended.stderr


def test_a_job_runs_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 42")
    job = script(tmp_path, "import beside, sys, os\nprint(beside.value, sys.argv, __name__, __file__, os.getcwd())")
    ended = run("hvdtrain.run", job, "--run-dir", "x", "--epochs", "3", "-h")
    expected = f"42 {[str(job), '--run-dir', 'x', '--epochs', '3', '-h']} __main__ {job} {os.getcwd()}\n"
    assert (ended.returncode, ended.stdout) == (0, expected)
    # Not its own --run-dir: nothing was recorded.
    assert not Path("x").exists()


def test_the_run_folder_may_come_from_the_environment(tmp_path: Path) -> None:
    ended = run("hvdtrain.run", script(tmp_path, "pass"), HVDTRAIN_RUN_DIR=str(tmp_path / "run"))
    assert ended.returncode == 0
    assert sorted(os.listdir(tmp_path / "run")) == [".run.lock", "result.json"]


def test_other_ranks_have_logs_and_record_no_result(tmp_path: Path) -> None:
    place = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    job = script(tmp_path, "import os\nprint('by python')\nos.system('echo by a child')\nraise OSError('gone')")
    variables = {f"HOROVOD_{name}": value for name, value in place.items()}
    for _ in range(2):
        ended = run("hvdtrain.run", "--run-dir", tmp_path / "run", job, **variables)
        assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
    assert os.listdir(tmp_path / "run") == ["log"]
    log = (tmp_path / "run" / "log" / "rank-1.log").read_text()
    # Appended to: a requeued job keeps what its first run said.
    assert log.count("by python\n") == log.count("by a child\n") == log.count("OSError: gone\n") == 2


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["digitz"], {}, ['no job "digitz"', 'did you mean "digits"?']),
        (["no.py"], {}, ['job file "no.py" does not exist', os.getcwd()]),
        (
            ["digits"],
            {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"},
            ["4 tasks", "srun --kill-on-bad-exit=1 python -m hvdtrain.run"],
        ),
        (["digits"], {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "two"}, ["HOROVOD_SIZE=two is not a whole number"]),
    ],
)
def test_mistakes(
    arguments: list[str],
    variables: dict[str, str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hvdtrain.run.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert [word for word in words if word not in err] == []


def test_ctrl_c_is_a_cancellation(tmp_path: Path) -> None:
    up = tmp_path / "up"
    job = script(tmp_path, f"import time, pathlib\npathlib.Path({str(up)!r}).touch()\ntime.sleep(60)")
    with started("-m", "hvdtrain.run", "--run-dir", tmp_path / "run", job) as process:
        assert eventually(up.exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    result = read_json(tmp_path / "run" / "result.json")
    assert result is not None and result["status"] == "cancelled"


@pytest.mark.parametrize(
    ("raises", "status", "outcome", "reason"),
    [
        ("hvdtrain.stop.Stopped('SIGTERM came', 15)", 75, "preempted", "SIGTERM came"),
        ("SystemExit('no data')", 1, "failed", "no data"),
        ("hvdtrain.errors.Diverged('the loss is nan')", 1, "diverged", "the loss is nan"),
        ("ValueError('bad split')", 1, "failed", "ValueError: bad split"),
    ],
)
def test_an_end_is_recorded_though_the_terminal_was_closed(
    tmp_path: Path, raises: str, status: int, outcome: str, reason: str
) -> None:
    """Which then takes no message."""
    master, terminal = os.openpty()
    os.close(master)
    job = script(tmp_path, f"import hvdtrain.errors, hvdtrain.stop\nraise {raises}")
    command = [sys.executable, "-m", "hvdtrain.run", "--run-dir", tmp_path / "run", job]
    with open(terminal, "w") as closed:
        ended = subprocess.run(command, env=environment(), stdout=closed, stderr=closed, timeout=30, check=False)
    result = read_json(tmp_path / "run" / "result.json") or {}
    assert (result.get("status"), result.get("reason"), ended.returncode) == (outcome, reason, status)
