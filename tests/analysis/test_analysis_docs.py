"""What the guides show is what comes out."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pandas as pd

from analysis.finding import CODES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_example_of_the_guide_runs_and_says_so() -> None:
    text = (DOCS / "scaling-analysis.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 6
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "guide", "scaling-analysis.md", 0)
    said: list[str] = []
    try:
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=said.append)
    finally:
        for option in ("display.width", "display.max_columns", "display.precision"):
            pd.reset_option(option)
    assert result.attempted > 10
    assert result.failed == 0, "".join(said)


def test_every_finding_is_explained() -> None:
    guide = (DOCS / "scaling-analysis.md").read_text(encoding="utf-8")
    for code in CODES:
        assert f"| `{code}` |" in guide


def test_docstrings_say_what_is_true() -> None:
    import analysis.diagnosis
    import analysis.fitting
    import analysis.recommendation
    import analysis.stability

    for module in (
        analysis.diagnosis,
        analysis.fitting,
        analysis.recommendation,
        analysis.stability,
        analysis.references,
    ):
        failed, tried = doctest.testmod(module)
        assert tried
        assert failed == 0
