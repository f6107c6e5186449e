"""The notebooks run from top to bottom, on the published lab and on a study, and are committed without outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pandas as pd
import pytest

import analysis
from analysis.assemble import assemble
from analysis.settled import BATCH, settled
from analysis.tables import read_inputs

AddCell = Callable[..., Path]
FOLDER = Path(__file__).parents[2] / "analysis" / "notebooks"
NAMES = ("scaling_report", "epochs_to_stability")


def executed(name: str, folder: Path, **parameters: object) -> str:
    """All text that the notebook shows, with parameters set as papermill sets them: in a cell after the tagged one."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    (place,) = [at for at, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    injected = nbformat.v4.new_code_cell("\n".join(f"{key} = {value!r}" for key, value in parameters.items()))
    notebook.cells.insert(place + 1, injected)
    nbclient.NotebookClient(
        notebook, timeout=240, startup_timeout=180, resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    said = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert "Warning" not in said, said
    data = [output.get("data", {}) for output in outputs]
    shown = [
        output.get("text") or own.get("text/html") or own.get("text/plain", "")
        for output, own in zip(outputs, data, strict=True)
    ]
    pictures = sum("image/png" in own for own in data)
    return "\n".join([*shown, f"pictures: {pictures}"])


@pytest.mark.parametrize("name", NAMES)
def test_they_are_committed_without_outputs(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_scaling_report_of_the_lab(tmp_path: Path) -> None:
    shown = executed("scaling_report", tmp_path)
    for expected in (
        "inconsistent_total",
        "superlinear",
        "input_bound",
        "insufficient_data",
        "8 x V100",
        "16 x V100",
        "pictures: 9",
    ):
        assert expected in shown


def test_a_table_of_accuracies_alone_has_nothing_to_fit(tmp_path: Path) -> None:
    table = tmp_path / "accuracies.csv"
    table.write_text("workload,gpu_type,n_gpus,epochs,metric,value\nnet,T4,1,9,val_acc,0.9\nnet,T4,2,9,val_acc,0.8\n")
    assert "val_acc" in executed("scaling_report", tmp_path, STUDY=str(table))


def test_the_epochs_of_the_lab(tmp_path: Path) -> None:
    shown = executed("epochs_to_stability", tmp_path)
    assert "no curves were read" in shown
    assert "30 cannot confirm it" in shown
    assert "pictures: 0" in shown


def test_epochs_against_batch_are_those_of_the_report(add_cell: AddCell) -> None:
    flat, rising = [0.8 - 0.5 * 0.6**epoch for epoch in range(20)], [0.1 + 0.04 * epoch for epoch in range(20)]
    for seed in range(3):
        add_cell(1, [100.0] * 20, flat, seed=seed)
        add_cell(2, [200.0] * 20, flat, seed=seed)
        study = add_cell(4, [400.0] * 20, rising if seed else flat, seed=seed)
    scope: dict[str, Any] = {}
    # Without a kernel, which takes seconds to start; the figure is left out.
    with pd.option_context("display.max_colwidth", 50):
        for cell in nbformat.read(FOLDER / "epochs_to_stability.ipynb", as_version=4).cells:
            if cell.cell_type == "code" and "plt." not in cell.source:
                exec(cell.source, scope)
                scope["STUDY"] = str(study)
    report = assemble(read_inputs([study])).insights.epochs
    for found in (scope["epochs"], report):
        assert [group.batches.tolist() for group in found.groups] == [[32, 64]], "most at 128 had not settled"


def test_runs_that_had_not_settled_are_not_said_to_have_recorded_nothing(add_cell: AddCell) -> None:
    flat, rising = [0.8 - 0.5 * 0.6**epoch for epoch in range(20)], [0.1 + 0.04 * epoch for epoch in range(20)]
    for seed in range(3):
        study = add_cell(2, [200.0] * 20, rising if seed else flat, seed=seed)
    read = read_inputs([study])
    assert "epochs_to_stability" in set(read.table["metric"]), "of one of three"
    notebook = nbformat.read(FOLDER / "epochs_to_stability.ipynb", as_version=4)
    (source,) = [cell.source for cell in notebook.cells if "epochs.predict(" in cell.source]
    *lines, shown = source.splitlines()
    scope: dict[str, Any] = {"epochs": analysis.fit_epochs(settled(read.table, read.runs, BATCH))}
    exec("\n".join(lines), scope)
    assert eval(shown, scope) == "no epochs to stability that count: none were recorded, or most runs had not settled"


def test_a_study_is_a_parameter(add_cell: AddCell, tmp_path: Path) -> None:
    curve = [0.9 - 0.6 * 0.7**epoch for epoch in range(20)]
    for ranks in (1, 2, 4):
        study = add_cell(ranks, [95.0 * ranks, *[100.0 * ranks / (1 + 0.02 * ranks)] * 19], curve)
    shown = executed("scaling_report", tmp_path, STUDY=str(study))
    assert "digits" in shown
    assert "Fastest to 88." in shown
    curves = executed("epochs_to_stability", tmp_path, STUDY=str(study), TOLERANCE=0.02)
    assert "digits-n4-s0" in curves
    assert "stable" in curves
    assert "pictures: 1" in curves
