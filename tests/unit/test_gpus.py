"""What ranks report of their GPUs: nvidia-ml-py's own calls, answered by a library that stands in for the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, sys, time
from pathlib import Path
from hvdtrain import gpus
device, seconds = sys.argv[1], float(sys.argv[2])
gpus._SAMPLE_SECONDS = 0.05
print(json.dumps(gpus.describe(device)))
gpus.sample(device, 3, Path("run"))
time.sleep(seconds)
gpus.end_sampling()
written = Path("run/gpus/rank-3.json")
print(json.dumps(json.loads(written.read_text()) if written.exists() else None))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stand_in.c")
    built = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", built, source], check=True)
    smi = folder / "nvidia-smi"
    smi.write_text('#!/bin/sh\nfor i in 0 1 2; do echo "GPU $i: Stand-in (UUID: GPU-$i)"; done\n')
    smi.chmod(0o755)
    return folder


def report(library: Path, folder: Path, device: str, **environ: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What a rank says of its GPU, and what it sampled."""
    (folder / "run").mkdir()
    added = {"LD_LIBRARY_PATH": str(library), "PATH": f"{library}:{os.environ['PATH']}", **environ}
    words = [sys.executable, "-c", SCRIPT, device, "0.4"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **added}
    ended = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    described, sampled = map(json.loads, ended.stdout.splitlines())
    return described, sampled


def test_a_rank_reports_the_gpu_that_it_sees_and_what_it_did(library: Path, tmp_path: Path) -> None:
    described, sampled = report(library, tmp_path, "cuda:1", CUDA_VISIBLE_DEVICES="2,1,0")
    assert described == {
        "gpu": "Stand-in", "uuid": "GPU-bbbb", "driver": "570.1", "clock_mhz": 1590, "power_limit_w": 70.0
    }  # fmt: skip
    assert sampled is not None
    assert sampled["samples"] >= 3
    # The most memory ever used, and the energy of all of it: the counter grows by 7 J each time it is asked.
    assert {name: value for name, value in sampled.items() if name not in ("samples", "energy_j")} == {
        "rank": 3, "uuid": "GPU-bbbb", "utilisation": 41, "power_w": 60, "clock_mhz": 1200, "memory_mb": 3072
    }  # fmt: skip
    assert sampled["energy_j"] > 0
    assert sampled["energy_j"] % 7 == 0


def test_a_gpu_named_by_uuid_that_has_no_power_meter_tells_the_rest(library: Path, tmp_path: Path) -> None:
    described, sampled = report(library, tmp_path, "cuda:0", CUDA_VISIBLE_DEVICES="GPU-cccc,GPU-aaaa")
    assert (described["gpu"], described["power_limit_w"], described["clock_mhz"]) == ("Stand-in MIG", None, 1590)
    assert sampled is not None
    assert (sampled["power_w"], sampled["energy_j"], sampled["utilisation"]) == (None, None, 42)
    assert sampled["memory_mb"] == 3072


@pytest.mark.parametrize(
    ("device", "environ"),
    [("cpu", {}), ("cuda:0", {"NVML_BROKEN": "1"}), ("cuda:9", {}), ("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-zzzz"})],
)
def test_where_nothing_answers_nothing_is_made_up(
    library: Path, tmp_path: Path, device: str, environ: dict[str, str]
) -> None:
    assert report(library, tmp_path, device, **environ) == ({}, None)
