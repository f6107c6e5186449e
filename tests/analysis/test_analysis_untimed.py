"""Configurations without a time: which are named, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import analysis
from analysis.tables import read_inputs
from tests.analysis.conftest import accuracy


@pytest.mark.parametrize("target", [None, 0.95])
def test_an_accuracy_without_a_batch_is_of_no_other_configuration(tmp_path: Path, target: float | None) -> None:
    path = tmp_path / "t.csv"
    times = [f"V100,{n},32,epoch_time,{100 / n},s\n" for n in (1, 2, 4)]
    accuracies = [f"V100,{n},,val_acc,0.9,\n" for n in (1, 2, 4)]
    path.write_text("gpu_type,n_gpus,per_gpu_batch,metric,value,unit\n" + "".join([*times, *accuracies]))
    best = analysis.recommend(analysis.read(path), target)
    assert [way.n_gpus for way in best.ways] == [4, 2, 1]
    assert best.uncounted == best.unreached == ()
    assert not any("not ranked" in said for said in best.sentences)


def test_an_untimed_run_that_stays_below_the_target_is_one_that_missed_it(tmp_path: Path) -> None:
    head = "epoch,val_acc,seconds\n"
    timed, untimed = tmp_path / "log_n4.csv", tmp_path / "log_n8.csv"
    timed.write_text(head + "".join(f"{epoch},{accuracy(epoch)},15\n" for epoch in range(20)))
    untimed.write_text(head + "".join(f"{epoch},0.5,\n" for epoch in range(20)))
    given = read_inputs([timed, untimed])
    (below,) = analysis.recommend(given.table, 0.7, runs=given.runs).unreached
    assert (below.n_gpus, below.missed, below.replicates) == (8, 1, 1)
