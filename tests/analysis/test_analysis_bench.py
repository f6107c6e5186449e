"""The benchmarks themselves: on tables and curves whose answers are known, in the documented layout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
NUMBERS = {"n", "median", "p80", "p90", "bias", "coverage"}


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "bench" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("metric", "unit", "plain", "written"),
    [
        ("throughput", "images/s per GPU", lambda n, t: f"{1000 / t}", lambda n, t: f"{1000 / t / n}"),
        ("epoch_time", "s", lambda n, t: f"{t}", lambda n, t: f"{int(t) // 60}:{t % 60:06.3f}"),
    ],
)
def test_backtest_reads_what_a_table_of_the_analysis_may_hold(
    metric: str, unit: str, plain: Callable[..., str], written: Callable[..., str], tmp_path: Path
) -> None:
    outcomes = []
    for form, own in ((plain, "" if metric == "throughput" else "s"), (written, unit)):
        folder = tmp_path / str(len(outcomes))
        folder.mkdir()
        rows = [f"net,V100,{n},1,{metric},{form(n, 400 * (0.1 + 0.9 / n))},{own}" for n in (1, 2, 4, 8)]
        text = "\n".join(
            ["workload,gpu_type,n_gpus,n_nodes,metric,value,unit", *rows, f"net,V100,8,1,{metric},N/A,{own}"]
        )
        (folder / "table.csv").write_text(text + "\n")
        done = run("backtest.py", folder, "--json", folder / "out.json")
        assert done.returncode == 0, done.stderr
        assert "table.csv: 1 of 5 rows are left out" in done.stderr
        outcomes.append(json.loads((folder / "out.json").read_text()))
    (first, second) = (each["scaling"]["hvdtrain"]["one_node"] for each in outcomes)
    assert first["n"] == 1
    assert second["median"] == pytest.approx(first["median"], abs=1e-3)


def test_backtest_predicts_known_laws_better_than_the_last_point(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    rows = []
    for number in range(12):
        share = random.uniform(0.005, 0.03)
        for n in (1, 2, 4, 8, 16, 32):
            speed = 100 * n / (1 + share * (n - 1)) / (1.1 if n > 8 else 1.0) * np.exp(random.normal(0, 0.01))
            rows.append({"workload": f"net {number}", "gpu_type": "V100", "n_gpus": n, "n_nodes": -(-n // 8),
                         "global_batch": 32 * n, "metric": "throughput", "value": speed, "unit": "images/s"})  # fmt: skip
        for batch in (64, 128, 256, 512):
            epochs = 10 * (1 + batch / 300) * np.exp(random.normal(0, 0.02))
            rows.append(
                {
                    "workload": f"net {number}",
                    "global_batch": batch,
                    "metric": "epochs_to_target",
                    "value": epochs,
                    "unit": "epochs",
                }
            )
    pd.DataFrame(rows).to_csv(tmp_path / "known.csv", index=False)
    done = run("backtest.py", tmp_path, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found) == {"scaling", "epochs"}
    assert {"hvdtrain", "amdahl", "usl", "last_point"} <= set(found["scaling"])
    assert set(found["scaling"]["hvdtrain"]) == {"one_node", "multi_node", "crossing"}
    for model in (*found["scaling"].values(), {"epochs": found["epochs"]["hvdtrain"]}):
        for summary in model.values():
            assert set(summary) == NUMBERS
    ours, last = found["scaling"]["hvdtrain"], found["scaling"]["last_point"]
    assert ours["one_node"]["n"] == 12
    # From 1, 2, 4 to 8; from up to 16 to 32.
    assert ours["one_node"]["median"] < 3.3
    assert ours["one_node"]["median"] < last["one_node"]["median"]
    assert ours["multi_node"]["median"] < 6.5
    assert ours["one_node"]["coverage"] > 0.8
    assert found["epochs"]["hvdtrain"]["median"] < 7
    assert found["epochs"]["hvdtrain"]["n"] == 12
    assert "all" in done.stdout


def test_backtest_says_when_there_is_nothing(tmp_path: Path) -> None:
    done = run("backtest.py", tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path} holds no CSV file\n"


def test_stability_ranks_detectors_on_known_curves(tmp_path: Path) -> None:
    t = np.arange(60)
    curve = pd.DataFrame({"epoch": t, "val_acc": 0.85 - 0.75 * np.exp(-t / 5)})
    curve.to_csv(tmp_path / "curve.csv", index=False)
    done = run("stability.py", tmp_path, "--repeats", 4, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    (row,) = found["published"]
    assert row["hvdtrain"] == pytest.approx(23, abs=1)
    known = pd.DataFrame(found["synthetic"])
    assert set(known["curve"]) == {"exponential", "step schedule", "overfit", "never stable", "NaN"}
    rmse = known[known["curve"] != "never stable"].groupby("detector")["rmse"].mean()
    assert rmse["hvdtrain"] < rmse.drop("hvdtrain").min()
    never = known[known["curve"] == "never stable"].groupby("detector")["answered"].max()
    assert never["hvdtrain"] == 0
    assert never["argmax"] == 1
