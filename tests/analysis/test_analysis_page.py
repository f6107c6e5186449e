"""The page in a real browser: at the width of a desk and of a phone, and in print."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright import sync_api as playwright

from analysis.__main__ import main
from analysis.panels import COLOURS
from analysis.references import path_of
from tests.yardstick import assert_within, wall_seconds

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = {"desk": 1280, "phone": 390}
OF_TABLES = {
    "time",
    "throughput",
    "efficiency",
    "karp_flatt",
    "accuracy_epoch",
    "accuracy_time",
    "accuracy_gpu_hours",
    "epochs",
    "pareto",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(f"no browser: install one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the published lab."""
    out = tmp_path_factory.mktemp("lab")
    assert main(["report", str(path_of("caltech256_lab")), "--out", str(out)]) == 0
    return out / "report.html"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study that is really trained here: digits with 1 and 2 ranks."""
    folder = tmp_path_factory.mktemp("study")
    submit = [sys.executable, "-m", "hvdtrain.submit", "--gpus", "1,2", "--job", "digits", "--epochs", "12", "--wait"]
    done = subprocess.run(submit, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert main(["report", str(folder / "runs" / "digits")]) == 0
    return folder / "runs" / "digits" / "report" / "report.html"


def opened(browser: Any, page: Path, width: int) -> Any:
    shown = browser.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(page.as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == [], "the page needs no network"
    return shown


def check_fits(shown: Any, width: int) -> None:
    """Nothing is wider than the window, and nothing outside of a scrolling table reaches over its edge."""
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    over = shown.evaluate(
        """width => [...document.querySelectorAll('h1,h2,h3,p,figure,img,.answer')]
             .filter(e => e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML.slice(0, 80))""",
        width,
    )
    assert over == []


def check_figures(shown: Any, names: set[str]) -> None:
    """Every figure is there, drawn, described in words, and shows its data in the palette's first colours."""
    images = shown.query_selector_all("img[data-figure]")
    assert {image.get_attribute("data-figure") for image in images} == names
    for image in images:
        assert image.evaluate("e => e.complete && e.naturalWidth > 300")
        assert len(image.get_attribute("alt")) > 40
        pixels = np.asarray(Image.open(io.BytesIO(image.screenshot())).convert("RGB"), dtype=int)
        wanted = [tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5)) for colour in COLOURS]
        near = [int((np.abs(pixels - np.array(colour)).max(axis=2) < 40).sum()) for colour in wanted]
        assert max(near) > 20, f"{image.get_attribute('data-figure')} shows no data"


@pytest.mark.parametrize("kind", list(WIDTHS))
def test_the_lab_is_readable(browser: Any, lab: Path, kind: str) -> None:
    width = WIDTHS[kind]
    shown = opened(browser, lab, width)
    check_fits(shown, width)
    check_figures(shown, OF_TABLES)
    # The answer is in the first screenful, and the letters are not smaller than 14 pixels where they are sentences.
    box = shown.query_selector(".answer").bounding_box()
    assert box["y"] + 60 < 900
    assert "8 x V100" in shown.inner_text(".answer")
    sizes = shown.evaluate("[...document.querySelectorAll('p,td')].map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 14
    codes = shown.eval_on_selector_all(".findings code", "all => all.map(e => e.textContent)")
    assert {"inconsistent_total", "superlinear", "input_bound", "horizon"} <= set(codes)
    places = shown.eval_on_selector_all("figure", "all => all.map(e => Math.round(e.getBoundingClientRect().left))")
    assert len(set(places)) == (1 if kind == "phone" else 3)
    # A figure's letters, 9 points in 4.4 inches, shown at this width.
    drawn = shown.query_selector("img").bounding_box()["width"]
    assert 9 * drawn / (4.4 * 72) >= 9
    shown.close()


def test_the_lab_in_print(browser: Any, lab: Path, tmp_path: Path) -> None:
    shown = opened(browser, lab, 794)
    shown.emulate_media(media="print")
    check_fits(shown, 794)
    assert (
        shown.evaluate("getComputedStyle(document.querySelector('.figures')).gridTemplateColumns.split(' ').length")
        == 2
    )
    assert shown.evaluate("getComputedStyle(document.querySelector('.wide')).overflowX") == "visible"
    wide = shown.evaluate("[...document.querySelectorAll('table')].map(e => e.getBoundingClientRect().right)")
    assert max(wide) <= 794
    document = shown.pdf(format="A4")
    assert document.startswith(b"%PDF")
    assert 2 <= document.count(b"/Type /Page\n") + document.count(b"/Type /Page ") <= 8
    shown.close()


@pytest.mark.ranks
@pytest.mark.parametrize("kind", list(WIDTHS))
def test_a_study_trained_here_is_readable(browser: Any, study: Path, kind: str) -> None:
    shown = opened(browser, study, WIDTHS[kind])
    check_fits(shown, WIDTHS[kind])
    check_figures(
        shown,
        (OF_TABLES | {"phases"}) - {"time", "epochs"}
        | ({"epochs"} if shown.query_selector("img[data-figure=epochs]") else set()),
    )
    text = shown.inner_text("main")
    for heading in ("Predictions", "Epochs to stability", "Seconds of an epoch"):
        assert heading in text
    assert "CPU ranks" in text
    assert "GPU" not in text
    shown.close()


def test_a_reference_is_laid_under_ones_own_points(browser: Any, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("workload,gpu_type,n_gpus,metric,value,unit\n" + "".join(
        f"caltech256,A100,{n},epoch_time,{120 / n + 4},s\n" for n in (1, 2, 4)))  # fmt: skip
    out = tmp_path / "out"
    assert main(["report", str(own), "--reference", "caltech256_lab", "--out", str(out)]) == 0
    shown = opened(browser, out / "report.html", 1280)
    alt = shown.query_selector("img[data-figure=time]").get_attribute("alt")
    assert "caltech256 on T4 GPUs (published): 2 ranks 209, 4 ranks 81 s" in alt
    assert "caltech256 on V100 GPUs (published)" in alt
    assert "V100" not in shown.inner_text("main"), "a reference takes part in no conclusion"
    shown.close()


def test_a_job_cannot_put_markup_into_the_page(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text(
        "workload,n_gpus,metric,value,unit\n<script>alert(1)</script>,1,throughput,5,\n<script>alert(1)</script>,2,throughput,9,\n"
    )
    assert main(["report", str(own), "--out", str(tmp_path / "out")]) == 0
    assert "<script>" not in (tmp_path / "out" / "report.html").read_text()


def test_a_long_name_is_not_wider_than_a_phone(browser: Any, tmp_path: Path) -> None:
    name, own = "digits, --data=/scratch/project/datasets/imagenet_2012_packed_cache", tmp_path / "own.csv"
    lines = "".join(f'"{name}",A100,{n},throughput,{100 * n / (1 + 0.02 * n)}\n' for n in (1, 2, 4))
    own.write_text(f"workload,gpu_type,n_gpus,metric,value\n{lines}")
    assert main(["report", str(own), "--out", str(tmp_path / "out")]) == 0
    shown = opened(browser, tmp_path / "out" / "report.html", WIDTHS["phone"])
    check_fits(shown, WIDTHS["phone"])
    shown.close()


@pytest.mark.alone
def test_the_labs_report_takes_less_than_five_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "analysis", "report", str(path_of("caltech256_lab")), "--out", str(tmp_path)]
    assert_within(5, lambda: wall_seconds(command))
