"""The published studies' jobs, on real images, with one and two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from tests.data import images
from tests.data.test_readers import idx
from tests.worlds import Ended, run_world

KERAS = ("caltech256", "fruit", "mnist_cnn")
FASHION = ("--data", "fashion-mnist")


def train(job: str, ranks: int, folder: Path, *arguments: object) -> tuple[Ended, list[dict[str, Any]]]:
    options = ["--run-dir", str(folder), *(["--launcher", "none"] if ranks == 1 else [])]
    environment = {"PYTHONWARNINGS": "ignore"}
    if job in KERAS:  # the backend that the job chooses; known here, its ranks can be warm
        environment["KERAS_BACKEND"] = "torch" if "torch" in arguments else "tensorflow"
    ended = run_world(ranks, job, *arguments, options=options, patience=200.0, **environment)
    assert ended.status == 0, ended.err
    return ended, [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]


def small_mnist(folder: Path) -> Path:
    """A folder with 80 images for training and 20 for the test, in MNIST's files."""
    rng = np.random.default_rng(0)
    place = folder / "mnist"
    place.mkdir()
    for part, n in (("train", 80), ("t10k", 20)):
        images, labels = rng.integers(0, 256, (n, 28, 28)), rng.integers(0, 10, n)
        (place / f"{part}-images-idx3-ubyte").write_bytes(idx(images.astype("u1")))
        (place / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels.astype("u1")))
    return place


def test_the_convolutional_network_has_the_published_number_of_parameters() -> None:
    code = "from jobs.mnist_cnn import network; print(network(0.0).count_params(), network(0.5).count_params())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert said.stdout.split() == ["54528", "54528"]


@pytest.mark.ranks
def test_mnist_cnn_trains_alike_in_fit_and_in_a_loop_of_its_own(tmp_path: Path) -> None:
    """Two ranks of 500 are one rank of 1,000; with one and the same rate all runs see the same steps."""
    arguments = (*FASHION, "--epochs", 2, "--lr", 0.002, "--lr-rule", "none", "--seed", 3)
    runs = {}
    for name, loop, ranks in (("fit1", "fit", 1), ("fit2", "fit", 2), ("custom2", "custom", 2)):
        batch = ("--batch-size", 1000 // ranks)
        _, runs[name] = train("mnist_cnn", ranks, tmp_path / name, *arguments, *batch, "--loop", loop)
    for name, epochs in runs.items():
        assert [epoch["samples"] for epoch in epochs] == [60_000, 60_000], name
        for epoch, expected in zip(epochs, runs["fit1"], strict=True):
            assert epoch["train_loss"] == pytest.approx(expected["train_loss"], abs=2e-3), name
            assert epoch["val_acc"] == pytest.approx(expected["val_acc"], abs=5e-3), name
    assert runs["fit1"][-1]["val_acc"] > 0.7


@pytest.mark.ranks
def test_mnist_cnn_takes_all_that_the_study_turned_on(tmp_path: Path) -> None:
    arguments = (
        "--data",
        "synthetic",
        "--epochs",
        2,
        "--accumulate",
        2,
        "--schedule",
        "cosine",
        "--precision",
        "bf16",
        "--dropout",
        0.2,
    )
    _, epochs = train("mnist_cnn", 2, tmp_path / "run", *arguments, "--lr", 0.003)
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]
    # A cosine over both epochs is halfway down after the first, however many batches make an update.
    assert epochs[0]["lr"] == pytest.approx(0.5 * 0.003 * 2**0.5, rel=0.2)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["precision"] == "bf16"


