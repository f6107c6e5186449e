"""Study folders with known contents, written by the code that real jobs write theirs with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hvdtrain import record

AddCell = Callable[..., Path]


@pytest.fixture
def add_cell(tmp_path: Path) -> AddCell:
    """Adds a cell to `<tmp>/runs/digits`, which it returns; `rates` are samples/s of each epoch."""
    study = tmp_path / "runs" / "digits"
    record.write_json(study / "study.json", {"name": "digits"})

    def add(
        ranks: int,
        rates: Sequence[float] = (50.0, 100.0, 100.0),
        accuracies: Sequence[float | None] = (0.5, 0.8, 0.9),
        *,
        seed: int = 0,
        status: str | None = "completed",
        reason: str = "",
        cell: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Path:
        folder = study / f"digits-n{ranks}-s{seed}{'-' + cell['name'] if cell and 'name' in cell else ''}"
        shape = {"nodes": 1, "tasks_per_node": ranks, "gpus_per_node": 0}
        asked: dict[str, Any] = {
            "name": folder.name,
            "study": "digits",
            "job": "digits",
            "workload": None,
            "gpus": ranks,
        }
        asked |= {"gpu_type": None, "batch_size": 32, "lr_rule": None, "seed": seed, "epochs": len(rates)}
        asked |= {"settings": {}, "arguments": [], "environment": {}, "shape": shape, "launcher": "gloo"}
        record.write_json(folder / "cell.json", {**asked, **(cell or {}), "name": folder.name})
        reported: dict[str, Any] = {
            "device": "cpu",
            "hosts": ["node01"] * ranks,
            "gpu_models": [],
            "launcher": "gloo",
            "cores": 8,
        }
        reported |= {"controller": "gloo", "world_size": ranks, "precision": "float32", "batch_size": 32}
        record.begin(folder, {**reported, "lr_rule": "linear", **(facts or {})})
        log = record.EpochLog(folder / "epochs.jsonl")
        for number, (rate, accuracy) in enumerate(zip(rates, accuracies, strict=True), start=1):
            # 1000 samples, and a quarter of a second of validation.
            log.append(
                record.Epoch(
                    number, val_acc=accuracy, samples=1000, seconds=1000 / rate + 0.25, seconds_val=0.25,
                    samples_per_second=rate,
                )
            )  # fmt: skip
        if status is not None:
            record.finish(folder, status, 0 if status == "completed" else 1, reason)
        return study

    return add


def accuracy(epoch: int) -> float:
    """Of a curve that is stable from about its ninth epoch on, counted from 0."""
    return 0.8 - 0.5 * 0.6**epoch


def text_of(columns: str, lines: Sequence[tuple[object, ...]]) -> str:
    """A CSV file."""
    return columns + "\n" + "".join(",".join(map(str, line)) + "\n" for line in lines)


CALTECH = """\
workload,gpu_type,n_gpus,per_gpu_batch,epochs,metric,value,unit
caltech256,T4,2,32,30,epoch_time,209,s
caltech256,T4,4,32,30,epoch_time,81,s
caltech256,V100,4,32,30,epoch_time,80,s
caltech256,V100,8,32,30,epoch_time,44,s
caltech256,T4,2,32,30,total_time,01:38:30,
caltech256,T4,4,32,30,total_time,00:43:14,
caltech256,V100,4,32,30,total_time,00:41:42,
caltech256,V100,8,32,30,total_time,00:23:07,
caltech256,T4,2,32,30,val_acc,.6888,
caltech256,T4,4,32,30,val_acc,.6760,
caltech256,V100,4,32,30,val_acc,.6861,
caltech256,V100,8,32,30,val_acc,67.19,%
"""


@pytest.fixture
def caltech(tmp_path: Path) -> Path:
    """A published Caltech-256 table (transfer learning, Keras and Horovod, T4 and V100 nodes, 2021)."""
    path = tmp_path / "caltech.csv"
    path.write_text(CALTECH, encoding="utf-8")
    return path
