"""Many runs are read and fitted in seconds and in little memory."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.yardstick import assert_within

RUNS = 2000

PROGRAM = """
import sys, time
from pathlib import Path
import analysis
analysis.fit_scaling(analysis.reference("caltech256_lab"))
began = time.process_time()
table = analysis.read(sys.argv[1])
fit = analysis.fit_scaling(table)
rows = fit.predict([32])
spent = time.process_time() - began
# Not getrusage: it counts what the process that started this one held.
peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(len(table["source"].unique()), len(fit.groups), len(rows), spent, int(peak) / 1024)
"""


@pytest.mark.alone
def test_ten_thousand_runs_take_less_than_twenty_seconds_and_a_gigabyte(tmp_path: Path) -> None:
    """A fifth of them are written here: reading is linear in runs, and that is counted."""
    noise = random.Random(0)
    study = tmp_path / "big"
    study.mkdir()
    (study / "study.json").write_text('{"name": "big"}')
    for number in range(RUNS):
        ranks, seed, network = 2 ** (number % 5), number // 5 % 8, number // 40
        folder = study / f"c{number}"
        folder.mkdir()
        shape = {"nodes": 1 + (ranks > 8), "tasks_per_node": min(ranks, 8)}
        cell = {"name": folder.name, "job": "net", "workload": f"net{network}", "gpus": ranks, "gpu_type": "v100", "batch_size": 32,
                "lr_rule": "linear", "seed": seed, "settings": {}, "shape": shape}  # fmt: skip
        (folder / "cell.json").write_text(json.dumps(cell))
        done = {"status": "completed", "device": "gpu", "world_size": ranks, "seconds": 100.0}
        (folder / "result.json").write_text(json.dumps(done))
        rate = 100 * ranks / (1 + 0.01 * (ranks - 1)) * noise.gauss(1, 0.02)
        lines = []
        for epoch in range(1, 21):
            accuracy = 0.85 - 0.75 * math.exp(-epoch / 3) + noise.gauss(0, 0.003)
            lines.append(json.dumps({"epoch": epoch, "val_acc": accuracy, "lr": 0.1, "samples": 1000, "seconds": 1000 / rate + 0.2,
                                     "seconds_val": 0.2, "samples_per_second": rate, "restart": 0}))  # fmt: skip
        (folder / "epochs.jsonl").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-c", PROGRAM, str(study)]

    def seconds_of_ten_thousand() -> float:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stderr
        sources, groups, rows, spent, megabytes = map(float, ended.stdout.split())
        assert (sources, groups, rows) == (RUNS, RUNS / 40, RUNS / 40)
        assert megabytes < 1000
        return spent * 10_000 / RUNS

    assert_within(20, seconds_of_ten_thousand, tries=3)
