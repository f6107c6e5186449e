"""Targets, deadlines and budgets are answered where the measurements allow it, and are said not to be elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import analysis
from analysis.__main__ import main
from analysis.plain import ways
from analysis.recommendation import Recommendation


def asked(folder: Path, text: str, target: float | None = None, **limits: float) -> Recommendation:
    path = folder / "t.csv"
    path.write_text(text)
    return analysis.recommend(analysis.read(path), target, **limits)


def test_no_accuracy_is_said_to_be_reached_that_nobody_recorded(tmp_path: Path) -> None:
    counts = "GPUs,epoch time [s],epochs_to_stability\n1,9,9\n2,5,9\n"
    best = asked(tmp_path, counts, 0.68)
    assert ways(best).heading == "Time to stable accuracy (accuracy not recorded)"
    assert "No accuracy was recorded, so whether 0.68 is reached is not known: times are those to stable accuracy." in (
        best.sentences
    )
    part = asked(tmp_path, "GPUs,epoch time [s],epochs_to_stability,val_acc\n1,9,9,0.7\n2,5,9,\n", 0.68)
    assert ways(part).heading == "Time to stable accuracy (all reach 68.0 % whose accuracy was recorded)"
    assert any(said.startswith("No accuracy of 2 ranks was recorded") for said in part.sentences)
    assert not any("recorded" in said for said in asked(tmp_path, counts).sentences)


@pytest.mark.parametrize("column", ["epoch time [s]", "images/s"])
def test_one_epoch_keeps_no_deadline(tmp_path: Path, column: str) -> None:
    best = asked(tmp_path, f"GPUs,{column}\n1,90\n2,50\n", deadline=3600.0, budget=2.0)
    assert best.best is None
    (said,) = [said for said in best.sentences if "deadline" in said]
    assert "a deadline of 60 min 00 s and a budget of 2" in said
    assert "cannot be said: how many epochs are needed is not known" in said


def test_a_whole_run_keeps_one(tmp_path: Path) -> None:
    best = asked(tmp_path, "GPUs,epochs,total time [min]\n1,30,50\n2,30,26\n", deadline=3600.0)
    assert best.best is not None


def test_a_table_that_recommends_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("GPUs,total time [min]\n1,50\n2,26\n")
    out = ["--out", str(tmp_path / "out")]
    assert main(["report", str(path), *out, "--deadline", "1 h", "--target", "0.68"]) == 0
    said = "A target of 0.68 and a deadline of 60 min 00 s: not answered, because no throughput"
    assert said in " ".join(capsys.readouterr().out.split())
    for name in ("report.html", "report.md"):
        assert said in (tmp_path / "out" / name).read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["unanswered"].startswith(said)
    assert main(["report", str(path), *out]) == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["unanswered"] is None
    assert main(["report", str(path), *out, "--target", "68"]) == 2
    assert "did you mean 0.68?" in capsys.readouterr().err
