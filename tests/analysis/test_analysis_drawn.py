"""What the single figures show: read from what they say in words for those who cannot see them."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis import reference
from analysis.__main__ import main
from analysis.assemble import Report, assemble
from analysis.plots.gallery import _parts as parts_of
from analysis.plots.gallery import _series as series_of
from analysis.plots.gallery import gallery
from analysis.plots.scaling import efficiency_plot, time_plots
from analysis.plots.style import Plot, marker
from analysis.tables import read_inputs
from tests.analysis.conftest import AddCell


def figures_of(paths: Sequence[Path], out: Path, *more: str) -> dict[str, str]:
    """What the figures of a report are called, and say in words."""
    assert main(["report", *map(str, paths), "--out", str(out), *more]) == 0
    page = (out / "report.html").read_text()
    return {name: html.unescape(alt) for name, alt in re.findall(r'data-figure="([^"]*)" alt="([^"]*)"', page)}


def log(path: Path, columns: str, lines: Sequence[tuple[object, ...]]) -> Path:
    path.write_text(f"{columns}\n" + "".join(",".join(map(str, line)) + "\n" for line in lines))
    return path


CURVE = [0.8 - 0.5 * 0.6**epoch for epoch in range(12)]


def test_accuracies_without_times_and_times_without_accuracies_are_drawn_over_epochs(tmp_path: Path) -> None:
    paths = [
        log(tmp_path / "log_n4.csv", "epoch,loss,val_acc", [(e, 1.0, own) for e, own in enumerate(CURVE)]),
        log(tmp_path / "log_n8.csv", "epoch,loss,seconds", [(e, 1.0, 10) for e in range(12)]),
    ]
    drawn = figures_of(paths, tmp_path / "out")
    assert "4 ranks" in drawn["accuracy_epoch"]
    assert "8 ranks" not in drawn["accuracy_epoch"]
    assert "accuracy_time" not in drawn


def test_an_export_whose_first_epoch_is_not_timed_is_not_drawn_over_time(tmp_path: Path) -> None:
    lines = [(1.7e9 + 99 * e, e, own) for e, own in enumerate(CURVE)]
    paths = [log(tmp_path / f"val_acc_n{n}.csv", "Wall time,Step,Value", lines) for n in (2, 4)]
    assert "accuracy_time" not in figures_of(paths, tmp_path / "out")


def test_hours_of_a_device_that_is_not_recorded_are_not_those_of_gpus(tmp_path: Path) -> None:
    path = log(tmp_path / "log_n2.csv", "epoch,val_acc,seconds", [(e, own, 100) for e, own in enumerate(CURVE)])
    drawn = figures_of([path], tmp_path / "out")
    assert drawn["accuracy_gpu_hours"].startswith("Validation accuracy against rank time")


def test_each_group_has_its_curves_and_phases(add_cell: AddCell) -> None:
    for place, kind in enumerate(("A100", "T4", "V100")):
        for ranks in (1, 2, 4):
            cell = {"name": kind, "gpu_type": kind}
            rates = [100.0 * ranks] * len(CURVE)
            study = add_cell(ranks, rates, CURVE, cell=cell, facts={"device": "gpu"})
            epochs = study / f"digits-n{ranks}-s0-{kind}" / "epochs.jsonl"
            lines = [json.loads(line) for line in epochs.read_text().splitlines()]
            epochs.write_text("".join(json.dumps({**line, "seconds_data": 1.0 + place}) + "\n" for line in lines))
    drawn = figures_of([study], study / "report")
    for against in ("epoch", "time", "gpu_hours"):
        alt = drawn[f"accuracy_{against}"]
        assert ", 6 of 9 sizes. " in alt
        assert all(f"{ranks} {kind} GPUs: " in alt for ranks in (1, 4) for kind in ("A100", "T4", "V100"))
    phases = [drawn[name] for name in ("phases", "phases-2", "phases-3")]
    for alt, kind in zip(phases, ("T4", "A100", "V100"), strict=True):
        assert alt.startswith(f"Seconds of an epoch by phase, of {kind} GPUs. ")
    assert "1 ranks: data 3 s" in phases[2]


def test_sizes_without_accuracies_take_no_place_among_the_curves(add_cell: AddCell) -> None:
    for batch in (16, 32, 64, 128):
        for ranks in (1, 2, 4):
            accuracies = (0.5, 0.8, 0.9) if batch == 128 else (None, math.nan, None)
            study = add_cell(ranks, accuracies=accuracies, cell={"name": f"b{batch}"}, facts={"batch_size": batch})
    (plot,) = [plot for plot in gallery(assemble(read_inputs([study])), "digits") if plot.name == "accuracy_epoch"]
    assert plot.alt.startswith("Validation accuracy against epoch. ")
    assert [text.split(":")[0] for text in plot.alt.split(". ", 1)[1].split("; ")] == [
        "1 CPU rank, batch 128 per rank", "2 CPU ranks, batch 128 per rank", "4 CPU ranks, batch 128 per rank"
    ]  # fmt: skip


def test_epochs_against_batch_name_their_rule(tmp_path: Path) -> None:
    lines = [
        ("net", "V100", n, 32, rule, 30, metric, value)
        for rule in ("linear", "sqrt")
        for n in (1, 2, 4)
        for metric, value in (("epochs_to_stability", 9 + n), ("throughput", 100 * n))
    ]
    path = log(tmp_path / "own.csv", "workload,gpu_type,n_gpus,per_gpu_batch,lr_rule,epochs,metric,value", lines)
    drawn = figures_of([path], tmp_path / "out")
    assert drawn["epochs"].startswith("Epochs to stability against global batch, linear learning-rate rule. ")
    assert drawn["epochs-2"].startswith("Epochs to stability against global batch, sqrt learning-rate rule. ")
    headings = [f"Epochs to stability against global batch, {rule} learning-rate rule" for rule in ("linear", "sqrt")]
    page, markdown = ((tmp_path / "out" / f"report.{form}").read_text() for form in ("html", "md"))
    assert [text for text in re.findall("<h4>(.*?)</h4>", page) if "global batch" in text] == headings
    assert all(f"### {text}: net\n" in markdown for text in headings)


def many_types(path: Path, speed: Callable[[int], float]) -> Report:
    """The report of ten GPU types at five sizes; `speed` is samples/s of one of a type."""
    lines = [
        ("net", f"G{kind}", n, "throughput", speed(kind) * n / (1 + 0.2 * n))
        for kind in range(10)
        for n in (1, 2, 4, 8, 16)
    ]
    return assemble(read_inputs([log(path, "workload,gpu_type,n_gpus,metric,value", lines)]))


def pareto(report: Report) -> Plot:
    (plot,) = [plot for plot in gallery(report, "net") if plot.name == "pareto"]
    return plot


def test_the_cheapest_of_many_ways_is_drawn(tmp_path: Path) -> None:
    report = many_types(tmp_path / "own.csv", lambda kind: 130 - 10 * kind)
    (answer,) = report.insights.answers
    alt = pareto(report).alt
    assert answer.cheapest is not None and answer.fastest is not None
    assert f" {answer.cheapest.name}: " in alt
    assert alt.startswith(f"Time against GPU-hours, 24 of 50 ways. {answer.fastest.name}: ")
    best = alt.split("None beats ")[1]
    assert answer.cheapest.name in best and answer.fastest.name in best
    assert report.caption.count(" on G") == 6
    assert report.caption.endswith("(first 6 of 10 groups)")


def test_the_types_of_the_ways_that_are_drawn_have_colours_of_their_own(tmp_path: Path) -> None:
    (axes,) = pareto(many_types(tmp_path / "own.csv", lambda kind: 2**kind)).figure.axes
    looks: dict[str, set[str]] = {}
    names = [text.get_text() for text in axes.texts if " x " in text.get_text()]
    for bars, name in zip(axes.containers, names, strict=True):
        looks.setdefault(name.split(" x ")[1].rstrip("?"), set()).add(str(bars[0].get_color()))
    assert 2 < len(looks) <= 6
    assert len(set.union(*looks.values())) == len(looks)


def test_epochs_to_a_target_on_cpus_are_called_that(tmp_path: Path) -> None:
    lines = [
        ("net", "cpu", n, 32, 30, metric, value, unit)
        for n in (1, 2, 4)
        for metric, value, unit in (
            ("epoch_time", 120 / n + 4, "s"),
            ("epochs_to_target", 10 + n, ""),
            ("val_acc", 0.9, ""),
        )
    ]
    path = log(tmp_path / "own.csv", "workload,device,n_gpus,per_gpu_batch,epochs,metric,value,unit", lines)
    drawn = figures_of([path], tmp_path / "out")
    assert drawn["accuracy_epoch"].startswith("Final validation accuracy against epochs to the target. ")
    assert drawn["accuracy_gpu_hours"].startswith("Final validation accuracy against rank-hours to the target. ")
    assert drawn["epochs"].startswith("Epochs to the target against global batch. Measured: batch 32: 11, ")
    page = (tmp_path / "out" / "report.html").read_text()
    text = re.sub(r"<style>.*?</style>|base64,[^\"]*", "", page, flags=re.DOTALL)
    assert "Fastest to the target that was recorded: 4 CPU ranks" in text
    assert "8 CPU ranks (forecast)" in drawn["pareto"]
    assert "GPU" not in text
    assert "stab" not in text


def test_times_of_an_epoch_and_of_a_run_are_two_figures(tmp_path: Path) -> None:
    lines = [
        ("net", kind, n, metric, value / n, "s")
        for kind, metric, value in (("T4", "epoch_time", 100), ("V100", "total_time", 7000), ("A100", "epoch_time", 50))
        for n in (1, 2, 4)
    ]
    path = log(tmp_path / "own.csv", "workload,gpu_type,n_gpus,metric,value,unit", lines)
    drawn = figures_of([path], tmp_path / "out")
    assert drawn["time"].startswith("epoch time (s) against the number of ranks")
    assert "T4 GPUs: 1 ranks 100, 2 ranks 50, 4 ranks 25 s" in drawn["time"] and "A100 GPUs: " in drawn["time"]
    assert drawn["time-2"].startswith("time of a whole run (s) against the number of ranks")
    assert "V100 GPUs: 1 ranks 7,000, 2 ranks 3,500, 4 ranks 1,750 s" in drawn["time-2"]
    assert "T4 GPUs: 1 ranks 36, 2 ranks 72, 4 ranks 144 epochs/h" in drawn["throughput"]
    assert "V100 GPUs: 1 ranks 0.514, 2 ranks 1.03, 4 ranks 2.06 runs/h" in drawn["throughput-2"]
    for name in ("time", "time-2", "throughput", "throughput-2"):
        assert ("T4" in drawn[name]) != ("V100" in drawn[name])


def test_steps_without_a_batch_are_ideal_where_they_stay_the_same(tmp_path: Path) -> None:
    lines = [("net", "T4", n, "steps_per_s", 10 - 0.1 * n) for n in (1, 2, 4)]
    report = assemble(read_inputs([log(tmp_path / "own.csv", "workload,gpu_type,n_gpus,metric,value", lines)]))
    (plot,) = [plot for plot in gallery(report, "net") if plot.name == "throughput"]
    (ideal,) = [
        line for line in plot.figure.axes[0].lines if line.get_linestyle() == ":" or len(line.get_xydata()) == 3
    ]
    assert np.asarray(ideal.get_ydata()).tolist() == pytest.approx([9.9, 9.9, 9.9])


def test_published_times_are_laid_under_ones_own_times_beside_throughput(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        ("caltech256", "A100", n, metric, value, unit)
        for n in (1, 2, 4)
        for metric, value, unit in (("throughput", 100 * n, ""), ("epoch_time", 120 / n + 4, "s"))
    ]
    path = log(tmp_path / "own.csv", "workload,gpu_type,n_gpus,metric,value,unit", lines)
    drawn = figures_of([path], tmp_path / "out", "--reference", "caltech256_lab")
    assert "A100 GPUs: 1 ranks 124, 2 ranks 64, 4 ranks 34 s" in drawn["time"]
    assert "caltech256 on T4 GPUs (published): 2 ranks 209, 4 ranks 81 s" in drawn["time"]
    assert not any("(published)" in drawn[name] for name in ("throughput", "efficiency"))
    assert "published table" not in capsys.readouterr().err
    assert "time" not in figures_of([path], tmp_path / "without"), "by itself it is fitted by its throughput"


def test_of_a_large_published_table_six_groups_are_laid_under(tmp_path: Path) -> None:
    same = "mnist_mlp, kernel=serial, hidden=64"
    lines = [(f'"{workload}"', "A100", n, "total_time", 100 / n, "s") for workload in ("net", same) for n in (1, 2, 4)]
    path = log(tmp_path / "own.csv", "workload,gpu_type,n_gpus,metric,value,unit", lines)
    report = assemble(read_inputs([path]), None, reference("mnist_mlp_kernels"))
    found = {workload: series_of(report, parts_of(report, workload))[0] for workload in ("net", same)}
    assert len({marker(one.index) for one in found["net"] if one.reference}) == 6, "all are grey"
    (plot,) = time_plots(found["net"])
    assert plot.alt.count("(published)") == 6
    assert ", 6 of 48 published groups. " in plot.alt
    assert "6 of 48 published groups" in [text.get_text() for text in plot.figure.axes[0].texts]
    efficiency = efficiency_plot(found["net"])
    assert efficiency is not None and "published" not in efficiency.alt, "one size has no efficiency"
    labels = [one.label for one in found[same] if one.reference]
    assert labels == [f"{same} on CPU ranks, batch {batch} (published)" for batch in (32, 64, 128)], "told apart"


def test_a_published_table_that_has_nothing_in_common_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [("caltech256", "A100", n, "throughput", 100 * n) for n in (1, 2, 4)]
    path = log(tmp_path / "own.csv", "workload,gpu_type,n_gpus,metric,value", lines)
    drawn = figures_of([path], tmp_path / "out", "--reference", "caltech256_lab")
    assert not any("(published)" in alt for alt in drawn.values())
    said = (
        "Nothing of the published table could be laid under the figures: it has epoch_time, and they show throughput."
    )
    assert said in capsys.readouterr().err.splitlines()
    assert said in (tmp_path / "out" / "report.html").read_text()
    assert said.replace("_", "\\_") in (tmp_path / "out" / "report.md").read_text()
