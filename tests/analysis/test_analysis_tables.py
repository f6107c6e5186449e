"""Reading: what a study and a CSV file become in the tidy table."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.tables import read_inputs
from hvdtrain import record
from hvdtrain.errors import UserError

AddCell = Callable[..., Path]

COLUMNS = [
    "source",
    "workload",
    "gpu_type",
    "n_gpus",
    "n_nodes",
    "per_gpu_batch",
    "global_batch",
    "lr_rule",
    "precision",
    "device",
    "replicate",
    "epochs",
    "metric",
    "value",
    "unit",
]


def value(table: pd.DataFrame, metric: str, ranks: int) -> float:
    found = table[(table.metric == metric) & (table.n_gpus == ranks)].value
    assert len(found) == 1
    return float(found.iloc[0])


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lab.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_study_becomes_four_measurements_a_run(add_cell: AddCell) -> None:
    add_cell(1, [20, 100, 90, 130], [0.1, 0.5, 0.6, 0.7])
    study = add_cell(2, [30, 200, 210], [0.1, 0.5, 0.65])
    table = analysis.read(study)
    assert list(table.columns) == COLUMNS
    assert len(table) == 8
    for folder in study.glob("digits-*"):
        lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
        ranks = json.loads((folder / "cell.json").read_text())["gpus"]
        steady = lines[1:]
        assert value(table, "throughput", ranks) == statistics.median(
            e["samples"] / (e["seconds"] - 0.25) for e in steady
        )
        assert value(table, "epoch_time", ranks) == statistics.median(e["seconds"] for e in steady)
        assert value(table, "total_time", ranks) == pytest.approx(sum(e["seconds"] for e in lines))
        assert value(table, "val_acc", ranks) == lines[-1]["val_acc"]
    assert value(table, "throughput", 1) == 100
    row = table[(table.metric == "throughput") & (table.n_gpus == 2)].iloc[0]
    assert pd.isna(row.gpu_type)
    assert row.drop(["value", "source", "gpu_type"]).to_dict() == {
        "workload": "digits", "n_gpus": 2, "n_nodes": 1, "per_gpu_batch": 32, "global_batch": 64,
        "lr_rule": "linear", "precision": "float32", "device": "cpu", "replicate": 0, "epochs": 3,
        "metric": "throughput", "unit": "samples/s",
    }  # fmt: skip
    assert row.source == f"{study}/digits-n2-s0"


def test_energy_is_what_all_gpus_of_the_only_attempt_took(add_cell: AddCell) -> None:
    taken = {1: [{"energy_j": 500.0}], 2: [{"energy_j": 300.0}, {"energy_j": 250.5}], 4: [{"energy_j": 90.0}] * 3}
    taken[8] = [{"energy_j": 80.0}] * 7 + [{"energy_j": None}]
    taken[16] = [{"energy_j": 70.0, "uuid": f"GPU-{rank // 2}"} for rank in range(16)]
    for ranks, gpus in taken.items():
        study = add_cell(ranks, facts={"gpus": gpus, "device": "gpu"})
    # One process that drives four GPUs samples the first of them.
    add_cell(1, seed=2, facts={"replicas": 4, "gpus": taken[1], "device": "gpu"})
    study = add_cell(1, seed=1, status=None, facts={"gpus": taken[1], "device": "gpu"})
    log = record.EpochLog(study / "digits-n1-s1" / "epochs.jsonl", next_epoch=4)
    log.append(record.Epoch(4, seconds=9.0, samples_per_second=90.0, restart=1))
    record.finish(study / "digits-n1-s1", "completed", 0)
    table = analysis.read(study)
    energy = table[table.metric == "energy"]
    # Of four ranks one was not sampled, of eight one does not tell, sixteen share eight GPUs; the second run of one started twice.
    assert dict(zip(energy.n_gpus, energy.value, strict=True)) == {1: 500.0, 2: 550.5, 16: 560.0}
    assert set(energy.unit) == {"J"}


def test_a_study_that_has_just_begun_leaves_the_others_their_report(add_cell: AddCell, tmp_path: Path) -> None:
    finished = add_cell(1)
    waiting = tmp_path / "runs" / "waiting"
    shutil.copytree(finished, waiting)
    (waiting / "digits-n1-s0" / "result.json").unlink()
    given = read_inputs([finished, waiting])
    assert set(given.table.source) == {f"{finished}/digits-n1-s0"}
    assert [run.status for run in given.runs] == ["completed", "not started"]
    with pytest.raises(UserError, match=r"no cell of study .*waiting has finished"):
        analysis.read(waiting)


def test_runs_that_wait_tell_how_many_gpus_a_node_has(add_cell: AddCell) -> None:
    for ranks in (1, 2, 4):
        study = add_cell(ranks, facts={"device": "gpu", "hosts": ["n1"]})
    alone = analysis.fit_scaling(analysis.read(study)).predict([8])
    add_cell(8, [], [], status=None, cell={"shape": {"nodes": 2, "tasks_per_node": 4, "gpus_per_node": 4}})
    told = analysis.fit_scaling(analysis.read(study)).predict([8])
    assert (alone.iloc[0]["status"], told.iloc[0]["status"]) == ("ok", "refused")


def test_synthetic_data_are_a_workload_of_their_own(add_cell: AddCell) -> None:
    add_cell(1, facts={"synthetic": False})
    table = analysis.read(add_cell(2, facts={"synthetic": True}))
    assert dict(zip(table.n_gpus, table.workload, strict=True)) == {1: "digits", 2: "digits, synthetic data"}


def test_a_run_on_two_gpu_types_is_named(add_cell: AddCell) -> None:
    add_cell(2, facts={"device": "gpu", "gpu_models": ["T4"]})
    facts = {"device": "gpu", "mixed": True, "gpu_models": ["T4", "V100"]}
    given = read_inputs([add_cell(4, facts=facts)])
    (mixed,) = (each for each in analysis.diagnose(given.table, given.runs) if each.code == "mixed_gpu_types")
    assert mixed.message == "digits-n4-s0 ran on T4 and V100 at once, and is left out"


def test_only_finished_cells_are_measured(add_cell: AddCell) -> None:
    add_cell(1)
    add_cell(2, status="failed", reason="out of memory")
    study = add_cell(4, status=None)
    assert set(analysis.read(study).n_gpus) == {1}


def test_the_first_epoch_after_a_restart_is_warm_up_too(add_cell: AddCell) -> None:
    study = add_cell(1, status=None)
    log = record.EpochLog(study / "digits-n1-s0" / "epochs.jsonl", next_epoch=4)
    log.append(record.Epoch(4, seconds=99.0, samples_per_second=7.0, restart=1))
    log.append(record.Epoch(5, seconds=9.0, samples_per_second=110.0, restart=1))
    log.append(record.Epoch(6, seconds=9.0, samples_per_second=120.0, restart=1))
    record.finish(study / "digits-n1-s0", "completed", 0)
    assert value(analysis.read(study), "throughput", 1) == statistics.median([100, 100, 110, 120])


def test_a_run_of_one_epoch_is_measured_by_it(add_cell: AddCell) -> None:
    table = analysis.read(add_cell(1, [50], [0.4]))
    assert value(table, "throughput", 1) == 50
    assert set(table.epochs) == {1}


def test_further_settings_are_part_of_the_workload(add_cell: AddCell) -> None:
    add_cell(1, cell={"name": "a", "settings": {"width": 64, "depth": 2}})
    table = analysis.read(add_cell(1, cell={"name": "b", "settings": {"width": 128, "depth": 2}}))
    assert set(table.workload) == {"digits, depth=2, width=64", "digits, depth=2, width=128"}


def test_a_gpu_run_names_its_gpu_by_what_it_found(add_cell: AddCell) -> None:
    table = analysis.read(add_cell(2, facts={"device": "gpu", "gpu_models": ["Tesla T4", "Tesla T4"]}))
    assert set(table.gpu_type) == {"Tesla T4"}
    assert set(table.device) == {"gpu"}


def test_a_csv_file_may_be_written_by_hand(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeffmetric, n_gpus, value, unit, global_batch\n"
        "total_time, 2.0, 01:38:30, , 64\n\n"
        "epoch_time, 2, 1.5, min,\n"
        "val_acc, 2, 68.88 %, ,\n"
        'throughput, 2, 130, "images/s",\n',
    )
    table = analysis.read(path)
    assert list(table.columns) == COLUMNS
    assert table.value.tolist() == pytest.approx([5910, 90, 0.6888, 130])
    assert table.unit.tolist() == ["s", "s", "fraction", "samples/s"]
    assert table.per_gpu_batch.tolist() == [32, pd.NA, pd.NA, pd.NA]
    assert set(table.source) == {"lab.csv"}
    assert table.device.isna().all()


def test_studies_and_files_are_read_together(add_cell: AddCell, caltech: Path) -> None:
    table = analysis.read(str(add_cell(1)), caltech)
    assert len(table) == 4 + 12
    assert set(table.device) == {"cpu", "gpu"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n_gpu,metric,value\n", 'line 1: no column "n_gpu"; the columns are .*did you mean "n_gpus"'),
        ("n_gpus,value\n1,2\n", "line 1: column metric missing"),
        ("n_gpus,metric,value,value\n", 'line 1: column "value" is there 2 times'),
        ("n_gpus;metric;value\n", "line 1: columns are separated by commas"),
        ("n_gpus,metric,value\n1,throughput\n", "line 2: 2 fields, but the first line names 3"),
        ("n_gpus,metric,value\n,throughput,5\n", 'line 2: "n_gpus" is empty'),
        ("n_gpus,metric,value\n1,throughput,5\n\n0,throughput,5\n", 'line 4: n_gpus "0" is not a whole number of 1'),
        ("n_gpus,metric,value\n1.5,throughput,5\n", 'line 2: n_gpus "1.5" is not a whole number'),
        ("n_gpus,metric,value\n1,troughput,5\n", 'line 2: no metric "troughput".*did you mean "throughput"'),
        ("n_gpus,metric,value,unit\n1,throughput,5,epochs/s\n", 'line 2: throughput is in samples/s, not "epochs/s"'),
        ("n_gpus,metric,value\n1,throughput,fast\n", 'line 2: throughput "fast" is not a number'),
        ("n_gpus,metric,value\n1,throughput,inf\n", 'line 2: throughput "inf" is not finite'),
        ("n_gpus,metric,value\n1,throughput,0\n", 'line 2: throughput "0" is not above zero'),
        (
            "n_gpus,metric,value\n1,epoch_time,98.5\n",
            'line 2: "98.5" is not a time: the number has no unit; legal.*8m17s',
        ),
        ("n_gpus,metric,value,unit\n1,epoch_time,9,GB\n", 'line 2: epoch_time is a time, its unit cannot be "GB"'),
        ("n_gpus,metric,value\n1,val_acc,68.9\n", 'line 2: val_acc 68.9 is not between 0 and 1; .*give the unit "%"'),
        (
            "n_gpus,metric,value,device\n1,val_acc,0.9,gpus\n",
            'line 2: device "gpus" is not cpu or gpu; did you mean "gpu"',
        ),
        ('n_gpus,metric,value\n1,"val_acc,0.9\n', "line 2: not CSV"),
        ("n_gpus,metric,value\n", "holds no measurements"),
        ("", "holds no measurements"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=expected) as caught:
        analysis.read(path)
    assert str(caught.value).startswith(str(path))


def test_mistakes_of_place(add_cell: AddCell, tmp_path: Path) -> None:
    study = add_cell(1)
    empty = tmp_path / "runs" / "empty"
    record.write_json(empty / "study.json", {})
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for paths, expected in (
        ([study.parent], rf"not a study: it has no study.json; it holds the studies .*{study}"),
        ([study / "digits-n1-s0"], rf"is one cell; give its study: {study}"),
        ([study.parent / "digit"], 'does not exist .*did you mean "digits"'),
        ([study, study.parent / "." / "digits"], "given twice"),
        ([empty], "is empty"),
        ([binary], "not text in UTF-8"),
        ([], "nothing to read"),
    ):
        with pytest.raises(UserError, match=expected):
            analysis.read(*paths)


def test_nothing_finished_says_what_became_of_each_cell(add_cell: AddCell) -> None:
    add_cell(1, status="failed", reason="out of memory")
    study = add_cell(2, status=None)
    with pytest.raises(UserError, match=r"n1-s0: failed, out of memory; digits-n2-s0: running, no result yet"):
        analysis.read(study)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("epochs.jsonl", "not json\n", r"epochs.jsonl, line 1: not an epoch record"),
        (
            "epochs.jsonl",
            '{"epoch": 1, "seconds": "long"}\n',
            r"epochs.jsonl: epoch 1: seconds is 'long', not a number",
        ),
        ("result.json", "{", "cannot be read"),
        ("cell.json", "{}", '"gpus", the number of ranks, is missing'),
        ("cell.json", '{"gpus": "four"}', "\"gpus\" is 'four', not a whole number"),
    ],
)
def test_damaged_run_folders_are_named(add_cell: AddCell, name: str, text: str, expected: str) -> None:
    study = add_cell(1)
    (study / "digits-n1-s0" / name).write_text(text)
    with pytest.raises(UserError, match=expected):
        analysis.read(study)
