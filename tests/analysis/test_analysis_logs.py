"""Training logs: which lines are of which run, and what counts of an epoch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import analysis
from analysis.__main__ import main
from analysis.tables import read_inputs
from hvdtrain.errors import UserError
from tests.analysis.conftest import AddCell, accuracy, text_of


def test_runs_in_one_file_are_told_apart_by_ranks_and_seeds(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    lines = [(e, n, seed, accuracy(e) + seed / 100, 60 / n) for e in range(20) for n in (1, 2, 4) for seed in (3, 4)]
    path.write_text(text_of("epoch,num_gpus,seed,val_acc,seconds", lines))
    runs = read_inputs([path]).runs
    assert [(run.n_gpus, run.seed, len(run.epochs)) for run in runs] == [(n, s, 20) for n in (1, 2, 4) for s in (3, 4)]
    assert len({run.source for run in runs}) == 6
    table = analysis.read(path)
    totals = table[table["metric"] == "total_time"]
    assert totals["value"].tolist() == [1200, 1200, 600, 600, 300, 300]
    assert totals["replicate"].tolist() == [3, 4] * 3


@pytest.mark.parametrize("columns", ["GPUs", "workers", "ranks", "n_gpus"])
def test_blocks_of_runs_too_and_percent_is_of_the_whole_file(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "all.csv"
    lines = [(e, f"{n}.0", 0.5 if n == 2 else 100 * accuracy(e)) for n in (1, 2) for e in range(20)]
    path.write_text(text_of(f"epoch,{columns},val_acc", lines))
    one, two = read_inputs([path]).runs
    assert (one.n_gpus, two.n_gpus) == (1, 2)
    assert two.epochs[0].val_acc == 0.005, "0.5 %, because the other run is in percent"


def test_trials_are_replicates_and_what_stays_the_same_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run-4gpu" / "log.csv"
    path.parent.mkdir()
    path.write_text(
        text_of("epoch,trial,run,val_acc", [(e, t, "a", accuracy(e) + t / 99) for e in range(5) for t in (0, 1)])
    )
    assert [(run.n_gpus, run.seed) for run in read_inputs([path]).runs] == [(4, 0), (4, 1)]


def test_a_log_that_does_not_say_its_ranks_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unnamed, named = tmp_path / "metrics.csv", tmp_path / "log_n4.csv"
    unnamed.write_text(text_of("epoch,val_acc,seconds", [(e, 0.1 + 0.04 * e, 9) for e in range(20)]))
    named.write_text(text_of("epoch,val_acc,seconds", [(e, accuracy(e), 9) for e in range(20)]))
    out = tmp_path / "out"
    assert main(["report", str(unnamed), str(named), "--out", str(out)]) == 0
    said = (
        "metrics.csv (ranks not known, 20 epochs recorded): completed: nothing says on how many ranks it ran; name them "
        "in the path (run-4gpu/metrics.csv, log_n4.csv) or in a column n_gpus"
    )
    printed, page = " ".join(capsys.readouterr().out.split()), (out / "report.html").read_text()
    for text in (printed, page):
        below = text.split("Cells that are not in the tables")[1]
        assert said in below and "log_n4.csv (" not in below
        assert "0 ranks" not in text
    (cell,) = json.loads((out / "report.json").read_text())["left_out"]
    assert (cell["n_gpus"], cell["status"], cell["epochs"]) == (None, "completed", 20)
    assert "horizon" not in page


TWICE = [(e, 0.1 * e + k / 100) for k in (0, 1) for e in range(5)]


@pytest.mark.parametrize(
    ("columns", "lines", "expected"),
    [
        ("epoch,val_acc", TWICE, 'epoch 0 is there twice, with "val_acc" 0.0 and 0.01.*a column n_gpus or seed'),
        ("epoch,val_acc", sorted(TWICE), "epoch 0 is there twice"),
        ("epoch,loss", TWICE, "epoch 0 is there twice"),
        (
            "epoch,model,val_acc",
            [(e, m, 0.1 + e * k) for e in range(5) for k, m in enumerate("ab")],
            r'epoch 1 is there twice, with "val_acc" 0.1 and 1.1 \(column "model": a and b\)',
        ),
        (
            "epoch,run,val_acc",
            [(e, m, 0.1 * e) for m in ("small", "big") for e in range(5)],
            'column "run" tells runs apart, and "small" is not a whole number of 0 or more',
        ),
        (
            "epoch,gpus,val_acc",
            [(0, 1, 0.5), (0, "", 0.6), (0, 2, 0.7)],
            'column "gpus" .* is empty in a line of epoch 0',
        ),
        (
            "epoch,workers,val_acc",
            [(e, 2 if e < 3 else 4, 0.1 * e) for e in range(6)],
            '"workers" differ between lines, but not as between runs.*2 from epoch 0, 4 from epoch 3',
        ),
        ("epoch,gpus,val_acc", [(30, 1, 0.5), (30, 2, 0.6)], 'in a table of results call the column "epoch" epochs'),
        (
            "epoch,gpus,workers,val_acc",
            [(e, n, 8 * n, 0.1 * e) for n in (1, 2) for e in range(5)],
            r'"gpus" \(1\) and "workers" \(8\) both say the number of ranks',
        ),
        (
            "epoch,run,seed,val_acc",
            [(e, r, s, 0.1 * e) for r in (1, 2) for s in (1, 2) for e in range(5)],
            'only "run" and "seed" together tell the runs on the same ranks apart',
        ),
        ("epoch,val_acc", [("inf", 0.5)], 'column "epoch": "inf" is not finite'),
        ("epoch,val_acc", [("nan", 0.5)], "holds no epochs"),
    ],
)
def test_several_runs_that_nothing_tells_apart_are_refused(
    tmp_path: Path, columns: str, lines: list[tuple[object, ...]], expected: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text_of(columns, lines))
    with pytest.raises(UserError, match=expected) as caught:
        analysis.read(path)
    assert str(caught.value).startswith(str(path))


def test_a_path_and_a_column_that_disagree_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log_n4.csv"
    path.write_text(text_of("epoch,workers,val_acc", [(e, 8, 0.1 * e) for e in range(5)]))
    with pytest.raises(UserError, match="its path says 4 ranks, and a column of it 8"):
        analysis.read(path)


def test_a_test_at_the_end_is_no_validation(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    lines = [(0, 99, 1.0, 0.5, ""), (1, 199, 0.8, 0.6, ""), (2, 200, "", "", 0.4)]
    path.write_text(text_of("epoch,step,train_loss,val_acc,test_acc", lines))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == [0.5, 0.6]
    # Its time is none of an epoch's either.
    path.write_text(text_of("epoch,time,val_acc,test_acc", [(0, 10, 0.5, ""), (1, 20, 0.6, ""), (2, 25, "", 0.4)]))
    (run,) = read_inputs([path]).runs
    assert [(epoch.val_acc, epoch.seconds) for epoch in run.epochs] == [(0.5, 10), (0.6, 10)]
    for columns, line in (("epoch,val_acc,test_acc", (0, 0.5, 0.4)), ("epoch,test_acc,val_acc", (0, 0.4, 0.5))):
        path.write_text(text_of(columns, [line]))
        (run,) = read_inputs([path]).runs
        assert [epoch.val_acc for epoch in run.epochs] == [0.5]
    # Some call their validation a test.
    path.write_text(text_of("epoch,val_loss,test_acc", [(0, 1.0, 0.4), (1, 0.9, 0.5)]))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == [0.4, 0.5]


def test_validations_within_an_epoch_and_a_restart_are_one_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    steps = [(e, 100 * e + 50 * half, 0.1 * e + 0.01 * half) for e in range(4) for half in (0, 1)]
    path.write_text(text_of("epoch,step,val_acc", steps))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == pytest.approx([0.01, 0.11, 0.21, 0.31]), "the last of each"
    losses = [(e, 10 * e + k, 2.0 - k / 10, "", "") for e in range(2) for k in range(3)]
    path.write_text(
        text_of("epoch,step,train_loss,val_acc,test_acc", [*losses, (1, 13, "", 0.7, ""), (1, 13, "", "", 0.6)])
    )
    (run,) = read_inputs([path]).runs
    assert [epoch.train_loss for epoch in run.epochs] == [1.8, 1.8], (
        "losses of single steps contradict nothing, nor does a test"
    )
    path.write_text(text_of("epoch,val_acc", [(0, 0.1), (1, 0.2), (2, 0.3), (1, 0.25), (2, 0.35), (3, 0.4)]))
    (run,) = read_inputs([path]).runs
    assert [epoch.val_acc for epoch in run.epochs] == [0.1, 0.25, 0.35, 0.4], "what was trained again counts"


def test_a_log_without_times_is_not_drawn_over_time(tmp_path: Path) -> None:
    folders = []
    for name, column, apart in (("without", "lr", 1), ("with", "seconds", 1), ("gaps", "seconds", 5)):
        folder = tmp_path / name
        folder.mkdir()
        for ranks in (1, 2):
            lines = [(epoch, accuracy(epoch), 0.1) for epoch in range(0, 12 * apart, apart)]
            (folder / f"log_n{ranks}.csv").write_text(text_of(f"epoch,val_acc,{column}", lines))
        folders.append(folder)
    drawn = []
    for folder in folders:
        assert main(["report", *map(str, sorted(folder.glob("*.csv"))), "--out", str(folder / "report")]) == 0
        figures = {path.stem for path in (folder / "report" / "figures").iterdir()}
        drawn.append([name in figures for name in ("accuracy_epoch", "accuracy_time")])
    assert drawn == [[True, False], [True, True], [True, False]]


def test_a_log_of_another_tool_may_be_of_data_that_are_not_sharded(tmp_path: Path, add_cell: AddCell) -> None:
    paths = []
    for ranks in (1, 4):
        paths.append(tmp_path / f"run-{ranks}gpu" / "log.csv")
        paths[-1].parent.mkdir()
        lines = [(epoch, accuracy(epoch), 100 + epoch % 2) for epoch in range(20)]
        paths[-1].write_text(text_of("epoch,val_accuracy,seconds", lines))
    given = read_inputs(paths)
    raised = {finding.code: finding for finding in analysis.diagnose(given.table, given.runs)}
    assert "retrograde" not in raised
    assert raised["weak_scaling"].likely.startswith("every rank trains on all data")
    for ranks in (1, 4):
        study = add_cell(ranks, [100.0] * 3)
    own = read_inputs([study])
    assert "retrograde" in {finding.code for finding in analysis.diagnose(own.table, own.runs)}


@pytest.mark.parametrize(
    ("folder", "ranks"),
    [
        ("rtx-4090-gpu", 0), ("resnet-50-gpu", 0), ("vgg_16_gpu", 0), ("2024-05-01-gpu", 0),
        ("run-4gpu", 4), ("run-8-gpus", 8), ("4-gpu", 4), ("resnet-50-4gpu", 4), ("16 workers", 16), ("run_n8", 8),
    ],
)  # fmt: skip
def test_the_number_of_a_model_or_a_day_is_not_that_of_ranks(tmp_path: Path, folder: str, ranks: int) -> None:
    path = tmp_path / folder / "metrics.csv"
    path.parent.mkdir()
    path.write_text(text_of("epoch,val_acc", [(e, accuracy(e)) for e in range(12)]))
    assert read_inputs([path]).runs[0].n_gpus == ranks


def test_a_log_that_ends_in_nothing_is_left_out_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "log_n2.csv", tmp_path / "log_n4.csv"
    good.write_text(text_of("epoch,val_acc", [(e, accuracy(e)) for e in range(20)]))
    bad.write_text(text_of("epoch,val_acc", [(e, accuracy(e) if e < 12 else "nan") for e in range(20)]))
    assert main(["report", str(good), str(bad), "--out", str(tmp_path / "out")]) == 0
    below = " ".join(capsys.readouterr().out.split()).split("Cells that are not in the tables")[1]
    assert "log_n4.csv (4 ranks" in below and "its accuracy was not finite at the end" in below
    assert "log_n2.csv (" not in below


def test_what_diverged_is_not_said_to_settle_later(tmp_path: Path) -> None:
    path = tmp_path / "log_n4.csv"
    lines = [(e, accuracy(e) if e < 12 else "nan", 9) for e in range(20)]
    path.write_text(text_of("epoch,val_acc,seconds", lines))
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    said = (tmp_path / "out/report.md").read_text()
    assert re.search(r"\| +4 \| +- \| +- \| diverged", said)
    assert "more than 12 epochs" not in said
