"""The two scripts of the documentation run, and differ by no more than it says."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds import run_cold_world

DOCS = Path(__file__).parents[2] / "docs"
BEFORE, AFTER = (DOCS / "examples" / f"torch_{name}.py" for name in ("before", "after"))


def changed_lines(old: Path = BEFORE, new: Path = AFTER) -> list[str]:
    """Lines with + or - of the difference between two scripts."""
    before, after = (path.read_text().splitlines() for path in (old, new))
    return [
        line for line in difflib.unified_diff(before, after, lineterm="", n=0) if re.match(r"[+-](?![+-]{2})", line)
    ]


def test_the_diff_has_at_most_eight_lines_and_is_the_one_in_the_documentation() -> None:
    assert len(changed_lines()) <= 8
    block = (DOCS / "train-with-torch.md").read_text().split("```diff\n")[1].split("```")[0]
    assert sorted(line for line in block.splitlines() if line[:1] in "+-") == sorted(changed_lines())


def test_before() -> None:
    run = subprocess.run([sys.executable, str(BEFORE)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert learned(run.stdout) == [True]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_after(ranks: int) -> None:
    ended = run_cold_world(ranks, AFTER)
    assert ended.status == 0, ended.err
    assert learned(ended.out) == [True] * ranks


def learned(out: str) -> list[bool]:
    """For each rank, whether the loss of the last epoch is low."""
    return [float(loss) < 0.5 for loss in re.findall(r"epoch 5: loss (\S+)", out)]


def test_every_word_of_the_documentation_that_names_a_function_exists() -> None:
    import hvdtrain.torch as ht

    text = (DOCS / "train-with-torch.md").read_text()
    assert {name for name in re.findall(r"ht\.(\w+)", text) if not hasattr(ht, name)} == set()
