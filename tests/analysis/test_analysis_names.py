"""Names as people and jobs write them: with dollar signs, control characters, brackets, and longer than a phone is wide."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from analysis.__main__ import main
from tests.analysis.conftest import AddCell

HEAD = "workload,gpu_type,n_gpus,metric,value,unit\n"


def reported(folder: Path, lines: list[str], *more: str, head: str = HEAD) -> Path:
    """The folder of the report of a table."""
    table = folder / "own.csv"
    table.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert main(["report", str(table), "--out", str(folder / "out"), *more]) == 0
    return folder / "out"


def speeds(workload: str, gpu_type: str = "A100") -> list[str]:
    return [f'"{workload}",{gpu_type},{n},throughput,{100 * n / (1 + 0.02 * n)},' for n in (1, 2, 4)]


@pytest.mark.parametrize("name", ["digits $a__b$ x", "$DATA_DIR/$SET"])
def test_a_dollar_sign_is_no_formula(tmp_path: Path, name: str) -> None:
    out = reported(tmp_path, [*speeds(name), *speeds(name, "V$1$")])
    figure = ElementTree.parse(out / "figures" / "throughput.svg")
    # The glyph of the dollar sign, which a formula would not show.
    glyphs = [use.get("{http://www.w3.org/1999/xlink}href") for use in figure.iter("{http://www.w3.org/2000/svg}use")]
    assert sum(glyph == "#DejaVuSans-7" for glyph in glyphs) >= 2
    assert name in (out / "report.html").read_text()


def test_a_control_character_leaves_the_figures_well_formed(tmp_path: Path) -> None:
    out = reported(tmp_path, speeds("d\x1bx", "A\x0b100"))
    for figure in (out / "figures").glob("*.svg"):
        ElementTree.parse(figure)
    assert "A\ufffd100" in (out / "report.html").read_text()


def test_so_does_one_that_a_job_was_given(add_cell: AddCell) -> None:
    for ranks in (1, 2):
        for word in ("a\x07", "b"):
            cell = {"name": word[0], "environment": {"X": word}}
            study = add_cell(ranks, [50.0, 90.0 * ranks, 90.0 * ranks], cell=cell)
    assert main(["report", str(study)]) == 0
    for figure in (study / "report" / "figures").glob("*.svg"):
        ElementTree.parse(figure)
    assert "X=a\ufffd" in (study / "report" / "report.html").read_text()


MARKUP = "<img src=x onerror=alert(1)> [a](http://evil.example) | `b` &lt;i&gt; **c**\n## d"


def test_a_job_cannot_put_markup_into_the_markdown(tmp_path: Path) -> None:
    head = "workload,gpu_type,n_gpus,lr_rule,metric,value,unit\n"
    lines = [
        f'"{MARKUP}",{kind} <b>x</b> [y](z),{n},linear *rule*,{metric},{100 / n},{"s" if metric == "epoch_time" else ""}'
        for kind in ("A100", "T4")
        for n in (1, 2, 4)
        for metric in ("throughput", "epoch_time", "epochs_to_stability")
    ]
    text = (reported(tmp_path, lines, head=head) / "report.md").read_text()
    page = MarkdownIt("commonmark").enable("table").render(text)
    for tag in ("<img src=x", "<b>", "<i>", "<a ", "<em>", "<h2>d", "<code>b"):
        assert tag not in page
    assert (
        "<h2>&lt;img src=x onerror=alert(1)&gt; [a](http://evil.example) | `b` &amp;lt;i&amp;gt; **c** ## d on A100"
        in page
    )
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL)
    assert "4 x A100 &lt;b&gt;x&lt;/b&gt; [y](z)" in "".join(rows)
    alts = re.findall(r'<img src="[^"]*" alt="([^"]*)"', page)
    assert len(alts) > 4
    assert "[a](http://evil.example) | `b`" in alts[0]


def test_a_backtick_in_a_path_does_not_end_the_code(tmp_path: Path) -> None:
    folder = tmp_path / "a`<b>"
    folder.mkdir()
    text = (reported(folder, speeds("digits")) / "report.md").read_text()
    assert "a`&lt;b&gt;/own.csv</code>" in MarkdownIt("commonmark").render(text)
