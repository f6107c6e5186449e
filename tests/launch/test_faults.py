"""What a user sees when a rank fails: one clear message with the cause, all ranks ended soon, nothing left behind."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.worlds import Ended, run_cold_world, still_running

JOB = Path(__file__).with_name("faulty_job.py")
# Three ranks import what the first step needs in up to nine seconds when other work takes the cores; the first step has twice this.
STALL = 6
# Quiet machines need 0.3 to 3 seconds from a fault to the end. The bound only tells an end from none: ranks that wait for Horovod's
# own time-out take 300 seconds, a stalled one for ever.
SOON = 40
pytestmark = [pytest.mark.ranks, pytest.mark.faults]


def run(tmp_path: Path, launcher: str, fault: str, rank: int, *options: str, **environment: str) -> tuple[Ended, float]:
    """A world of three with a fault; returns how it ended, and how many seconds after the fault."""
    mark = tmp_path / "mark"
    run_dir = tmp_path / "run"
    arguments = ["--fault", fault, "--rank", rank, "--mark", mark]
    common = ["--launcher", launcher, "--run-dir", str(run_dir), "--stall-timeout", str(STALL), *options]
    ended = run_cold_world(3, JOB, *arguments, options=common, **environment)
    after = time.time() - mark.stat().st_mtime if mark.exists() else float("nan")
    assert not still_running(str(mark)), "processes were left behind"
    assert not list(tmp_path.rglob("core*"))
    return ended, after


def result(tmp_path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((tmp_path / "run" / "result.json").read_text())
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_under_gloo(tmp_path: Path, rank: int) -> None:
    ended, after = run(tmp_path, "local", "sigkill", rank)
    assert ended.status == 128 + 9
    assert after < SOON
    assert f"rank {rank}" in ended.err
    assert "died without a word" in ended.err
    assert ended.err.count("died without a word") == 1
    assert f"rank {rank} was killed by SIGKILL" in ended.err
    assert result(tmp_path)["status"] == "failed"
    assert f"rank {rank}" in str(result(tmp_path)["reason"])


def test_a_killed_rank_under_mpi(tmp_path: Path) -> None:
    ended, after = run(tmp_path, "mpirun", "sigkill", 1)
    assert ended.status == 128 + 9
    assert after < SOON
    assert "process rank 1" in ended.err
    assert result(tmp_path)["status"] == "failed"


def test_a_crash_in_native_code(tmp_path: Path) -> None:
    ended, after = run(tmp_path, "local", "segfault", 2)
    assert ended.status == 128 + 11
    assert after < SOON
    assert "rank 2 was killed by SIGSEGV" in ended.err


@pytest.mark.parametrize(("launcher", "rank"), [("local", 1), ("local", 0), ("mpirun", 1)])
def test_the_traceback_of_the_rank_that_raised_comes_first(tmp_path: Path, launcher: str, rank: int) -> None:
    ended, after = run(tmp_path, launcher, "raise", rank)
    assert ended.status == 1
    assert after < SOON
    assert ended.err.startswith("hvdtrain: Traceback")
    assert "RuntimeError: the data of this rank are unreadable" in ended.err
    # It begins in the job's own file, and the other ranks' HorovodInternalError, a consequence, is not shown.
    assert "runpy" not in ended.err
    assert "HorovodInternalError" not in ended.err
    assert (
        result(tmp_path)["reason"]
        == f"rank {rank} on {node()} failed: RuntimeError: the data of this rank are unreadable"
    )


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_a_rank_that_calls_exit(tmp_path: Path, launcher: str) -> None:
    ended, after = run(tmp_path, launcher, "exit", 1)
    assert ended.status == 3
    assert after < SOON
    assert "sys.exit(3)" in ended.err


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_a_rank_that_sleeps_for_ever_is_named_with_its_stack(tmp_path: Path, launcher: str) -> None:
    ended, after = run(tmp_path, launcher, "sleep", 2)
    assert ended.status == 1
    assert after < STALL + SOON
    assert f"no rank has made progress for {STALL} s; behind: rank 2 on {node()}, last step 4" in ended.err
    assert "time.sleep(3600)" in ended.err


@pytest.mark.parametrize("rank", [0, 1])
def test_a_frozen_rank(tmp_path: Path, rank: int) -> None:
    ended, after = run(tmp_path, "local", "stop", rank)
    assert ended.status != 0
    # The stall, what a frozen process is given to answer, and the starter's grace before it kills it.
    assert after < 4 * STALL + SOON
    assert f"rank {rank} did not end by itself and was killed" in ended.err
    assert "frozen" in ended.err


def test_a_rank_that_dies_before_it_joins(tmp_path: Path) -> None:
    ended, after = run(tmp_path, "local", "die-before-init", 1, "--connect-timeout", "60")
    assert ended.status == 128 + 9
    assert after < SOON
    assert "rank 1 was killed by SIGKILL" in ended.err


def test_a_rank_that_never_joins_is_missed_by_number(tmp_path: Path) -> None:
    script = tmp_path / "absent.py"
    script.write_text(
        "import os, time\n"
        "if os.environ['HOROVOD_RANK'] == '1':\n    time.sleep(60)\n"
        "import hvdtrain.torch as ht\nht.init()\n"
    )
    ended = run_cold_world(
        3, script, options=["--launcher", "local", "--run-dir", str(tmp_path / "run"), "--connect-timeout", "20"]
    )
    assert ended.status == 2
    assert ended.seconds < 20 + SOON + 20
    assert "rank 1 of 3 did not arrive in time" in ended.err
    assert ended.err.count("did not arrive") == 1
    assert not still_running(str(script))


def test_a_server_that_starts_ten_seconds_late_is_waited_for(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ended = run_cold_world(
        2, JOB, "--fault", "late-server", "--steps", 20, options=["--launcher", "local", "--run-dir", str(run_dir)]
    )
    assert ended.status == 0, ended.err
    assert ended.seconds > 10
    assert "rank 0 finished" in ended.out
    assert result(tmp_path)["status"] == "completed"


def test_an_interface_that_does_not_exist_is_said_once(tmp_path: Path) -> None:
    ended = run_cold_world(
        3, JOB, options=["--launcher", "local", "--run-dir", str(tmp_path / "run")], HOROVOD_GLOO_IFACE="eth9"
    )
    assert ended.status == 2
    assert ended.err.count("HOROVOD_GLOO_IFACE=eth9") == 1
    assert "lo (127.0.0.1)" in ended.err
    assert "Traceback" not in ended.err
    assert "HOROVOD_GLOO_IFACE=eth9" in str(result(tmp_path)["reason"])


def test_a_proxy_in_the_environment_changes_nothing(tmp_path: Path) -> None:
    dead = "http://127.0.0.1:9"
    ended = run_cold_world(
        2, JOB, "--steps", 10, options=["--launcher", "local"], http_proxy=dead, HTTP_PROXY=dead, no_proxy=""
    )
    assert ended.status == 0, ended.err


def test_hierarchical_operations_asked_for_under_gloo_are_not_used(tmp_path: Path) -> None:
    ended = run_cold_world(2, JOB, "--steps", 10, options=["--launcher", "local"], HOROVOD_HIERARCHICAL_ALLREDUCE="1")
    assert ended.status == 0, ended.err


def node() -> str:
    import socket

    return socket.gethostname()
