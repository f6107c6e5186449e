"""Faults that were found by breaking things on purpose, each held down by a test."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdtrain import attempts, record
from hvdtrain import world as worlds
from hvdtrain.errors import UserError
from hvdtrain.launch.control import Supervisor
from hvdtrain.launch.launchers import REGISTRY, Request
from hvdtrain.world import World, expand_hostlist
from tests.worlds import run_world, still_running


def script(folder: Path, text: str) -> Path:
    path = folder / "job.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("status", [200, 255])
def test_an_exit_status_that_is_no_signal(tmp_path: Path, status: int) -> None:
    ended = run_world(1, script(tmp_path, f"raise SystemExit({status})"), options=["--run-dir", str(tmp_path / "run")])
    assert ended.status == status
    assert "Traceback" not in ended.err


@pytest.mark.ranks
@pytest.mark.parametrize("mistake", [True, False])
def test_a_plain_script_shows_a_mistake_without_a_traceback(tmp_path: Path, mistake: bool) -> None:
    act = "ht.loader([1], 0, seed=0)" if mistake else "[][1]"
    job = script(tmp_path, f"import hvdtrain.torch as ht\nht.init()\n{act}\n")
    ended = subprocess.run(
        [sys.executable, job], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: a batch has at least one sample" if mistake else "Traceback"), ended.stderr
    assert ("Traceback" in ended.stderr) != mistake


def test_a_rank_zero_that_completed_does_not_hide_that_another_failed(tmp_path: Path) -> None:
    job = script(tmp_path, "import os, sys\nsys.exit(3 * int(os.environ['HOROVOD_RANK'] == '1'))")
    ended = run_world(2, job, options=["--launcher", "local", "--run-dir", str(tmp_path / "run")])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (ended.status, result["status"], result["exit_code"]) == (3, "failed", 3)


def test_a_run_folder_used_again_keeps_both_results(tmp_path: Path) -> None:
    for status in (0, 5):
        run_world(1, script(tmp_path, f"raise SystemExit({status})"), options=["--run-dir", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["exit_code"] == 5
    assert json.loads((tmp_path / "run" / "attempts" / "1" / "result.json").read_text())["exit_code"] == 0


def test_what_a_single_rank_started_ends_with_it(tmp_path: Path) -> None:
    mark = f"{tmp_path}/mark"
    child = f"[{sys.executable!r}, '-c', 'import time; time.sleep(60)', {mark!r}]"
    job = script(tmp_path, f"import subprocess\nsubprocess.Popen({child})")
    assert run_world(1, job).status == 0
    time.sleep(0.2)
    assert not still_running(mark)


def test_a_reason_given_to_exit_is_the_reason(tmp_path: Path) -> None:
    run_world(
        1, script(tmp_path, "import sys\nsys.exit('no data in /scratch')"), options=["--run-dir", str(tmp_path / "run")]
    )
    assert json.loads((tmp_path / "run" / "result.json").read_text())["reason"] == "no data in /scratch"


def join(supervisor: Supervisor, rank: int, last_call: bool = False) -> str:
    place = {"node": "a", "size": supervisor.size, "local_rank": rank, "local_size": supervisor.size}
    message = {"rank": rank, "place": place, "pid": rank, "problem": "", "versions": {}, "last_call": last_call}
    return str(supervisor.answer("join", message)["state"])


def test_a_refused_world_stays_refused() -> None:
    supervisor = Supervisor(3, 60.0)
    assert join(supervisor, 0, last_call=True) == "refused"
    assert join(supervisor, 1) == "refused"
    assert join(supervisor, 2) == "refused"


def test_a_second_stall_does_not_show_the_stack_of_the_first() -> None:
    now = [0.0]
    supervisor = Supervisor(2, 60.0, clock=lambda: now[0])
    assert join(supervisor, 0) == "waiting"
    assert join(supervisor, 1) == "ready"

    def beat(rank: int, beats: int, waiting: bool) -> None:
        message = {"node": "a", "step": beats, "beats": beats, "activity": "training", "waiting": waiting}
        supervisor.answer("beat", {"rank": rank, **message})

    beat(0, 1, True)
    beat(1, 1, False)
    now[0] = 61.5
    supervisor.check()
    supervisor.answer("stack", {"rank": 1, "stack": "OLD"})
    beat(1, 2, False)
    beat(0, 2, True)
    now[0] += 60.5
    assert supervisor.check() is None
    now[0] += 4.0
    verdict = supervisor.check()
    assert verdict is not None
    assert "OLD" not in verdict.details


def test_nobody_present_is_no_stall() -> None:
    now = [0.0]
    supervisor = Supervisor(2, 60.0, clock=lambda: now[0])
    now[0] = 1000.0
    assert supervisor.check() is None


def test_srun_starts_as_many_ranks_as_asked_for() -> None:
    assert "--ntasks=4" in REGISTRY["gloo"].command(Request(4, ["job"]))
    with pytest.raises(UserError, match="5 ranks do not divide evenly over 2 nodes"):
        REGISTRY["gloo"].command(Request(5, ["job"], nodes=2))


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"HOROVOD_RANK": "1"}, "HOROVOD_SIZE is not set"),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "x"}, "SLURM_NTASKS=x is not a whole number"),
        ({"HOROVOD_RANK": "²"}, "HOROVOD_RANK=² is not a whole number"),
        (
            {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")},
            "the launcher's variables disagree",
        ),
    ],
)
def test_variables_that_make_no_world(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        worlds.detect(environ)


@pytest.mark.parametrize("text", ["node[1-2", "n[4-2]", "n1-2]", "n[a]"])
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(UserError, match="is not a host list"):
        expand_hostlist(text)


def test_one_rank_alone_takes_the_first_of_several_gpus() -> None:
    assert worlds.choose_device(4, World(0, 1, 0, 1, 0, 1, "node", "cpu", "none")) == "cuda:0"


def test_a_command_that_cannot_be_started() -> None:
    command = [sys.executable, "-m", "hvdtrain.launch.local", "-n", "1", "--", "/nonexistent"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "error: /nonexistent cannot be started (No such file or directory)\n"


def test_the_line_of_a_damaged_record_counts_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    path.write_text('{"epoch": 1}\n\n{\n')
    with pytest.raises(ValueError, match="line 3"):
        record.read_epochs(path)
    path.write_text('{"epoch": "x"}\n')
    with pytest.raises(ValueError, match=r"line 1.*'x'"):
        record.read_epochs(path)


def test_attempts_with_a_gap_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "attempts" / "2").mkdir(parents=True)
    (tmp_path / "result.json").write_text("{}")
    attempts.set_aside(tmp_path)
    assert (tmp_path / "attempts" / "3" / "result.json").exists()


def test_ranks_that_never_met_are_told_of(tmp_path: Path) -> None:
    ended = run_world(2, script(tmp_path, "print('hello')"), options=["--launcher", "local"])
    assert ended.status == 0
    assert ended.err.count("its 2 ranks ran one by one, unsynchronised") == 1
    assert run_world(1, script(tmp_path, "print('hello')")).err == ""
