"""The same ranks on different numbers of nodes: the fewest count in every place, and are no replicates of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import analysis
from analysis.assemble import assemble
from analysis.jobtime import job_times
from analysis.plots.gallery import gallery
from analysis.tables import read_inputs
from tests.analysis.conftest import AddCell

HEAD = "n_gpus,n_nodes,metric,value,unit\n"


def test_more_nodes_are_no_replicate(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}1,1,epoch_time,720,s\n8,1,epoch_time,100,s\n8,2,epoch_time,140,s\n8,2,val_acc,0.5,\n")
    (part,) = assemble(read_inputs([path])).parts
    eight = part.group.points[1]
    assert eight.epoch_time is not None and eight.epoch_time.median == 100
    assert (eight.replicates, eight.n_nodes, eight.other_nodes, eight.val_acc) == (1, (1,), (2,), None)
    assert "8 ranks were measured on 2 nodes too: left out, only the fewest nodes count." in part.notes
    assert {job.n_gpus: (job.epoch, job.n_nodes) for job in job_times(analysis.read(path))} == {
        1: (720, 1),
        8: (100, 1),
    }
    (fit,) = analysis.fit_scaling(analysis.read(path)).groups
    assert fit.data.values.tolist() == pytest.approx([720, 100])


def test_who_does_not_say_counts_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}1,1,throughput,10,\n8,1,throughput,70,\n8,,throughput,72,\n8,2,throughput,50,\n")
    table = analysis.read(path)
    (fit,) = analysis.fit_scaling(table).groups
    assert (fit.data.replicates.tolist(), fit.data.nodes.tolist()) == ([1, 2], [1, 1])
    (part,) = assemble(read_inputs([path])).parts
    assert part.group.points[1].throughput is not None and part.group.points[1].throughput.median == 71
    assert {way.n_gpus: way.seconds for way in analysis.recommend(table).ways}[8] == pytest.approx(1e6 / 71)


def test_runs_on_more_nodes_are_left_out_too(add_cell: AddCell) -> None:
    add_cell(1)
    add_cell(4, [400.0] * 3)
    study = add_cell(4, [100.0] * 3, cell={"name": "wide", "shape": {"nodes": 2, "tasks_per_node": 2}})
    read = read_inputs([study])
    assert [job.epoch for job in job_times(read.table, read.runs)] == pytest.approx([10.25, 2.75])
    report = assemble(read)
    (part,) = report.parts
    assert any("4 CPU ranks were measured on 2 nodes too" in note for note in part.notes)
    assert report.left_out == (), "nothing is wrong with them"


def test_accuracies_curves_and_notes_are_those_of_the_fewest_nodes(add_cell: AddCell) -> None:
    add_cell(4, accuracies=(0.5, 0.8, 0.9))
    wide = {"name": "wide", "shape": {"nodes": 2, "tasks_per_node": 2}}
    study = add_cell(4, accuracies=(0.1, 0.2, 0.5), cell=wide, facts={"hosts": ["node01", "node02"]})
    read = read_inputs([study])
    report = assemble(read)
    (part,) = report.parts
    assert {spread.count for spread in part.curves[4].values()} == {1}
    assert not any("different hosts" in note for note in part.notes)
    assert part.machine == "node01, 8 cores"
    (answer,) = report.insights.answers
    assert [way.val_acc for way in answer.ways] == [0.9]
    (plot,) = [plot for plot in gallery(report, "digits") if plot.name == "accuracy_epoch"]
    assert len(plot.figure.axes[0].lines) == 1


def test_a_target_is_what_the_fewest_nodes_reach(add_cell: AddCell) -> None:
    rising = [0.9 - 0.5 * 0.6**epoch for epoch in range(20)]
    add_cell(4, [100.0] * 20, rising)
    wide = {"name": "wide", "shape": {"nodes": 2, "tasks_per_node": 2}}
    study = add_cell(4, [100.0] * 20, [0.5] * 20, cell=wide)
    read = read_inputs([study])
    best = analysis.recommend(read.table, runs=read.runs)
    assert best.target == pytest.approx(0.89, abs=0.001)
    assert [(way.n_gpus, way.missed) for way in best.ways] == [(4, 0)]


def test_runs_on_more_nodes_than_a_table_was_timed_on_do_not_count(add_cell: AddCell, tmp_path: Path) -> None:
    wide = {"name": "wide", "shape": {"nodes": 2, "tasks_per_node": 2}}
    study = add_cell(4, [1000 / 29.75] * 20, [0.5] * 20, cell=wide, facts={"hosts": ["node01", "node02"]})
    add_cell(4, [], [], seed=1, cell=wide, status="diverged", reason="loss is nan")
    path = tmp_path / "t.csv"
    head = "workload,device,n_gpus,n_nodes,per_gpu_batch,lr_rule,precision,epochs,metric,value,unit\n"
    rows = ("epoch_time,10,s", "total_time,200,s", "val_acc,0.9,")
    path.write_text(head + "".join(f"digits,cpu,4,1,32,linear,float32,20,{row}\n" for row in rows))
    read = read_inputs([path, study])
    report = assemble(read)
    (answer,), (part,) = report.insights.answers, report.parts
    assert answer.target == 0.9
    assert [(way.basis, way.seconds, way.val_acc, way.diverged) for way in answer.ways] == [("whole run", 200, 0.9, 0)]
    assert [(job.epoch, job.validation) for job in job_times(read.table, read.runs)] == [(10, None)]
    assert (part.curves, part.machine, report.insights.stability) == ({}, "", {})
    assert "4 CPU ranks were measured on 2 nodes too: left out, only the fewest nodes count." in part.notes
    assert analysis.diagnose(read.table, read.runs) == analysis.diagnose(analysis.read(path))


def test_runs_without_times_do_not_say_where_ranks_were_timed(add_cell: AddCell) -> None:
    narrow = add_cell(4, [100.0] * 3)
    for path in (narrow / "digits-n4-s0").glob("epochs.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{k: v for k, v in line.items() if not k.startswith(("seconds", "samples"))} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    study = add_cell(4, cell={"name": "wide", "shape": {"nodes": 2, "tasks_per_node": 2}})
    (part,) = assemble(read_inputs([study])).parts
    assert part.group.points[0].val_acc is not None and part.group.points[0].val_acc.count == 2
    assert part.curves[4][1].count == 2, "as in the table"
