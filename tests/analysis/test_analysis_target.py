"""Accuracies of 0 and NaN: what they say about the target, and about who reaches it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.__main__ import main
from analysis.as_json import as_json
from analysis.assemble import assemble
from analysis.curves import accuracy_curves
from analysis.endings import curve_of
from analysis.insights import Asked
from analysis.plain import ways
from analysis.recommendation import Recommendation
from analysis.tables import read_inputs
from analysis.target import common_target
from tests.analysis.conftest import AddCell

CLIMB = [0.8 - 0.5 * 0.6**epoch for epoch in range(20)]
NAN = math.nan


def log(folder: Path, ranks: int, accuracies: Sequence[float], seed: int = 0) -> Path:
    path = folder / f"seed{seed}" / f"log_n{ranks}.csv"
    path.parent.mkdir(exist_ok=True)
    lines = [f"{epoch},{value},{60 / ranks}\n" for epoch, value in enumerate(accuracies)]
    path.write_text("epoch,val_acc,seconds\n" + "".join(lines))
    return path


def answer(paths: Sequence[Path], target: float | None = None) -> Recommendation:
    given = read_inputs(paths)
    assert np.isfinite(given.table["value"]).all(), "what is not finite is left out"
    return analysis.recommend(given.table, target, runs=given.runs)


def table(folder: Path, accuracies: dict[int, float]) -> Path:
    path = folder / "t.csv"
    rows = [f"{n},throughput,{100 * n}\n{n},val_acc,{accuracy}\n" for n, accuracy in accuracies.items()]
    path.write_text("n_gpus,metric,value\n" + "".join(rows))
    return path


def test_an_accuracy_of_zero_everywhere_is_said_and_sets_no_target(tmp_path: Path) -> None:
    best = answer([table(tmp_path, {1: 0.0, 2: 0.0})])
    assert best.target is None
    assert best.fastest is not None
    assert any("No configuration has learnt anything (accuracies up to 0)" in said for said in best.sentences)
    asked = answer([tmp_path / "t.csv"], target=0.5)
    assert asked.fastest is None
    assert [way.n_gpus for way in asked.unreached] == [1, 2]


def test_a_target_is_not_reached_before_the_accuracy_has_been_there(tmp_path: Path) -> None:
    """Smoothed with what comes after, the first epoch of a steep climb is as high as the second."""
    steep = [0.55, 0.825, 0.936, 0.969, 0.967, 0.967, 0.981, 0.983]
    best = answer([log(tmp_path, 1, steep), log(tmp_path, 2, CLIMB)], target=0.7)
    assert {way.n_gpus: way.epochs for way in best.ways} == pytest.approx({1: 2.0, 2: 5.0})


def test_ways_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "GPU type,GPUs,per_gpu_batch,lr_rule,precision,images/s\n"
    path.write_text(f"{head}V100,4,32,linear,float32,900\nV100,4,64,linear,float32,910\n")
    best = answer([path])
    assert "Fastest for a million samples: 4 x V100, batch 64, " in best.sentences[0]
    assert "not told apart from 4 x V100, batch 32 (" in best.sentences[0]
    assert best.next_run.startswith("Repeat 4 x V100, batch 64 with another seed")
    assert [row[0] for row in ways(best).rows] == [f"4 x V100, batch {batch}, linear rule" for batch in (64, 32)]
    path.write_text(f"{head}V100,4,32,linear,float32,900\nV100,4,32,sqrt,float16,910\nV100,8,32,sqrt,float16,1800\n")
    names = [way.name for way in answer([path]).ways]
    assert names == ["8 x V100, sqrt rule, float16", "4 x V100, sqrt rule, float16", "4 x V100, linear rule, float32"]
    path.write_text(f"{head}T4,4,32,none,float32,900\nV100,4,32,none,float32,1800\n")
    assert [way.name for way in answer([path]).ways] == ["4 x V100", "4 x T4"]


def test_a_smoke_test_that_learns_nothing_is_reported(add_cell: AddCell) -> None:
    for ranks in (1, 2):
        study = add_cell(ranks, [100.0], [0.0])
    assert main(["report", str(study)]) == 0


def test_who_has_an_accuracy_of_zero_does_not_reach_what_the_others_do(tmp_path: Path) -> None:
    best = answer([table(tmp_path, {1: 0.9, 2: 0.8, 4: 0.0})])
    assert best.target == 0.8
    assert best.fastest is not None and best.fastest.n_gpus == 2
    (zero,) = best.unreached
    assert (zero.n_gpus, zero.val_acc, zero.reached) == (4, 0.0, False)


def test_a_table_does_not_say_that_all_reach_what_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("GPUs,epoch time [s],val_acc,epochs_to_stability\n1,9,0.9,9\n2,5,0.8,9\n4,3,0,1\n")
    best = answer([path])
    assert [way.n_gpus for way in best.ways] == [2, 1]
    assert ways(best).heading == "Time to stable accuracy (at least 80.0 %)"
    path.write_text("GPUs,epoch time [s],val_acc,epochs_to_stability\n1,9,0.9,9\n2,5,0.8,9\n")
    assert ways(answer([path])).heading == "Time to stable accuracy (all reach 80.0 %)"


def test_what_all_configurations_have_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "GPU type,GPUs,images/s,epoch time [s]\n"
    path.write_text(f"{head}V100,1,100,100\nV100,2,195,\nV100,4,380,\n")
    best = answer([path])
    assert ([way.n_gpus for way in best.ways], best.basis) == ([4, 2, 1], "million samples")
    path.write_text(f"{head}V100,1,100,100\nV100,2,,51\nV100,4,380,26\n")
    best = answer([path])
    assert ([way.n_gpus for way in best.ways], best.basis) == ([4, 2, 1], "epoch")
    path.write_text("GPUs,images/s,epochs,total time [s]\n1,100,9,900\n2,195,,\n4,380,9,250\n")
    best = answer([path])
    assert ([way.n_gpus for way in best.ways], best.basis) == ([4, 2, 1], "million samples")
    path.write_text("GPUs,images/s,time to target [s]\n1,100,900\n2,195,500\n4,380,\n")
    best = answer([path])
    assert ([way.n_gpus for way in best.ways], best.basis) == ([4, 2, 1], "million samples")


def test_who_lacks_what_is_compared_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("GPUs,images/s,epoch time [s],val_acc\n1,,100,0.9\n2,195,,0.9\n4,380,,0.9\n8,700,,0.9\n")
    best = answer([path])
    assert [way.n_gpus for way in best.ways] == [8, 4, 2]
    assert [way.n_gpus for way in best.uncounted] == [1]
    assert "No throughput is known of 1 rank (0.9), so it is not ranked." in best.sentences
    path.write_text("GPUs,images/s,epoch time [s],epochs to stability\n1,,100,9\n2,195,51,9\n4,380,,\n8,700,,\n")
    best = answer([path])
    assert ([way.n_gpus for way in best.ways], best.basis) == ([2, 1], "stable")
    assert "No time of an epoch is known of 4 ranks, 8 ranks, so they are not ranked." in best.sentences


def test_epochs_that_nobody_counted_are_not_taken_for_missing_the_target(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "GPU type,GPUs,epochs,epoch time [s],val_acc,epochs to stability\n"
    path.write_text(f"{head}V100,4,30,80,0.70,20\nV100,8,30,44,0.72,N/A\n")
    best = answer([path])
    assert best.unreached == ()
    assert [way.n_gpus for way in best.uncounted] == [8]
    assert not any("Not seen to reach" in said for said in best.sentences)
    assert "No epochs to stability are known of 8 x V100 (0.72), so it is not ranked." in best.sentences
    sheet = ways(best)
    assert sheet.heading == "Time to stable accuracy (all reach 70.0 %)"
    assert sheet.rows[-1][-1] == "epochs not counted"
    report = as_json(assemble(read_inputs([path])))["recommendations"][0]
    assert (report["unreached"], [way["n_gpus"] for way in report["uncounted"]]) == ([], [8])


def test_a_curve_that_stays_at_zero_does_not_reach_either(tmp_path: Path) -> None:
    best = answer([log(tmp_path, 1, CLIMB), log(tmp_path, 2, [0.005] * 20), log(tmp_path, 4, [0.0] * 20)])
    assert best.target == pytest.approx(0.79, abs=0.001)
    assert [way.n_gpus for way in best.ways] == [1]
    nothing = answer([log(tmp_path, 2, [0.005] * 20), log(tmp_path, 4, [0.0] * 20)])
    assert nothing.target is None, "less than the tolerance above 0 would be a target below it"
    assert any("accuracies up to 0.005" in said for said in nothing.sentences)


@pytest.mark.parametrize("where", [0, 7, 19])
def test_a_nan_epoch_is_left_out(tmp_path: Path, where: int) -> None:
    broken = [NAN if epoch == where else value for epoch, value in enumerate(CLIMB)]
    paths = [log(tmp_path, 1, CLIMB), log(tmp_path, 2, broken), log(tmp_path, 4, CLIMB)]
    for order in itertools.permutations(paths):
        best = answer(order)
        assert best.target == pytest.approx(0.79, abs=0.001)
        assert {way.n_gpus: way.epochs for way in best.ways} == pytest.approx({1: 10, 2: 10, 4: 10}, abs=1)
    alone = read_inputs([paths[1]])
    assert common_target(alone.table, alone.runs) == pytest.approx(0.79, abs=0.001)
    numbers, values = curve_of(alone.runs[0])
    assert len(numbers) == len(values) == 19
    assert where + 1 not in numbers


@pytest.mark.parametrize("lost", [[NAN] * 20, [*CLIMB[:14], *[NAN] * 6], [NAN], [0.5, NAN]])
def test_a_run_that_ends_in_nan_does_not_reach(tmp_path: Path, lost: list[float]) -> None:
    whole = CLIMB if len(lost) > 2 else [0.5, 0.6]
    paths = [log(tmp_path, 1, whole), log(tmp_path, 8, lost), log(tmp_path, 2, whole)]
    for order in itertools.permutations(paths):
        best = answer(order)
        assert best.fastest is not None and best.fastest.n_gpus == 2
        assert [(way.n_gpus, way.reached) for way in best.unreached] == [(8, False)]
        assert any("8 ranks (no answer)" in said for said in best.sentences)


def test_a_study_of_nothing_but_nan_is_reported_and_recommends_nothing(tmp_path: Path) -> None:
    path = log(tmp_path, 2, [NAN] * 20)
    best = answer([path])
    assert (best.target, best.fastest, best.cheapest) == (None, None, None)
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "NaN" not in (tmp_path / "out" / "report.json").read_text()


def test_one_seed_of_three_that_ends_in_nan_is_outvoted(tmp_path: Path) -> None:
    paths = [log(tmp_path, 1, CLIMB)]
    paths += [log(tmp_path, 2, [NAN] * 20 if seed == 0 else CLIMB, seed) for seed in range(3)]
    best = answer(paths)
    assert [way.n_gpus for way in best.ways] == [2, 1]
    runs = [run for run in read_inputs(paths).runs if run.n_gpus == 2]
    spread = accuracy_curves(runs)[2][20]
    assert (spread.count, spread.median) == (2, pytest.approx(0.8, abs=0.001))


@pytest.mark.parametrize("lost", [1, 2])
def test_most_seeds_that_diverged_do_not_reach_and_one_is_outvoted(add_cell: AddCell, lost: int) -> None:
    for seed in range(3):
        add_cell(1, [100.0] * 20, CLIMB, seed=seed)
        if seed < 3 - lost:
            study = add_cell(2, [190.0] * 20, CLIMB, seed=seed)
        else:
            # Stopped in an epoch after the sixth, as `fit` does it.
            study = add_cell(2, [190.0] * 6, CLIMB[:6], seed=seed, status="diverged", reason="loss is nan")
    for target in (None, 0.7):
        best = answer([study], target)
        assert best.fastest is not None and best.fastest.n_gpus == (1 if lost == 2 else 2)
        assert [(way.n_gpus, way.reached) for way in best.unreached] == ([(2, False)] if lost == 2 else [])
    if lost == 2:
        said = "Not seen to reach 0.7, and not extrapolated: 2 CPU ranks (2 of 3 runs diverged)."
        assert best.sentences[-1] == said


def test_seeds_that_miss_the_target_are_said_of_the_fastest(tmp_path: Path) -> None:
    paths = [
        log(tmp_path, 8, [0.5, 0.7, *[0.92] * 18], 0),
        log(tmp_path, 8, [0.5, 0.7, *[0.85] * 18], 1),
        *(log(tmp_path, 4, [*[0.6] * 11, *[0.91] * 9], seed) for seed in range(2)),
    ]
    best = answer(paths, 0.9)
    assert best.fastest is not None and (best.fastest.n_gpus, best.fastest.missed) == (8, 1)
    assert "Of 8 ranks 1 of 2 runs did not reach it." in best.sentences
    assert sum("did not reach it" in said for said in best.sentences) == 1
    given = read_inputs(paths)
    (report,) = as_json(assemble(given, Asked(target=0.9)))["recommendations"]
    assert [(way["n_gpus"], way["missed"]) for way in report["ways"]] == [(8, 1), (4, 0)]


def test_seeds_that_diverged_are_not_counted_as_missing_it_too(add_cell: AddCell) -> None:
    add_cell(2, [200.0] * 20, [0.5] * 20, seed=0)
    add_cell(2, [200.0] * 6, CLIMB[:6], seed=1, status="diverged", reason="loss is nan")
    for seed in (2, 3):
        study = add_cell(2, [200.0] * 20, CLIMB, seed=seed)
    assert "Of 2 CPU ranks 1 of 4 runs diverged and 1 of 4 runs did not reach it." in answer([study], 0.7).sentences


def test_who_has_an_accuracy_and_no_time_is_named(tmp_path: Path) -> None:
    untimed = tmp_path / "log_n8.csv"
    untimed.write_text("epoch,val_acc\n" + "".join(f"{epoch},{value}\n" for epoch, value in enumerate(CLIMB)))
    best = answer([log(tmp_path, 4, CLIMB), untimed])
    assert (best.basis, [way.n_gpus for way in best.ways]) == ("target", [4])
    assert [(way.n_gpus, way.reached) for way in best.uncounted] == [(8, True)]
    assert "No time of an epoch is known of 8 ranks (0.8), so it is not ranked." in best.sentences
    low = answer([log(tmp_path, 4, [0.9] * 20), untimed], 0.85)
    assert ([way.n_gpus for way in low.unreached], low.uncounted) == ([8], ())
    path = tmp_path / "t.csv"
    path.write_text("GPUs,epoch time [s],epochs to stability,val_acc\n4,26,11,0.9\n8,,12,0.9\n")
    assert [way.n_gpus for way in answer([path]).uncounted] == [8]
    path.write_text("GPUs,time to target [s],val_acc\n4,26,0.9\n8,,0.9\n")
    best = answer([path])
    assert (best.basis, [way.n_gpus for way in best.uncounted]) == ("recorded target", [8])


def test_a_size_that_always_diverged_is_named_and_not_forecast(add_cell: AddCell) -> None:
    for ranks in (1, 2, 4):
        for seed in range(2):
            add_cell(ranks, [100.0 * ranks] * 20, CLIMB, seed=seed)
    study = add_cell(8, [], [], status="diverged", reason="loss is nan")
    best = answer([study], 0.7)
    assert [way.n_gpus for way in best.ways] == [4, 2, 1]
    assert [(way.n_gpus, way.missing, way.n_nodes) for way in best.unreached] == [(8, "", 1)]
    assert best.forecasts == ()
    assert any("not extrapolated: 8 CPU ranks (diverged)." in said for said in best.sentences)
    assert ways(best).rows[-1][0] == "8 CPU ranks, batch 32, linear rule"
    assert main(["report", str(study)]) == 0


def test_runs_too_short_for_a_curve_are_not_outdone_by_one_that_diverged(add_cell: AddCell) -> None:
    for seed in range(3):
        status = "diverged" if seed == 2 else "completed"
        study = add_cell(2, [100.0] * 3, [0.5, 0.6, 0.7], seed=seed, status=status)
    best = answer([study], 0.6)
    assert best.fastest is not None
    assert best.unreached == ()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("log_n2.csv", NAN, "no accuracy at the end of a run is finite, and no time was recorded"),
        ("log.csv", 0.5, "nothing says on how many ranks this was measured; name them in the path"),
        ("log.csv", NAN, "nothing says on how many ranks this was measured; name them in the path"),
    ],
)
def test_a_curve_that_makes_no_table_is_refused_in_words(
    tmp_path: Path, name: str, value: float, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text("epoch,val_acc\n" + "".join(f"{epoch},{value}\n" for epoch in range(9)))
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 2
    assert f"error: {path}: {expected}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
