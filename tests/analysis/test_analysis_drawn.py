"""What the single figures show: read from what they say in words for those who cannot see them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from analysis.__main__ import main


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
    assert "accuracy_epoch" in drawn
    assert "accuracy_time" not in drawn


def test_an_export_whose_first_epoch_is_not_timed_is_not_drawn_over_time(tmp_path: Path) -> None:
    lines = [(1.7e9 + 99 * e, e, own) for e, own in enumerate(CURVE)]
    paths = [log(tmp_path / f"val_acc_n{n}.csv", "Wall time,Step,Value", lines) for n in (2, 4)]
    assert "accuracy_time" not in figures_of(paths, tmp_path / "out")


def test_hours_of_a_device_that_is_not_recorded_are_not_those_of_gpus(tmp_path: Path) -> None:
    path = log(tmp_path / "log_n2.csv", "epoch,val_acc,seconds", [(e, own, 100) for e, own in enumerate(CURVE)])
    drawn = figures_of([path], tmp_path / "out")
    assert drawn["accuracy_gpu_hours"].startswith("Validation accuracy against rank time")
