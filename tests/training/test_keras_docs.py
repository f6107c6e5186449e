"""The two scripts of the documentation run, and differ by no more than it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.test_torch_docs import changed_lines
from tests.worlds import run_cold_world

DOCS = Path(__file__).parents[2] / "docs"
BEFORE, AFTER = (DOCS / "examples" / f"keras_{name}.py" for name in ("before", "after"))


def test_the_diff_has_at_most_eight_lines_and_is_the_one_in_the_documentation() -> None:
    changed = changed_lines(BEFORE, AFTER)
    assert 0 < len(changed) <= 8
    block = (DOCS / "train-with-keras.md").read_text().split("```diff\n")[1].split("```")[0]
    assert sorted(line for line in block.splitlines() if line[:1] in "+-") == sorted(changed)


def test_before() -> None:
    run = subprocess.run([sys.executable, str(BEFORE)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert accuracy(run.stdout) > 0.9


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_after(ranks: int) -> None:
    ended = run_cold_world(ranks, AFTER)
    assert ended.status == 0, ended.err
    assert accuracy(ended.out) > 0.9


def accuracy(out: str) -> float:
    """Of the last epoch, on all validation samples."""
    return float(re.findall(r"val_accuracy: (\S+)", out)[-1])


def test_every_word_of_the_documentation_that_names_a_function_exists() -> None:
    import hvdtrain.keras as hk

    text = (DOCS / "train-with-keras.md").read_text()
    assert {name for name in re.findall(r"hk\.(\w+)", text) if not hasattr(hk, name)} == set()
