"""Legends: within their figure, and over no data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from analysis.assemble import assemble
from analysis.figure import draw
from analysis.plots.gallery import gallery
from analysis.tables import read_inputs
from tests.analysis.test_analysis_figure import no_overlaps

LONG = "NVIDIA A100-SXM4-80GB"
#: GPU type, batch, rule and precision of the groups of a figure.
GROUPS = {
    "two rules": [(LONG, 64, "linear", "float32"), (LONG, 64, "sqrt", "float32")],
    "all differ": [(LONG, 64, "linear", "float32"), (LONG, 128, "sqrt", "float16"), (LONG, 256, "linear", "bfloat16")],
    "six types": [(f"NVIDIA {kind}00-SXM4-80GB HBM3", 64, "linear", "float32") for kind in "ABCDEF"],
    "short": [("T4", 64, "linear", "float32"), ("V100", 64, "linear", "float32")],
}


def check_legend(figure: Figure) -> None:
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend()
    if legend is None:
        return
    extent = legend.get_window_extent()
    assert extent.x0 >= figure.bbox.x0 and extent.x1 <= figure.bbox.x1
    assert extent.y0 >= figure.bbox.y0 and extent.y1 <= figure.bbox.y1
    points = [
        axes.transData.transform(own.get_offsets()) for own in axes.collections if isinstance(own, PathCollection)
    ]
    points += [
        axes.transData.transform(line.get_xydata()) for line in axes.lines if line.get_marker() not in ("", "None")
    ]
    assert not any(extent.count_contains(np.asarray(each)) for each in points if len(each))
    written = [axes.xaxis.label, *(tick for tick in axes.get_xticklabels() if tick.get_text())]
    assert not any(extent.overlaps(text.get_window_extent()) for text in written)


@pytest.mark.parametrize("kind", GROUPS)
def test_legends_stay_within_their_figure_and_off_the_data(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text("workload,gpu_type,per_gpu_batch,lr_rule,precision,n_gpus,epochs,metric,value\n" + "".join(
        f"resnet,{gpu},{batch},{rule},{precision},{n},30,{metric}\n"
        for place, (gpu, batch, rule, precision) in enumerate(GROUPS[kind]) for n in (1, 2, 4, 8)
        for metric in (f"throughput,{(64 + place) * n / (1 + 0.02 * n)}", f"epochs_to_stability,{9 + n}")))  # fmt: skip
    report = assemble(read_inputs([path]))
    plots = gallery(report, "resnet")
    assert len(plots) >= 4
    for plot in plots:
        check_legend(plot.figure)
    figure = draw(report)
    no_overlaps(figure)
    if kind == "two rules":
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert sorted(labels) == ["linear learning-rate rule", "sqrt learning-rate rule"]
        assert f"resnet on {LONG} GPUs, batch 64 per GPU, float32" in figure.texts[0].get_text()
