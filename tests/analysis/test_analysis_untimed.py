"""Configurations without a time: which are named, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import analysis


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
