"""Logs and tables of other tools, as they write them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis import plain
from analysis.assemble import assemble
from analysis.plots.gallery import gallery
from analysis.tables import read_inputs
from hvdtrain.errors import UserError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def values(table: pd.DataFrame, metric: str) -> dict[int, float]:
    rows = table[table["metric"] == metric]
    return dict(zip(rows["n_gpus"].astype(int), rows["value"], strict=True))


def test_a_wide_table_with_units_in_its_headings(tmp_path: Path) -> None:
    path = write(tmp_path, "wide.csv", (
        "Model,GPU,GPUs,batch size,images/s per GPU,epoch time [min],accuracy [%],note\n"
        "resnet50,A100,1,256,800,10,76.1,\n"
        "resnet50,A100,8,256,780,N/A,,all on one node\n"
    ))  # fmt: skip
    table = analysis.read(path)
    assert values(table, "throughput") == {1: 800, 8: 6240}
    assert values(table, "epoch_time") == {1: 600}
    assert values(table, "val_acc") == {1: pytest.approx(0.761)}
    assert set(table["workload"]) == {"resnet50"}
    assert (table["value"] > 0).all(), "what is missing never becomes 0"


def test_two_columns_of_one_metric_are_no_replicates(tmp_path: Path) -> None:
    text = "GPUs,images/s,images/s per GPU,epoch time [min],epoch time [s]\n1,100,100,2,120\n2,,95,,61\n4,359,90,0.5,30.4\n"
    path = write(tmp_path, "wide.csv", text)
    table = analysis.read(path)
    assert table["metric"].value_counts().to_dict() == {"throughput": 3, "epoch_time": 3}
    assert values(table, "throughput") == {1: 100, 2: 190, 4: 359}, "the first that a line has"
    assert values(table, "epoch_time") == {1: 120, 2: 61, 4: 30}
    path.write_text("GPUs,images/s,images/s per GPU\n1,100,100\n4,90,90\n")
    said = 'line 3: "images/s" (90) and "images/s per GPU" (90) both are throughput, and differ: 90 and 360 samples/s; keep the'
    with pytest.raises(UserError, match=re.escape(said)):
        analysis.read(path)
    path.write_text("GPUs,time [h],total time\n1,2,1:30:00\n")
    with pytest.raises(
        UserError, match=r'"time \[h\]" \(2\) and "total time" \(1:30:00\) both are total_time, and differ'
    ):
        analysis.read(path)


@pytest.mark.parametrize("name", ["val accuracy", "val_acc", "val. accuracy [%]"])
def test_accuracy_beside_validation_accuracy_is_that_of_training(tmp_path: Path, name: str) -> None:
    last = 80 if "%" in name else 0.8
    table = analysis.read(write(tmp_path, "wide.csv", f"GPUs,accuracy,{name}\n1,0.99,{last}\n2,0.98,{last}\n"))
    assert values(table, "val_acc") == {1: 0.8, 2: 0.8}
    assert values(table, "train_acc") == {1: 0.99, 2: 0.98}
    alone = analysis.read(write(tmp_path, "alone.csv", "GPUs,accuracy\n1,0.8\n"))
    assert values(alone, "val_acc") == {1: 0.8}


def test_one_rank_may_be_meant_in_brackets(tmp_path: Path) -> None:
    table = analysis.read(write(tmp_path, "wide.csv", "GPUs,images/s (per GPU)\n1,100\n2,95\n"))
    assert values(table, "throughput") == {1: 100, 2: 190}


def test_steps_per_second_of_a_known_batch_are_samples(tmp_path: Path) -> None:
    table = analysis.read(write(tmp_path, "steps.csv", "workload,ranks,batch,steps/s\nnet,1,64,5.0\nnet,2,64,4.8\n"))
    assert values(table, "throughput") == pytest.approx({1: 320, 2: 614.4})
    assert set(table["unit"]) == {"samples/s"}
    assert table["global_batch"].tolist() == [64, 128]
    both = analysis.read(write(tmp_path, "both.csv", "ranks,batch,steps/s,images/s\n1,64,5.0,319\n"))
    assert both["metric"].tolist() == ["steps_per_s", "throughput"], "no replicate of what was measured once"


def test_steps_per_second_without_a_batch_ask_for_it(tmp_path: Path) -> None:
    found = analysis.diagnose(analysis.read(write(tmp_path, "steps.csv", "GPUs,steps/s\n1,10\n2,19\n4,36\n")))
    assert [finding.code for finding in found] == ["insufficient_data"]
    assert "without a batch nobody knows how many samples a step is" in found[0].message
    assert "per_gpu_batch or global_batch" in found[0].next


def test_a_recorded_time_to_target_ranks_the_ways(tmp_path: Path) -> None:
    table = analysis.read(write(tmp_path, "t.csv", "GPUs,time to target [min],images/s\n1,50,100\n2,26,190\n"))
    best = analysis.recommend(table, deadline=1800)
    assert best.fastest is not None and (best.fastest.n_gpus, best.fastest.seconds) == (2, 26 * 60)
    assert best.sentences[0].startswith("Fastest to the target that was recorded: 2 ranks, 26 min 00 s")
    assert best.best is not None and best.best.n_gpus == 2
    report = assemble(read_inputs([tmp_path / "t.csv"]))
    assert "pareto" in {plot.name for plot in gallery(report, None)}
    assert plain.ways(report.insights.answers[0]).heading == "Time to the target that was recorded"
    alone = analysis.read(write(tmp_path, "t.csv", "GPUs,time to target [min]\n1,50\n2,26\n"))
    assert [way.seconds for way in analysis.recommend(alone).ways] == [1560, 3000]
    assert analysis.recommend(alone).next_run.startswith("Record samples/s or the time of an epoch too")


def test_replicates_are_kept(tmp_path: Path) -> None:
    table = analysis.read(write(tmp_path, "r.csv", "n_gpus,seed,metric,value\n1,0,throughput,5\n1,1,throughput,6\n"))
    assert table["replicate"].tolist() == [0, 1]
    assert analysis.fit_scaling(table).groups[0].data.replicates.tolist() == [2]


def test_a_column_that_cannot_be_understood_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "odd.csv", "GPUs,throughput,flux capacity\n1,5,88\n")
    with pytest.raises(UserError, match='no column "flux capacity"'):
        analysis.read(path)


def test_a_keras_log_counts_from_zero(tmp_path: Path) -> None:
    lines = ["epoch,accuracy,loss,val_accuracy,val_loss"]
    lines += [f"{e},{0.5 + e / 100},1.0,{0.8 - 0.5 * 0.6**e},0.9" for e in range(20)]
    path = write(tmp_path, "run-4gpu/history.csv", "\n".join(lines) + "\n")
    (run,) = read_inputs([path]).runs
    assert run.n_gpus == 4
    assert [epoch.epoch for epoch in run.epochs] == list(range(1, 21))
    assert run.epochs[0].val_acc == pytest.approx(0.3)
    table = analysis.read(path)
    assert values(table, "val_acc")[4] == pytest.approx(0.8, abs=1e-3)
    assert 7 <= values(table, "epochs_to_stability")[4] <= 10


def test_lightnings_metrics_come_in_pieces(tmp_path: Path) -> None:
    text = "epoch,step,train_loss,val_acc\n0,99,2.0,\n0,100,,0.5\n1,199,1.5,\n1,200,,0.6\n2,299,1.2,nan\n"
    (run,) = read_inputs([write(tmp_path, "metrics.csv", text)]).runs
    assert [epoch.train_loss for epoch in run.epochs] == [2.0, 1.5, 1.2]
    assert [epoch.val_acc for epoch in run.epochs][:2] == [0.5, 0.6]
    assert math.isnan(run.epochs[2].val_acc or 0.0)


def test_an_export_of_tensorboard_is_a_curve(tmp_path: Path) -> None:
    text = "Wall time,Step,Value\n" + "".join(f"{1000 + 10 * k},{500 * (k + 1)},{50 + k}\n" for k in range(6))
    (run,) = read_inputs([write(tmp_path, "val_acc_n8.csv", text)]).runs
    assert run.n_gpus == 8
    assert [epoch.epoch for epoch in run.epochs] == [1, 2, 3, 4, 5, 6], "optimizer steps are numbered as epochs"
    assert [epoch.val_acc for epoch in run.epochs][:2] == [0.5, 0.51], "percent become fractions"
    assert run.epochs[1].seconds == 10
    losses = write(tmp_path, "loss.csv", "Wall time,Step,Value\n1,1,250\n2,2,240\n")
    with pytest.raises(UserError, match="are no accuracies"):
        analysis.read(losses)


def test_a_step_that_a_restart_repeats_counts_as_it_was_last(tmp_path: Path) -> None:
    points = [(1000 + 10 * step, step, step / 10) for step in range(5)]
    points += [(2000 + 10 * step, step, step / 10 + 0.01) for step in range(3, 8)]
    text = "Wall time,Step,Value\n" + "".join(f"{wall},{step},{value}\n" for wall, step, value in points)
    (run,) = read_inputs([write(tmp_path, "val_acc_n2.csv", text)]).runs
    assert [epoch.epoch for epoch in run.epochs] == list(range(1, 9))
    assert [epoch.val_acc for epoch in run.epochs] == pytest.approx([0, 0.1, 0.2, 0.31, 0.41, 0.51, 0.61, 0.71])
    assert [epoch.seconds for epoch in run.epochs] == [None, 10, 10, None, 10, 10, 10, 10]


def write_events(folder: Path, tag: str, points: list[tuple[int, float]]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step, value in points:
        entry = Summary.Value(tag=tag, simple_value=value)
        writer.add_event(Event(wall_time=1000 + 10 * step, step=step, summary=Summary(value=[entry])))
    writer.close()


@pytest.mark.parametrize("below", ["validation", "version_0", "logs/version_0", ".", "lr0.1"])
def test_folders_above_the_events_name_the_ranks(tmp_path: Path, below: str) -> None:
    for ranks in (2, 4):
        folder = tmp_path / "n16-study" / f"run-{ranks}gpu" / below
        write_events(folder, "val_acc", [(step, step / 10) for step in range(5)])
    (tmp_path / "t.csv").write_text("n_gpus,metric,value\n1,throughput,5\n")
    found = read_inputs([tmp_path / "n16-study", tmp_path / "t.csv"])
    assert sorted(run.n_gpus for run in found.runs) == [2, 4]
    assert set(found.table["n_gpus"]) == {1, 2, 4}


def test_tensorboard_events_are_read_where_it_is_installed(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = tmp_path / "run-2gpu" / "validation"
    writer = EventFileWriter(str(folder))
    for step in range(10):
        summary = Summary(value=[Summary.Value(tag="epoch_accuracy", simple_value=0.5 + step / 100)])
        writer.add_event(Event(step=step, wall_time=100.0 + step, summary=summary))
    writer.close()
    (run,) = read_inputs([tmp_path / "run-2gpu"]).runs
    assert [epoch.epoch for epoch in run.epochs] == list(range(1, 11))
    assert [epoch.val_acc for epoch in run.epochs] == pytest.approx([0.5 + step / 100 for step in range(10)])


@pytest.mark.parametrize(
    ("steps", "epochs", "timed"),
    [
        (range(4, 50, 5), range(5, 51, 5), ()),
        ([0, 1, 2, 7, 8], [1, 2, 3, 8, 9], (2, 3, 9)),
        # From a checkpoint on.
        ([10, 11, 12], [11, 12, 13], (12, 13)),
    ],
)
def test_keras_validates_in_epochs_whatever_lies_between_them(
    tmp_path: Path, steps: Sequence[int], epochs: Sequence[int], timed: Sequence[int]
) -> None:
    write_events(tmp_path / "run-2gpu" / "validation", "epoch_accuracy", [(step, step / 100) for step in steps])
    (run,) = read_inputs([tmp_path / "run-2gpu"]).runs
    assert [epoch.epoch for epoch in run.epochs] == [*epochs]
    assert {epoch.epoch: epoch.seconds for epoch in run.epochs if epoch.seconds is not None} == dict.fromkeys(timed, 10)


def test_steps_of_an_optimizer_are_numbered_as_epochs_in_events_too(tmp_path: Path) -> None:
    write_events(tmp_path / "run-2gpu", "val_acc", [(step, step / 10000) for step in (500, 1000, 1500)])
    (run,) = read_inputs([tmp_path / "run-2gpu"]).runs
    assert [epoch.epoch for epoch in run.epochs] == [1, 2, 3]


def test_events_of_a_test_are_no_validation(tmp_path: Path) -> None:
    folder = tmp_path / "run-2gpu"
    write_events(folder, "test_acc", [(3, 0.4)])
    write_events(folder, "val_acc", [(step, step / 10) for step in range(3)])
    (run,) = read_inputs([folder]).runs
    assert [epoch.val_acc for epoch in run.epochs] == pytest.approx([0, 0.1, 0.2])


@pytest.mark.parametrize("plugin", ["scalars", "histograms"])
def test_scalars_that_are_written_as_tensors_are_read_too(tmp_path: Path, plugin: str) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(tmp_path / "run-2gpu" / "validation"))
    kind = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    for step in range(20):
        entry = Summary.Value(tag="epoch_accuracy", tensor=make_tensor_proto(np.float32(step / 40)), metadata=kind)
        writer.add_event(Event(step=step, wall_time=1000.0 + step, summary=Summary(value=[entry])))
    writer.close()
    if plugin != "scalars":
        with pytest.raises(UserError, match="no scalar is a validation accuracy"):
            read_inputs([tmp_path / "run-2gpu"])
        return
    (run,) = read_inputs([tmp_path / "run-2gpu"]).runs
    assert (run.n_gpus, len(run.epochs)) == (2, 20)
    assert [epoch.val_acc for epoch in run.epochs] == pytest.approx([step / 40 for step in range(20)])


SACCT = """JobID|JobName|State|Elapsed|AllocTRES|NNodes|ConsumedEnergyRaw
101|resnet|COMPLETED|01:38:30|billing=8,cpu=16,gres/gpu:t4=2,node=1|1|1200000
101.batch|batch|COMPLETED|01:38:30|cpu=16|1|
102|resnet|COMPLETED|1-02:03:04|gres/gpu:v100=8,node=2|2|
103|resnet|FAILED|00:00:10|gres/gpu:v100=8|1|
104|resnet|CANCELLED by 1000|00:10:00|gres/gpu:v100=8|1|
"""


def test_a_dump_of_sacct(tmp_path: Path) -> None:
    table = analysis.read(write(tmp_path, "jobs.txt", SACCT))
    assert values(table, "total_time") == {2: 5910, 8: 93_784}
    assert values(table, "energy") == {2: 1_200_000}
    assert set(table["gpu_type"]) == {"t4", "v100"}
    with pytest.raises(UserError, match=r"needs the column AllocTRES.*make it with: sacct -P"):
        analysis.read(write(tmp_path, "bare.txt", "JobID|State|Elapsed\n1|COMPLETED|00:10:00\n"))


def test_curves_and_tables_together(tmp_path: Path) -> None:
    """What is read of several kinds at once makes one table, and one report."""
    curve = "epoch,val_acc\n" + "".join(f"{e},{0.8 - 0.5 * 0.6**e}\n" for e in range(20))
    table = analysis.read(write(tmp_path, "log_n2.csv", curve), write(tmp_path, "t.csv", "GPUs,throughput\n1,5\n2,9\n"))
    assert {"throughput", "val_acc", "epochs_to_stability"} <= set(table["metric"])
    assert np.isfinite(table["value"]).all()
