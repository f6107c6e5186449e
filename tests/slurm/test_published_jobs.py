"""The published scripts, `sbatch slurm/JOB_2gpu.sh`, from a clean clone: every job trains on the nodes, on data in DATA_DIR."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import analysis
from hvdtrain import record
from hvdtrain.testcluster import Cluster
from tests.slurm.lab import ROOT, until

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]
#: Debian's package dataset-fashion-mnist, which `make test` installs.
FASHION = Path("/usr/share/datasets/fashion-mnist")
TINY_IMAGES = ["--image-size", "32", "--weights", "none", "--backbone", "MobileNet", "--batch-size", "4"]
#: Script -> arguments, and what the run records as its workload.
JOBS = {
    "mnist_cnn": ["--data", "fashion-mnist", "--batch-size", "256", "--loop", "custom"],
    "mnist_mlp": ["--data", "fashion-mnist", "--train-images", "384", "--test-images", "128"],
    "cifar10": ["--batch-size", "16"],
    "caltech256": [*TINY_IMAGES, "--framework", "torch"],
    "fruit": [*TINY_IMAGES, "--frozen"],
    "digits": [],
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this repository, with what is not committed yet."""
    clone = tmp_path_factory.mktemp("published") / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    subprocess.run(["cp", "-r", *(str(ROOT / name) for name in ("hvdtrain", "slurm", "jobs")), str(clone)], check=True)
    return clone


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for DATA_DIR with a few samples of every data set in its own format."""
    place = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for part, count in (("train", 512), ("t10k", 128)):
        _first(part, "images-idx3-ubyte", 16, count * 28 * 28, count, place)
        _first(part, "labels-idx1-ubyte", 8, count, count, place)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        # CIFAR-10's binary format: one byte of label and 3 x 32 x 32 bytes of pixels for each of its 10,000 images.
        images = rng.integers(0, 256, (32, 3073), dtype=np.uint8)
        images[:, 0] = np.arange(32) % 10
        (place / "cifar10").mkdir(exist_ok=True)
        images.tofile(place / "cifar10" / f"{name}.bin")
    for folder in ("train", "test"):
        for kind in ("freshapples", "rottenapples"):
            _photographs(place / "fruit" / folder / kind, 8, rng)
    for kind in ("001.ak47", "002.american-flag", "003.backpack"):
        _photographs(place / "caltech256" / "256_ObjectCategories" / kind, 10, rng)
    return place


def _first(part: str, kind: str, header: int, length: int, count: int, place: Path) -> None:
    """The beginning of one of Fashion-MNIST's files, with the number of its images in the header."""
    with gzip.open(FASHION / f"{part}-{kind}.gz") as file:
        content = bytearray(file.read(header + length))
    content[4:8] = struct.pack(">I", count)
    (place / "fashion-mnist").mkdir(exist_ok=True)
    (place / "fashion-mnist" / f"{part}-{kind}").write_bytes(content)


def _photographs(folder: Path, count: int, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    for index in range(count):
        pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:04d}.jpg")


def test_every_published_job(slurm_cluster: Cluster, clone: Path, data: Path) -> None:
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    wanted: dict[str, tuple[str, int]] = {}

    def sbatch(name: str, words: list[str], arguments: list[str], world: int) -> None:
        command = ["env", path, f"DATA_DIR={data}", "sbatch", "--parsable", "--cpus-per-task=1", *words]
        done = slurm_cluster.run(
            [*command, f"slurm/{name}_2gpu.sh", "--epochs", "1", *arguments], cwd=clone, check=True
        )
        wanted[done.stdout.strip()] = (name, world)

    for name, arguments in JOBS.items():
        sbatch(name, [], arguments, 2)
    # Flags of sbatch win over the script's own.
    sbatch("digits", ["--ntasks-per-node=1", "--gpus-per-node=t4:1"], [], 1)
    for number, (name, world) in wanted.items():
        log = clone / f"slurm-{number}.out"
        until(lambda log=log: log.exists() and "(exit status" in log.read_text(), 500)
        told = log.read_text()
        (run,) = (clone / "runs" / "slurm").glob(f"*-{number}")
        assert run.name.startswith(name), run
        result = json.loads((run / "result.json").read_text())
        assert (result["status"], result["world_size"]) == ("completed", world), told
        assert f"attempt 1, SLURM job {number}" in told
        (epoch,) = record.read_epochs(run / "epochs.jsonl")
        assert epoch.epoch == 1
    # The runs beside each other are what a report is made of.
    table = analysis.read(clone / "runs" / "slurm")
    times = table[table["metric"] == "epoch_time"]
    assert sorted(times[times["workload"] == "digits"]["n_gpus"]) == [1, 2], times
    assert len(times) == len(JOBS) + 1 and not table["workload"].isna().any()
