"""The doctor's job on several nodes, without a cluster: threads of this process are its nodes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hvdtrain import errors
from hvdtrain.doctor import on_nodes
from hvdtrain.launch import network
from hvdtrain.launch.network import Interface


def together(place: Path, first: float, second: float) -> dict[str, str]:
    """What the two nodes of a job conclude of reaching each other, each after so many seconds of looking around."""

    def examine(seconds: float) -> list[dict[str, Any]]:
        time.sleep(seconds)
        return []

    def other() -> None:
        time.sleep(max(0.0, second))
        on_nodes._take_part(place, "b", 1, 2, list)

    thread = threading.Thread(target=other)
    thread.start()
    on_nodes._take_part(place, "a", 0, 2, lambda: examine(first))
    thread.join()
    found = [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))]
    return {each["name"]: each for each in on_nodes._together(found, 2, place)}["reach"]


def test_a_node_that_is_slower_than_the_first_one_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_nodes, "_PATIENCE_SECONDS", 10.0)
    assert together(tmp_path, 0.0, 0.5)["status"] == "ok"


def test_a_node_may_be_done_before_the_first_one(tmp_path: Path) -> None:
    assert together(tmp_path, 0.4, 0.0)["status"] == "ok"


def test_a_node_that_is_far_too_late_is_not_taken_for_a_firewall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_nodes, "_PATIENCE_SECONDS", 0.2)
    found = together(tmp_path, 0.0, 0.7)
    assert found["status"] == "warning"
    assert "b: came more than 0 s after the first node" in found["what"]


def test_a_folder_that_only_the_first_node_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_nodes, "_PATIENCE_SECONDS", 0.1)
    kind, problem = on_nodes._meet(tmp_path)
    assert (kind, "did not become visible here" in problem) == ("unseen", True)


def test_the_first_node_gives_the_address_that_leads_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"PROCID": "0", "NTASKS": "2", "LOCALID": "0", "NODEID": "0", "STEP_ID": "0", "STEP_TASKS_PER_NODE": "1(x2)"}
    for name, text in {**step, "STEP_NODELIST": "n[1-2]"}.items():
        monkeypatch.setenv(f"SLURM_{name}", text)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    # A service processor's network comes first on many nodes, and leads nowhere.
    cards = {"usb0": Interface("usb0", "169.254.3.1"), "eth0": Interface("eth0", "10.0.0.5")}
    monkeypatch.setattr(network, "interfaces", lambda: cards)
    monkeypatch.setattr(network, "resolve", lambda host: "10.0.0.6")
    monkeypatch.setattr(network, "towards", lambda address: cards["eth0"])
    with on_nodes._listening(tmp_path):
        assert json.loads((tmp_path / "address").read_text())["host"] == "10.0.0.5"


def test_a_job_that_nobody_waits_for_any_longer_leaves_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, then in {"srun": f"echo $$ > {tmp_path}/pid; exec sleep 60", "scancel": "exit 0"}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/{name}.words\n{then}\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # Of a user whom only the cluster's directory knows the environment may say nothing, or another's name.
    monkeypatch.setattr("getpass.getuser", lambda: pytest.fail("there may be no such entry"))
    with pytest.raises(
        errors.UserError, match=r"SLURM did not run the job within 0 s, so it was cancelled.*--srun=--time=1"
    ):
        on_nodes.ask(2, tmp_path / "runs", ["--time=5"], seconds=0.4)
    words = (tmp_path / "srun.words").read_text().split()
    (name,) = [word.removeprefix("--job-name=") for word in words if word.startswith("--job-name=")]
    assert {f"--name={name}", f"--user={os.getuid()}"} <= {*(tmp_path / "scancel.words").read_text().split()}
    assert words.index("--time=10") < words.index("--time=5"), "what the user gives comes last and counts"
    pid = (tmp_path / "pid").read_text().strip()
    assert subprocess.run(["ps", "-p", pid], capture_output=True, check=False).returncode == 1
    assert "waiting up to 0 min for 2 nodes" in capsys.readouterr().err
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "way"),
    [
        ("Requested time limit is invalid (missing or exceeds some limit)", True),
        ("Requested partition configuration not available now: PartitionTimeLimit", True),
        ("Invalid account", False),
    ],
)
def test_a_partition_that_allows_less_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, way: bool
) -> None:
    monkeypatch.setattr(on_nodes, "_run", lambda argv, name, seconds: f"srun: error: {said}")
    with pytest.raises(errors.UserError) as caught:
        on_nodes.ask(1, tmp_path / "runs", [])
    assert said in str(caught.value)
    assert ("--srun=--time=1" in str(caught.value)) == way