@pytest.mark.ranks
def test_mnist_mlp_ends_alike_with_numpy_and_torch_and_two_ranks(tmp_path: Path) -> None:
    arguments = (*FASHION, "--epochs", 2, "--hidden", 64)
    _, one = train("mnist_mlp", 1, tmp_path / "one", *arguments)
    _, two = train("mnist_mlp", 2, tmp_path / "two", *arguments, "--batch-size", 32, "--lr-rule", "none")
    told, serial = train("mnist_mlp", 1, tmp_path / "numpy", *arguments, "--engine", "numpy")
    train("mnist_mlp", 1, tmp_path / "bf16", *FASHION, "--epochs", 1, "--precision", "bf16")
    assert json.loads((tmp_path / "bf16" / "result.json").read_text())["precision"] == "bf16"
    assert "engine numpy: forward" in told.out
    for epochs in (one, two, serial):
        assert [epoch["samples"] for epoch in epochs] == [37_800, 37_800]
        assert epochs[-1]["val_acc"] > 0.8
    assert two[-1]["train_loss"] == pytest.approx(one[-1]["train_loss"], abs=1e-3)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_cifar10_cnn_learns_and_reports_summed_losses(ranks: int, tmp_path: Path) -> None:
    options = ("--data", "synthetic", "--epochs", 2, "--warm-up-run")
    ended, epochs = train("cifar10_cnn", ranks, tmp_path / "run", *options)
    sums = [float(each) for each in ended.out.rpartition("as the study prints them:")[2].split()]
    assert sums == pytest.approx([epoch["train_loss"] * 2048 / 64 for epoch in epochs], abs=1e-3)
    assert epochs[-1]["val_acc"] > 0.5
    assert json.loads((tmp_path / "run" / "result.json").read_text())["synthetic"] is True


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caltech-256's layout with 6 classes and nasty files, and the fruit data's with two folders."""
    root = tmp_path_factory.mktemp("trees")
    images.nasty(images.tree(root / "caltech256" / "256_ObjectCategories", classes=6, each=20) / "002.class 2")
    for part, each in (("train", 12), ("test", 5)):
        images.tree(root / "fruit" / "dataset" / part, classes=6, each=each)
    return root


@pytest.mark.ranks
@pytest.mark.parametrize(("job", "framework"), [("caltech256", "tensorflow"), ("fruit", "torch")])
def test_image_jobs_train_alike_with_one_and_two_ranks(job: str, framework: str, trees: Path, tmp_path: Path) -> None:
    """The same images in the same steps: losses differ by no more than sums of floats do.

    Without weights the backbone gives next to the same features for every image, so that what the augmentation made of one hardly
    shows; tests/data/test_augment.py shows that it is the same for any number of ranks.
    """
    arguments = ["--data-dir", trees, "--epochs", 2, "--image-size", 32, "--weights", "none"]
    arguments += ["--lr-rule", "none", "--max-bad", 3, "--framework", framework]
    arguments += ["--frozen"] if job == "fruit" else []
    runs = {}
    for ranks in (1, 2):
        _, runs[ranks] = train(job, ranks, tmp_path / str(ranks), *arguments, "--batch-size", 16 // ranks)
    # 16 of 20 in five classes; of 29 in the sixth 23, without the three that cannot be read.
    samples = {"caltech256": 5 * 16 + 20, "fruit": 72}[job]
    for one, two in zip(runs[1], runs[2], strict=True):
        assert one["samples"] == two["samples"] == samples
        assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-4)
        assert two["val_loss"] == pytest.approx(one["val_loss"], abs=1e-4)


def test_an_image_job_names_what_is_wrong(trees: Path, tmp_path: Path) -> None:
    alone = ["--launcher", "none"]
    arguments = ("--image-size", 32, "--weights", "none")
    for job, options, message in (
        # Before any image is read.
        ("caltech256", ("--data-dir", tmp_path, "--backbone", "MobileNetV9"), 'did you mean "MobileNetV'),
        ("caltech256", ("--data-dir", trees, "--max-bad", 1), "3 of 129 images in"),
        ("fruit", ("--data-dir", tmp_path), "hvdtrain fetch fruit"),
    ):
        ended = run_world(1, job, *arguments, *options, options=alone, patience=100.0)
        assert ended.status == 2, ended.err
        assert message in ended.err
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("job", ["mnist_cnn", "mnist_mlp", "cifar10_cnn"])
def test_data_that_are_missing_say_how_to_get_them(job: str, tmp_path: Path) -> None:
    ended = run_world(1, job, "--data-dir", tmp_path / "nowhere", options=["--launcher", "none"], patience=100.0)
    assert ended.status == 2, ended.err
    assert f"hvdtrain fetch {'cifar10' if job == 'cifar10_cnn' else 'mnist'} --to {tmp_path}/nowhere" in ended.err
    assert "Traceback" not in ended.err


WITH_A_GPU = """
import os
import torch
from jobs import mnist_mlp
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
torch.cuda.device_count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"])
mnist_mlp.main()
"""


@pytest.mark.ranks
def test_numpy_is_measured_on_the_cpu_wherever_it_runs(tmp_path: Path) -> None:
    """It would be recorded as a measurement of a GPU that it never uses."""
    job = tmp_path / "job.py"
    job.write_text(WITH_A_GPU)
    few = ("--data-dir", small_mnist(tmp_path), "--train-images", 60, "--test-images", 20, "--epochs", 1)
    train(str(job), 1, tmp_path / "run", *few, "--hidden", 8, "--engine", "numpy")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["device"], result["gpu_models"]) == ("cpu", [])


@pytest.mark.ranks
def test_loops_that_jobs_write_out_note_what_reports_tell_apart(tmp_path: Path) -> None:
    """As `fit` does; or their rows would have no batch and no precision, and a rule that they may not have."""
    for name in ("study.json", "mlp/cell.json", "cnn/cell.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"gpus": 1}')
    few = ("--data-dir", small_mnist(tmp_path), "--epochs", 1, "--batch-size", 20)
    sizes = ("--train-images", 60, "--test-images", 20, "--hidden", 8, "--engine", "numpy")
    train("mnist_mlp", 1, tmp_path / "mlp", *few, *sizes)
    train("mnist_cnn", 1, tmp_path / "cnn", *few, "--loop", "custom", "--precision", "bf16", "--lr-rule", "none")
    for job, precision in (("mlp", "fp32"), ("cnn", "bf16")):
        noted = json.loads((tmp_path / job / "result.json").read_text())
        assert [noted[name] for name in ("batch_size", "accumulate", "lr_rule", "precision")] == [
            20,
            1,
            "none",
            precision,
        ]
    columns = ["per_gpu_batch", "global_batch", "lr_rule", "precision"]
    kinds = analysis.read(tmp_path)[columns].drop_duplicates().values.tolist()
    assert sorted(kinds) == [[20, 20, "none", "bf16"], [20, 20, "none", "fp32"]]
