"""Worlds of every small size, powers of two or not: how Horovod's ranks agree on what to send depends on their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import run_cold_world, run_world

JOB = Path(__file__).with_name("small_job.py")
pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("launcher", "ranks"), [("local", 3), ("local", 6), ("mpirun", 3), ("mpirun", 5), ("mpirun", 7)]
)
def test_messages_arrive(launcher: str, ranks: int) -> None:
    ended = run_world(ranks, JOB, options=["--launcher", launcher])
    assert ended.status == 0, ended.err
    assert f"{ranks} ranks agree" in ended.out


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("OMPI_MCA_btl_tcp_eager_limit", None, "1052672"),
        ("OMPI_MCA_btl_tcp_eager_limit", "70000", "70000"),
        ("HOROVOD_FUSION_THRESHOLD", None, "4194304"),
        ("HOROVOD_FUSION_THRESHOLD", "1000000", "1000000"),
    ],
)
def test_limits_of_messages_are_ours_unless_the_user_says_otherwise(
    name: str, given: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, given) if given else monkeypatch.delenv(name, raising=False)
    script = tmp_path / "settings.py"
    script.write_text(f"import os\nimport hvdtrain.torch as ht\nht.init()\nprint('limit', os.environ[{name!r}])\n")
    ended = run_cold_world(2, script, options=["--launcher", "mpirun"])
    assert ended.status == 0, ended.err
    assert ended.out.count(f"limit {expected}") == 2, ended.out


def test_ddp_leaves_before_the_interpreter_does() -> None:
    """Else a thread that gives back the last tensor may find no interpreter any more, and abort."""
    ended = run_cold_world(3, JOB, "--strategy", "ddp", options=["--launcher", "local"])
    assert ended.status == 0, ended.err
    assert "group alive at the end: False" in ended.out


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_what_all_ranks_found_is_said_by_rank_0_however_late_it_is(launcher: str, tmp_path: Path) -> None:
    """mpirun ends all ranks as soon as one has left with a status."""
    script = tmp_path / "mistaken.py"
    script.write_text(
        "import time\nimport hvdtrain.torch as ht\nfrom hvdtrain.errors import UserError, agreed\n"
        "if ht.init().rank == 0:\n    time.sleep(2)\nraise agreed(UserError('the same mistake'))\n"
    )
    ended = run_cold_world(3, script, options=["--launcher", launcher])
    assert ended.status == 2
    assert ended.err.count("error: the same mistake") == 1, ended.err
