"""Every bench runs from start to end with as little work as possible: none rots. Times are not looked at.

`backtest.py` and `stability.py` have tests of their own among those of the analysis.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds import warm

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench"
#: Bench -> what makes it tiny, where it is not `--tiny`.
TINY = {
    "allreduce": ["--tiny"],
    "allreduce --link": ["--tiny", "--link", "1gbit"],
    "calls": ["--tiny"],
    "control": ["--tiny", "--cluster"],
    "gpu": ["--tiny"],
    "accuracy_by_ranks": ["--tiny"],
    "input_pipeline": ["--tiny"],
    "meeting": ["--tiny"],
    "launchers": ["--ranks", "2", "--rounds", "1", "--epochs", "2"],
    "overheads": ["--steps", "40", "--width", "64"],
    "overheads_keras": ["--turns", "2", "--width", "32"],
    "profile_step": ["--tiny"],
    "settings": ["--tiny"],
    "setup": ["--tiny"],
    "slow_network": ["--tiny"],
    "startup": ["--tiny"],
    # The hand-written loops are those of the bench in blocks.
    "step_keras": ["--tiny", "--models", "CNN", "--contenders", "multiworker,single"],
    "step_keras_blocks": ["--tiny"],
    "step_torch": ["--tiny", "--contenders", "DDP,single"],
    "step_torch_blocks": ["--tiny"],
}
#: Benches that print and write in a form of their own.
OWN_FORM = {"accuracy_by_ranks", "input_pipeline"}
#: Benches of how ranks start.
COLD = {"launchers", "startup"}
#: Not benches: what they share, and those tested elsewhere.
OTHERS = {"backtest", "blocks", "gpu_parts", "input_contenders", "pictures", "rivals", "stability", "turns"}


@pytest.mark.ranks
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TINY)
def test_bench(name: str, tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    script = BENCH / f"{name.split()[0]}.py"
    words = TINY[name]
    if "--tiny" in words:
        words = [*words, "--json", str(out)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    if name not in COLD:
        environ |= warm("keras tensorflow", "torch")
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=environ, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    if "--tiny" in words:
        numbers = json.loads(out.read_text())
        assert numbers["machine"]
    if "--tiny" in words and name not in OWN_FORM:
        assert "the numbers mean nothing" in done.stdout
        assert numbers["tiny"] is True


def test_pictures_show_the_results_that_are_kept(tmp_path: Path) -> None:
    """Or somebody has renewed numbers without `python bench/pictures.py`."""
    command = [sys.executable, str(BENCH / "pictures.py"), "--into", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "pictures").iterdir()}
    assert drawn.keys() == kept.keys()
    assert [name for name in drawn if drawn[name] != kept[name]] == []
    page = (ROOT / "docs" / "performance.md").read_text()
    assert [name for name in drawn if f"](pictures/{name})" not in page] == []


def test_no_bench_is_left_out() -> None:
    tested = {name.split()[0] for name in TINY} | OTHERS
    assert {path.stem for path in BENCH.glob("*.py")} == tested
