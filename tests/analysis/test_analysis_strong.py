"""Strong scaling: the global batch is held, and each size has a batch per rank of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import analysis
from analysis.as_json import as_json
from analysis.assemble import Report, assemble
from analysis.plots.gallery import gallery
from analysis.tables import read_inputs
from tests.analysis.conftest import AddCell


def report(folder: Path, text: str) -> Report:
    path = folder / "t.csv"
    path.write_text(text)
    return assemble(read_inputs([path]))


def test_one_table_with_its_fit_and_figures(tmp_path: Path) -> None:
    found = report(tmp_path, "GPUs,batch size,images/s\n1,256,100\n2,128,190\n4,64,350\n")
    (part,) = found.parts
    assert part.title == "workload not named on device not recorded, global batch 256"
    assert [point.efficiency and point.efficiency.median for point in part.group.points] == pytest.approx(
        [1, 0.95, 0.875]
    )
    assert any("The global batch is held at 256 (strong scaling)" in note for note in part.notes)
    (group,) = as_json(found)["groups"]
    assert (group["global_batch"], group["fit"]["held"]) == (256, "global batch")
    assert [row["n_gpus"] for row in group["predictions"]] == [8, 16, 32]
    assert [split.hardware for split in found.insights.splits] == pytest.approx([0.95, 0.875])
    plots = {plot.name: plot for plot in gallery(found, None)}
    assert {"throughput", "efficiency"} <= set(plots)


def test_runs_are_in_the_table_of_their_series(add_cell: AddCell) -> None:
    for ranks in (1, 2, 4):
        study = add_cell(ranks, [50.0 * ranks] * 3, facts={"batch_size": 64 // ranks})
    found = assemble(read_inputs([study]))
    (part,) = found.parts
    assert sorted(part.curves) == [1, 2, 4]
    assert part.machine == "node01, 8 cores"
    assert set(found.insights.stability[part.group.key]) == {1, 2, 4}


def test_batches_that_are_accumulated_are_of_one_step(add_cell: AddCell) -> None:
    for ranks in (1, 2, 4, 8):
        study = add_cell(ranks, [50.0 * ranks] * 3, facts={"accumulate": 8 // ranks})
    assert set(analysis.read(study)["global_batch"]) == {256}
    (part,) = assemble(read_inputs([study])).parts
    assert part.group.global_batch == 256
    assert [point.n_gpus for point in part.group.points] == [1, 2, 4, 8]


def test_runs_of_different_lengths_are_told_in_a_series_too(tmp_path: Path) -> None:
    found = report(tmp_path, "GPUs,batch size,epochs,total time [min]\n1,256,30,50\n2,128,30,26\n4,64,60,28\n")
    assert "epochs_differ" in {finding.code for finding in found.insights.findings}


def test_other_global_batches_have_tables_of_their_own(tmp_path: Path) -> None:
    text = "GPUs,batch size,images/s,val_acc\n1,256,100,\n2,128,190,\n4,64,350,\n4,256,,0.9\n"
    assert [part.group.per_gpu_batch for part in report(tmp_path, text).parts] == [None, 256]


def test_what_to_measure_next_names_the_group(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("GPU type,GPUs,images/s\nT4,1,100\nT4,2,190\nT4,4,350\nV100,4,3000\n")
    best = analysis.recommend(analysis.read(path))
    assert best.fastest is not None and best.fastest.name == "4 x V100"
    assert best.next_run == "Measure a second number of ranks (V100): one says nothing about others."
    path.write_text("GPU type,GPUs,images/s\nT4,1,100\nT4,2,190\nT4,4,350\nV100,2,30\nV100,4,60\n")
    assert analysis.recommend(analysis.read(path)).next_run.startswith("Measure 8 GPUs once (T4): ")


@pytest.mark.parametrize("other", ["", "T4,1,50\nT4,2,90\n"])
def test_sizes_that_cannot_be_are_measured_again(tmp_path: Path, other: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"GPU,GPUs,images/s\nV100,1,100\nV100,2,400\n{other}")
    assert analysis.recommend(analysis.read(path)).next_run == (
        f"Measure 1 and 2 GPUs again{' (V100)' if other else ''}: 2 ranks measured 4 times as fast as 1: "
        "more than 1.5 times the ratio of ranks cannot be."
    )


def test_the_sizes_that_cannot_be_are_measured_again_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("GPU,GPUs,epoch time [s]\nV100,1,100\nV100,2,20\nV100,4,10\nV100,8,5\n")
    said = "Measure 1 and 2 GPUs again: 2 ranks measured 5 times as fast as 1: "
    assert analysis.recommend(analysis.read(path)).next_run.startswith(said)


def test_steps_of_an_unknown_batch_are_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "n_gpus,metric,value,unit\n"
        + "".join(f"{n},steps_per_s,{10 * n},\n{n},time_to_target,{400 / n},s\n" for n in (1, 2, 4))
    )
    assert analysis.recommend(analysis.read(path)).next_run == (
        "Record the batch per rank or samples/s too: steps/s rise with the ranks, and without a batch nobody knows how many "
        "samples a step is."
    )


def test_two_global_batches_are_two_series(tmp_path: Path) -> None:
    rows = {1: (100, 105), 2: (180, 195), 4: (300, 340)}
    lines = [f"{n},{batch},{value}\n" for n, own in rows.items() for batch, value in zip((256, 384), own, strict=True)]
    found = report(tmp_path, "GPUs,global batch,images/s\n" + "".join(lines))
    assert [(part.title, [point.n_gpus for point in part.group.points]) for part in found.parts] == [
        ("workload not named on device not recorded, global batch 256", [1, 2, 4]),
        ("workload not named on device not recorded, global batch 384", [1, 2, 4]),
    ]
    assert [part.group.points[2].efficiency and part.group.points[2].efficiency.median for part in found.parts] == (
        pytest.approx([0.75, 340 / 420])
    )
    assert {finding.code for finding in found.insights.findings} == set()
    written = as_json(found)
    assert [(group["global_batch"], len(group["predictions"])) for group in written["groups"]] == [(256, 3), (384, 3)]
    values = [group["predictions"][0]["value"] for group in written["groups"]]
    assert values[0] < values[1], "each by its own fit"
    assert [(one["global_batch"], one["n_gpus"]) for one in written["efficiency"]] == [
        (256, 2), (256, 4), (384, 2), (384, 4)
    ]  # fmt: skip
    assert found.insights.answers[0].next_run.startswith("Measure 8 ranks once (global batch 384)")
    table = analysis.fit_scaling(found.table).predict(8)
    assert table["global_batch"].tolist() == [256, 384], "two rows that nothing else tells apart"
    (speed,) = [plot for plot in gallery(found, None) if plot.name == "throughput"]
    assert "global batch 256" in speed.alt and "global batch 384" in speed.alt


def test_one_measurement_of_another_batch_leaves_the_series_whole(tmp_path: Path) -> None:
    found = report(tmp_path, "GPUs,global batch,images/s\n1,256,100\n2,256,180\n4,256,300\n4,512,330\n")
    parts = {part.group.global_batch: part for part in found.parts}
    assert [point.n_gpus for point in parts[256].group.points] == [1, 2, 4]
    (other,) = [part for part in found.parts if part.group.global_batch is None]
    assert (other.group.per_gpu_batch, [point.n_gpus for point in other.group.points]) == (128, [4])


def test_sizes_and_batches_in_all_combinations_hold_the_batch_per_rank(tmp_path: Path) -> None:
    lines = [f"{n},{batch},{90 * n}\n" for n in (1, 2, 4) for batch in (32, 64, 128)]
    found = report(tmp_path, "GPUs,batch size,images/s\n" + "".join(lines))
    assert [(part.group.per_gpu_batch, part.group.global_batch) for part in found.parts] == [
        (32, None), (64, None), (128, None)
    ]  # fmt: skip


def test_runs_of_two_series_are_kept_apart(add_cell: AddCell) -> None:
    for batch, last in ((64, 0.8), (128, 0.9)):
        for ranks in (1, 2, 4):
            accuracies = (0.1, 0.5, last)
            study = add_cell(
                ranks, [50.0 * ranks] * 3, accuracies, cell={"name": f"b{batch}"}, facts={"batch_size": batch // ranks}
            )
    found = assemble(read_inputs([study]))
    assert [part.group.global_batch for part in found.parts] == [64, 128]
    for part, last in zip(found.parts, (0.8, 0.9), strict=True):
        assert {ranks: curve[3].median for ranks, curve in part.curves.items()} == {1: last, 2: last, 4: last}
        assert set(found.insights.stability[part.group.key]) == {1, 2, 4}
