"""Runs whose names tell how many ranks they had, and of what."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

import analysis
from analysis.rank_words import ranks_in, without_ranks, workload_in
from analysis.tables import read_inputs

LOG = "epoch,val_accuracy\n" + "".join(f"{epoch},{0.9 - 0.8 / (epoch + 1)}\n" for epoch in range(10))


@pytest.mark.parametrize(
    ("path", "ranks", "workload"),
    [
        ("resnet-4gpu/metrics.csv", 4, "resnet"),
        ("vgg16_n8/version_0/metrics.csv", 8, "vgg16"),
        ("resnet-50-8gpus-seed1/log.csv", 8, "resnet-50"),
        ("run-4gpu/metrics.csv", 4, None),
        ("seed1-4gpu/metrics.csv", 4, None),
        ("20260101-2gpu/metrics.csv", 2, None),
        ("4gpu/metrics.csv", 4, None),
        ("resnet/metrics.csv", 0, None),
    ],
)
def test_a_path_names_ranks_and_workload(path: str, ranks: int, workload: str | None) -> None:
    assert ranks_in(PurePath(path)) == ranks
    assert workload_in(PurePath(path)) == workload


@pytest.mark.parametrize(
    ("name", "ranks", "left"),
    [
        ("caltech256-2gpu", 2, "caltech256"),
        ("net_n4", 4, "net"),
        ("4gpu", 4, ""),
        ("net-4gpu-big", 4, "net-big"),
        ("net-4gpu", 8, "net-4gpu"),
        ("net", 4, "net"),
    ],
)
def test_a_job_is_called_without_its_ranks(name: str, ranks: int, left: str) -> None:
    assert without_ranks(name, ranks) == left


def test_logs_of_two_models_are_two_workloads(tmp_path: Path) -> None:
    files = []
    for model in ("resnet", "vgg"):
        for ranks in (2, 4):
            folder = tmp_path / f"{model}-{ranks}gpu"
            folder.mkdir()
            (folder / "metrics.csv").write_text(LOG)
            files.append(folder / "metrics.csv")
    assert [(run.workload, run.n_gpus) for run in read_inputs(files).runs] == [
        *[("resnet", 2), ("resnet", 4)],
        *[("vgg", 2), ("vgg", 4)],
    ]


def test_jobs_of_one_network_are_one_series(tmp_path: Path) -> None:
    lines = ["JobID|JobName|State|Elapsed|AllocTRES|NNodes"]
    for job, ranks in ((101, 2), (102, 4)):
        lines.append(f"{job}|net-{ranks}gpu|COMPLETED|00:{60 // ranks}:00|gres/gpu={ranks}|1")
    (tmp_path / "sacct.txt").write_text("\n".join(lines) + "\n")
    table = analysis.read(tmp_path / "sacct.txt")
    assert list(zip(table.workload, table.n_gpus, strict=True)) == [("net", 2), ("net", 4)]


def test_the_tasks_of_a_job_without_gpus_are_those_of_its_steps(tmp_path: Path) -> None:
    lines = ["JobID|JobName|State|Elapsed|NTasks|NNodes", "101|net|COMPLETED|00:10:00||2"]
    lines += ["101.batch|batch|COMPLETED|00:10:00|1|1", "101.0|python|COMPLETED|00:09:58|4|2"]
    (tmp_path / "sacct.txt").write_text("\n".join(lines) + "\n")
    (row,) = analysis.read(tmp_path / "sacct.txt").itertuples()
    assert (row.workload, row.n_gpus, row.n_nodes, row.device, row.value) == ("net", 4, 2, "cpu", 600.0)
