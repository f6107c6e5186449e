"""Studies of which some cells ended, or never began: what the user sees afterwards from another shell, and what can be done."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest

from hvdtrain import record
from tests.dying_submit import DIES_WRITING
from tests.slurm.lab import PLAIN_WORDS, Lab, until
from tests.yardstick import assert_within


def test_a_cell_that_will_never_start_says_so(lab: Lab) -> None:
    lab.submit(*PLAIN_WORDS, "--gpus", "1", "--partition", "short", "--time", "30")
    until(lambda: "PartitionTimeLimit" in lab.status("plain")["n1"]["reason"])
    assert "it will never start" in lab("status", "plain").stdout
    assert lab("cancel", "plain").returncode == 0
    assert lab.status("plain")["n1"]["status"] == "cancelled"
    assert lab("cancel", "plain").stdout == "nothing to cancel: no job of these cells waits or runs\n"


def test_a_cell_that_breaks_before_training_says_why(lab: Lab) -> None:
    (lab.room / "hvdtrain.toml").write_text('[site]\nsetup = ["module_of_this_site load cuda"]\n')
    lab.submit(*PLAIN_WORDS, "--gpus", "1")
    rows = lab.wait("plain", "failed")
    assert "it never started training (exit code 127:0)" in rows["n1"]["reason"]
    assert "module_of_this_site: command not found" in rows["n1"]["reason"]


def test_failed_cells_are_retried_and_no_others(lab: Lab) -> None:
    done = lab("submit", *PLAIN_WORDS, "--gpus", "1", "--epochs", "2", "--set", "fail-at=0,2", "--wait")
    assert done.returncode == 1
    assert "caught fire" in done.stdout
    rows = lab.status("plain")
    assert (rows["n1-fail-at0"]["status"], rows["n1-fail-at2"]["status"]) == ("completed", "failed")
    assert lab.epochs("plain", "n1-fail-at2") == [(1, 0)]
    again = lab("retry", "plain")
    assert again.returncode == 0, again.stderr
    assert "n1-fail-at2" in again.stdout
    assert "n1-fail-at0" not in again.stdout
    lab.wait("plain", "completed", "failed")
    assert (lab.cell("plain", "n1-fail-at2") / "attempts" / "1" / "result.json").exists()
    assert lab("resume", "plain").stdout == "nothing to resume: no cell was ended early\n"
    wrong = lab("retry", "plain", "n1-fail-at3")
    assert wrong.returncode == 2
    assert 'no cell "n1-fail-at3"; it has n1-fail-at0, n1-fail-at2; did you mean' in wrong.stderr


def held(lab: Lab, study: str) -> dict[str, bytes]:
    """All files of a study but the one that says who works on it."""
    folder = lab.room / "runs" / study
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_slurm_refuses_to_start_again_keeps_what_it_had(lab: Lab) -> None:
    words = [*PLAIN_WORDS, "--gpus", "1", "--epochs", "2", "--seeds", "2", "--set", "fail-at=2"]
    assert lab("submit", *words, "--wait").returncode == 1
    before = held(lab, "plain")
    assert lab.epochs("plain", "n1-fail-at2-s0") == [(1, 0)]
    for again in (["retry", "plain"], ["submit", *words, "--retry-failed"]):
        refused = lab(*again, "--partition", "nowhere")
        assert refused.returncode == 2
        assert "invalid partition specified: nowhere" in refused.stderr
        assert held(lab, "plain") == before
        assert {row["status"] for row in lab.status("plain").values()} == {"failed"}
    assert lab("retry", "plain").returncode == 0
    lab.wait("plain", "failed")
    assert (lab.cell("plain", "n1-fail-at2-s0") / "attempts" / "1" / "epochs.jsonl").exists()


def test_a_submit_that_was_killed_while_it_wrote_is_given_again(lab: Lab) -> None:
    words = [*PLAIN_WORDS, "--gpus", "1", "--seeds", "3"]
    killed = lab.run([sys.executable, "-c", DIES_WRITING, *words])
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    assert sorted(path.name for path in (lab.room / "runs" / "plain").iterdir()) == [".lock", "n1-s0", "n1-s1"]
    refused = lab("submit", *words, "--partition", "nowhere")
    assert refused.returncode == 2
    assert "invalid partition specified: nowhere" in refused.stderr
    assert "3 cells: 3 to run" in lab.submit(*words, "--wait").stdout
    assert {row["status"] for row in lab.status("plain").values()} == {"completed"}


def test_without_accounting_hours_are_an_estimate(lab: Lab) -> None:
    lab.submit(*PLAIN_WORDS, "--gpus", "2", "--set", "sleep=2", "--wait")
    row = lab.status("plain")["n2-sleep2"]
    assert row["gpu_hours_estimated"] is True
    assert 2 * 2 / 3600 < row["gpu_hours"] < 2 * 60 / 3600
    assert "estimated from wall clock times GPUs" in lab("status", "plain").stdout


def test_a_silent_controller_changes_nothing(lab: Lab) -> None:
    lab.submit(*PLAIN_WORDS, "--gpus", "1", "--wait")
    (lab.room / "bin").mkdir()
    # A real controller that is down keeps its clients waiting for a minute; these are its words.
    text = "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    (lab.room / "bin" / "squeue").write_text(text)
    (lab.room / "bin" / "squeue").chmod(0o755)
    done = lab("status", "plain", PATH=f"{lab.room}/bin:{os.environ['PATH']}")
    assert done.returncode == 0
    assert "Unable to contact slurm controller" in done.stderr
    assert "so this is what was recorded, not what SLURM knows" in done.stderr
    assert re.search(r"^n1 +completed ", done.stdout, re.MULTILINE)


def test_then_report_comes_even_when_cells_fail(small: Lab) -> None:
    done = small("submit", *PLAIN_WORDS, "--gpus", "1,2", "--set", "fail-at=0,1", "--study", "told", "--then-report")
    assert done.returncode == 0, done.stderr
    assert re.search(r"submitted job \d+: the report, when all cells have ended", done.stdout)
    log = small.room / "runs" / "told" / "submissions" / "report" / "report.log"
    until(lambda: log.exists() and "report" in log.read_text(), 240)
    until(lambda: (small.room / "runs" / "told" / "report").is_dir())
    assert {row["status"] for row in small.status("told").values()} == {"completed", "failed"}


@pytest.mark.alone
def test_status_of_1000_cells_in_less_than_a_second(small: Lab) -> None:
    study = small.room / "runs" / "large"
    names = [f"n{2 ** (index % 4)}-s{index}" for index in range(1000)]
    record.write_json(study / "study.json", {"study": "large"})
    for name in names:
        record.write_json(study / name / "cell.json", {"name": name, "gpus": 2, "epochs": 10, "cluster": "slurm"})
        log = record.EpochLog(study / name / "epochs.jsonl")
        for epoch in range(1, 4):
            log.append(record.Epoch(epoch, seconds=1.0, samples_per_second=10.0, val_acc=0.5))
    for number in range(4):
        part = names[number * 250 : (number + 1) * 250]
        facts = {"name": f"large.{number}", "cells": part, "names": part, "created": "2026-01-01T00:00:00"}
        facts |= {"job": str(900_000 + number), "overrides": [], "cancelled": []}
        record.write_json(study / "submissions" / f"{number:04d}-large" / "submission.json", facts)

    def status() -> float:
        began = time.monotonic()
        assert len(small.status("large")) == 1000
        return time.monotonic() - began

    began = time.monotonic()
    small.run([sys.executable, "-c", "pass"])
    assert_within(1.0 + (time.monotonic() - began), status)
