"""What of a grid runs when its study exists already; and the lock. Pure, but for the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.errors import UserError
from hvdtrain.submit.cell import Cell, Shape
from hvdtrain.submit.lock import StudyLock, in_use
from hvdtrain.submit.study import Known, keep_launchers, plan


def cell(name: str = "n2", **more: object) -> Cell:
    plain = {"name": name, "study": "toy", "job": "/toy.py", "workload": "toy", "gpus": 2, "shape": Shape(1, 2, 0)}
    return Cell(**{**plain, "launcher": "auto", "cluster": "local", **more})  # type: ignore[arg-type]


def known(status: str | None, **more: object) -> dict[str, Known]:
    return {"n2": Known(cell(**more).record(), status)}


@pytest.mark.parametrize("status", [None, "cancelled", "preempted"])
def test_what_was_interrupted_runs_again(status: str | None) -> None:
    found = plan([cell()], known(status), "toy", retry_failed=False)
    assert [each.name for each in found.run] == ["n2"]


@pytest.mark.parametrize("status", ["failed", "timeout", "diverged"])
def test_what_failed_runs_again_only_when_asked(status: str) -> None:
    found = plan([cell()], known(status), "toy", retry_failed=False)
    assert (found.run, found.failed) == ((), ("n2",))
    found = plan([cell()], known(status), "toy", retry_failed=True)
    assert ([each.name for each in found.run], found.failed) == (["n2"], ())


@pytest.mark.parametrize("retry", [False, True])
def test_what_is_finished_never_runs_again(retry: bool) -> None:
    found = plan([cell(), cell("n4", gpus=4)], known("completed"), "toy", retry_failed=retry)
    assert (found.finished, [each.name for each in found.run]) == (("n2",), ["n4"])


def test_another_configuration_of_the_same_name() -> None:
    with pytest.raises(UserError) as caught:
        plan([cell(epochs=20)], known("completed", epochs=10), "toy", retry_failed=True)
    assert "already has a cell n2 with another configuration: epochs 10 -> 20. Nothing was changed" in str(caught.value)
    assert "--study toy-2" in str(caught.value)


def test_the_same_configuration_under_another_name() -> None:
    found = plan([cell("n2-b32", batch_size=32)], known("completed", batch_size=32), "toy", retry_failed=False)
    assert (found.run, found.finished) == ((), ("n2",))
    assert found.notes == ("n2-b32 is the same configuration as n2, which the study has already",)


def test_a_launcher_that_nobody_named_is_the_one_that_the_study_has() -> None:
    asked = [cell(launcher="gloo"), cell("n2-b32", batch_size=32, launcher="gloo"), cell("n8", gpus=8, launcher="gloo")]
    has = {
        **known("completed", launcher="pmix"),
        "n2-b": Known(cell(batch_size=32, launcher="pmix").record(), "completed"),
    }
    cells, notes = keep_launchers(asked, has)
    assert [(each.name, each.launcher) for each in cells] == [("n2", "pmix"), ("n2-b32", "pmix"), ("n8", "gloo")]
    (note,) = notes
    assert note == (
        "launcher pmix stays with what the study has (n2, n2-b32); other cells take gloo: for pmix there too give --launcher pmix"
    )
    found = plan(cells, has, "toy", retry_failed=False)
    assert (found.finished, [each.name for each in found.run]) == (("n2", "n2-b"), ["n8"])
    assert keep_launchers(asked, {}) == (asked, [])


def test_the_lock_is_for_one(tmp_path: Path) -> None:
    assert not in_use(tmp_path)
    with StudyLock(tmp_path):
        assert in_use(tmp_path)
        with pytest.raises(UserError, match=f"in use by another submit .process {os.getpid()} "):
            StudyLock(tmp_path)
    assert not in_use(tmp_path)
    StudyLock(tmp_path).close()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    text = (
        "import pathlib, sys, time\nfrom hvdtrain.submit.lock import StudyLock\n"
        "lock = StudyLock(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert in_use(tmp_path)
        holder.kill()
        holder.wait()
        StudyLock(tmp_path).close()


def test_a_cell_that_outlives_its_submit_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdtrain.lock.ORPHAN_SECONDS", 0.3)
    lock = StudyLock(tmp_path)
    with subprocess.Popen(["sleep", "60"], pass_fds=[lock.descriptor]) as orphan:
        lock.describe(group=4711)
        dead = subprocess.Popen(["true"])
        dead.wait()
        facts = json.loads((tmp_path / ".lock").read_text())
        (tmp_path / ".lock").write_text(json.dumps({**facts, "pid": dead.pid}))
        lock.close()
        with pytest.raises(UserError, match="kill -- -4711"):
            StudyLock(tmp_path)
        orphan.kill()
    StudyLock(tmp_path).close()
