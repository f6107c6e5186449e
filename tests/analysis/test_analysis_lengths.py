"""Total times of runs that were trained for different numbers of epochs are compared by the epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

import analysis
from analysis.assemble import assemble
from analysis.plots.gallery import replicates
from analysis.tables import read_inputs

TIMES = "GPUs,epochs,total time [min]\n1,30,50\n2,30,26\n4,60,28\n"


def test_a_longer_run_is_no_slower_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TIMES)
    found = assemble(read_inputs([path]))
    (part,) = found.parts
    efficiencies = [point.efficiency and point.efficiency.median for point in part.group.points]
    assert efficiencies == pytest.approx([1, 50 / 52, 50 / 56], rel=1e-9)
    assert part.group.points[2].total_time is not None and part.group.points[2].total_time.median == 28 * 60
    assert "Runs of different numbers of epochs are compared by the epoch." in part.notes[0]
    (fit,) = found.insights.fits.values()
    assert replicates(found.table, fit)["value"].tolist() == pytest.approx(fit.data.values.tolist())
    (answer,) = found.insights.answers
    assert answer.basis == "epoch"
    assert {way.n_gpus: way.seconds for way in answer.ways} == pytest.approx({1: 100, 2: 52, 4: 28})


def test_runs_of_one_length_are_compared_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TIMES.replace("60,28", "30,14"))
    (part,) = assemble(read_inputs([path])).parts
    assert "by the epoch" not in part.notes[0]
    assert part.group.baseline is not None and part.group.baseline.value == 3000
    assert analysis.recommend(analysis.read(path)).basis == "whole run"


def test_a_longer_replicate_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("GPUs,epochs,total time [min]\n1,30,50\n1,30,50\n1,60,100\n2,30,26\n")
    assert "outlier" not in {finding.code for finding in analysis.diagnose(analysis.read(path))}
    path.write_text("GPUs,epochs,total time [min]\n1,30,50\n1,30,50\n1,30,100\n2,30,26\n")
    assert "outlier" in {finding.code for finding in analysis.diagnose(analysis.read(path))}
