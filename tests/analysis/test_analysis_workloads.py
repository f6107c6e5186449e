"""Jobs that were given different arguments after `--`, or other variables, are different workloads."""

from __future__ import annotations

from typing import Any

import pytest

import analysis
from analysis.scaling import scaling
from analysis.tables import read_inputs
from hvdtrain import record
from tests.analysis.conftest import AddCell


def test_arguments_after_the_dashes_are_not_pooled(add_cell: AddCell) -> None:
    add_cell(1, [1000.0] * 3, cell={"extra_arguments": ["--width", "12", "--data", "/data"]})
    study = add_cell(2, [250.0] * 3, cell={"extra_arguments": ["--width", "64", "--data", "/data"]})
    table = analysis.read(study)
    assert list(dict.fromkeys(table.workload)) == ["digits, --width 12", "digits, --width 64"], "only what differs"
    assert [len(group.points) for group in scaling(table)] == [1, 1]
    assert "retrograde" not in {finding.code for finding in analysis.diagnose(table)}


def test_variables_are_not_pooled_and_what_all_have_is_not_named(add_cell: AddCell) -> None:
    for ranks, layout in ((1, "NCHW"), (2, "NHWC"), (4, "NHWC")):
        study = add_cell(ranks, cell={"environment": {"LAYOUT": layout, "TMP": "/tmp"}})
    assert list(dict.fromkeys(analysis.read(study).workload)) == ["digits, LAYOUT=NCHW", "digits, LAYOUT=NHWC"]


def test_names_stay_where_all_agree(add_cell: AddCell) -> None:
    for ranks in (1, 2):
        study = add_cell(ranks, cell={"extra_arguments": ["--width", "12"], "environment": {"LAYOUT": "NCHW"}})
    assert set(analysis.read(study).workload) == {"digits"}


def test_runs_that_diverged_are_of_the_workload_that_they_were_given(add_cell: AddCell) -> None:
    for seed in range(3):
        add_cell(1, cell={"extra_arguments": ["--width", "12"]}, seed=seed)
        study = add_cell(
            2, cell={"extra_arguments": ["--width", "64"]}, seed=seed, status="diverged" if seed else "completed"
        )
    given = read_inputs([study])
    assert {run.workload for run in given.runs if run.n_gpus == 2} == {"digits, --width 64"}
    best = analysis.recommend(given.table, runs=given.runs)
    assert [[way.n_gpus for way in answer.unreached] for answer in (best, *best.others)] == [[], [2]]


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (["--fast"], [], ["digits, --fast", "digits"]),
        (["one.csv", "--fast"], ["two.csv", "--fast"], ["digits, one.csv", "digits, two.csv"]),
        (["--shift", "-1"], ["--shift", "-2"], ["digits, --shift -1", "digits, --shift -2"]),
        (["--x=1", "--x=2"], ["--x=2", "--x=1"], ["digits, --x=1, --x=2", "digits, --x=2, --x=1"]),
        (["--note", "two words"], [], ["digits, --note 'two words'", "digits"]),
        # These have columns of their own.
        (["--seed", "3", "--epochs=3", "--batch-size", "32"], ["--seed=4"], ["digits"]),
        (["--lr-rule", "linear", "--width", "12"], ["--width", "12"], ["digits"]),
    ],
)
def test_what_the_names_say(add_cell: AddCell, first: list[str], second: list[str], names: list[str]) -> None:
    add_cell(1, cell={"extra_arguments": first})
    study = add_cell(2, cell={"extra_arguments": second})
    assert list(dict.fromkeys(analysis.read(study).workload)) == names


def test_a_batch_that_the_job_does_not_report_is_named(add_cell: AddCell) -> None:
    facts: dict[str, Any] = {"batch_size": None}
    add_cell(1, cell={"extra_arguments": ["--batch-size", "64"]}, facts=facts)
    study = add_cell(2, cell={"extra_arguments": ["--batch-size", "32"]}, facts=facts)
    assert len(set(analysis.read(study).workload)) == 2, "the batch recorded is the default of the job's text"


def test_variables_that_only_choose_devices_have_columns(add_cell: AddCell) -> None:
    on_gpu = {"device": "cuda:0", "gpu_models": ["Tesla T4"]}
    add_cell(1, facts=on_gpu)
    add_cell(2, facts={**on_gpu, "gpu_models": ["Tesla T4"] * 2})
    study = add_cell(4, cell={"environment": {"CUDA_VISIBLE_DEVICES": ""}})
    table = analysis.read(study)
    assert set(table.workload) == {"digits"}
    assert [len(group.points) for group in scaling(table)] == [1, 2]


def test_devices_that_mirrored_was_asked_for_are_one_table(add_cell: AddCell) -> None:
    for devices in (1, 2, 4):
        study = add_cell(
            1,
            cell={"name": f"r{devices}", "environment": {"HVDTRAIN_REPLICAS": str(devices), "LAYOUT": "NCHW"}},
            facts={"replicas": devices},
        )
    table = analysis.read(study)
    assert set(table.workload) == {"digits"}
    assert [[point.n_gpus for point in group.points] for group in scaling(table)] == [[1, 2, 4]]


@pytest.mark.parametrize(
    ("name", "facts"), [("CUDA_VISIBLE_DEVICES", {"device": None}), ("HVDTRAIN_REPLICAS", {"replicas": None})]
)
def test_devices_that_the_job_does_not_report_are_named(add_cell: AddCell, name: str, facts: dict[str, Any]) -> None:
    add_cell(1, cell={"environment": {name: "0"}}, facts=facts)
    study = add_cell(2, cell={"environment": {name: "1"}}, facts=facts)
    assert len(set(analysis.read(study).workload)) == 2


def test_cells_of_two_studies_are_told_apart_too(add_cell: AddCell) -> None:
    one = add_cell(1, cell={"extra_arguments": ["--width", "12"]})
    one.rename(one.with_name("narrow"))
    record.write_json(one / "study.json", {})
    two = add_cell(2, cell={"extra_arguments": ["--width", "64"]})
    table = analysis.read(one.with_name("narrow"), two)
    assert set(table.workload) == {"digits, --width 12", "digits, --width 64"}
    assert set(analysis.read(two).workload) == {"digits"}
