"""The figure: what is on its axes, and that nothing written on it collides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from analysis.assemble import assemble
from analysis.figure import draw
from analysis.tables import read_inputs

AddCell = Callable[..., Path]


def figure_of(*paths: Path) -> tuple[Figure, list[Axes]]:
    figure = draw(assemble(read_inputs(paths)))
    return figure, figure.axes


def xy(axes: Axes, index: int = 0) -> tuple[list[float], list[float]]:
    line = axes.containers[index][0]
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


@pytest.fixture
def study(add_cell: AddCell) -> Path:
    for ranks, rate in ((1, 100), (2, 190), (4, 300)):
        for seed, factor in enumerate((1, 0.9, 1.2)):
            folder = add_cell(ranks, [10, rate * factor, rate * factor], [0.5, 0.8, 0.9 - ranks / 100], seed=seed)
    return folder


def test_three_panels_with_their_data(study: Path) -> None:
    figure, (speed, efficiency, accuracy) = figure_of(study)
    assert [axes.get_xlabel() for axes in figure.axes] == ["CPU ranks", "CPU ranks", "epoch"]
    assert speed.get_ylabel() == "throughput (samples/s)"
    assert efficiency.get_ylabel() == "efficiency (%)"
    assert accuracy.get_ylabel() == "validation accuracy (%)"
    assert xy(speed) == ([1, 2, 4], [100, 190, 300])
    assert xy(efficiency)[1] == pytest.approx([100, 95, 75])
    (ideal,) = [line for line in speed.lines if np.size(line.get_xdata()) == 2 and line.get_linestyle() == "--"]
    assert np.asarray(ideal.get_ydata()).tolist() == [100, 400]
    assert [text.get_text() for text in speed.get_xticklabels()] == ["4", "2", "1"]
    assert (speed.get_xscale(), speed.get_yscale()) == ("log", "log")
    low, high = speed.get_ylim()
    numbers = [text.get_text() for text in speed.get_yticklabels() if low <= text.get_position()[1] <= high]
    assert numbers == ["100", "200", "300", "500"]
    curves = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in accuracy.lines}
    assert curves == {"1": [50, 80, 89], "2": [50, 80, 88], "4": [50, 80, 86]}
    title = figure.texts[0].get_text()
    assert title == "digits on CPU ranks, batch 32 per rank, linear learning-rate rule, float32"
    assert "node01, 8 cores" in figure.texts[1].get_text()
    everything = " ".join(text.get_text() for text in figure.findobj(match=lambda a: hasattr(a, "get_text")))  # type: ignore[attr-defined]
    assert "GPU" not in everything


def test_error_bars_span_the_replicates(study: Path) -> None:
    _, (speed, efficiency, _) = figure_of(study)
    for axes, expected in (
        (speed, [(90, 120), (171, 228), (270, 360)]),
        (efficiency, [(90, 120), (85.5, 114), (67.5, 90)]),
    ):
        (bars,) = axes.containers[0][2]
        assert [tuple(segment[:, 1]) for segment in bars.get_segments()] == [pytest.approx(pair) for pair in expected]


def test_a_table_of_results_without_samples_per_second(caltech: Path) -> None:
    figure, (speed, efficiency, accuracy) = figure_of(caltech)
    assert speed.get_ylabel() == "speed (epochs/h)"
    assert speed.get_xlabel() == "GPUs"
    assert xy(speed, 0)[1] == pytest.approx([3600 / 209, 3600 / 81])
    assert xy(efficiency, 1)[1] == pytest.approx([100, 100 * 80 / 44 / 2])
    assert [xy(accuracy, index)[1][0] for index in range(4)] == pytest.approx([68.88, 67.60, 68.61, 67.19])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["T4 GPUs", "V100 GPUs"]


def no_overlaps(figure: Figure) -> None:
    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    written: list[Text | Legend] = [*figure.texts, *figure.legends]
    for axes in figure.axes:
        ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        # matplotlib keeps labels of ticks beyond the limits and does not draw them.
        box = axes.get_window_extent(renderer).padded(2)
        for label in ticks:
            extent = label.get_window_extent(renderer)
            x, y = (extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2
            if label.get_text() and (box.x0 <= x <= box.x1 or box.y0 <= y <= box.y1):
                written.append(label)
        titles = [text for text in axes.findobj(Text) if text.get_text() == axes.get_title(loc="left")]
        written += [axes.xaxis.label, axes.yaxis.label, *titles]
    boxes = [item.get_window_extent(renderer) for item in written]
    assert len(boxes) >= 3 * 5
    for (one, first), (two, second) in itertools.combinations(zip(written, boxes, strict=True), 2):
        assert not first.overlaps(second), f"{one} lies on {two}"
    for item, extent in zip(written, boxes, strict=True):
        assert figure.bbox.x0 <= extent.x0, f"{item} is cut off"
        assert extent.x1 <= figure.bbox.x1, f"{item} is cut off"


@pytest.mark.parametrize("ranks", [(2,), (1, 2, 3, 4, 5, 6, 7, 8), (1, 1024)])
def test_nothing_written_overlaps(add_cell: AddCell, ranks: tuple[int, ...]) -> None:
    for count in ranks:
        folder = add_cell(count, [10, 987_654 * count, 987_654 * count])
    figure, _ = figure_of(folder)
    no_overlaps(figure)


def test_nothing_written_overlaps_with_a_long_line_below(study: Path) -> None:
    figure, _ = figure_of(study)
    assert "replicates" in figure.texts[1].get_text()
    no_overlaps(figure)


def test_nothing_written_overlaps_with_a_legend_of_groups(caltech: Path) -> None:
    figure, _ = figure_of(caltech)
    assert len(figure.legends) == 1
    no_overlaps(figure)


def test_more_groups_than_colours_are_said_in_the_title(tmp_path: Path) -> None:
    lines = [f"{name},{ranks},throughput,{ranks}00" for name in "abcdefgh" for ranks in (1, 2)]
    path = tmp_path / "many.csv"
    path.write_text("\n".join(["workload,n_gpus,metric,value", *lines]))
    figure, (speed, *_) = figure_of(path)
    assert len(speed.containers) == 6
    assert "(first 6 of 8 groups)" in figure.texts[0].get_text()
