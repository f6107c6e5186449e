"""`record_epoch` of loops of one's own."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvdtrain import launch
from hvdtrain.errors import Diverged, UserError
from hvdtrain.own_epochs import record_epoch
from hvdtrain.record import read_epochs, read_json
from tests.unit.starting import run, script


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("folder", [True, False])
def test_a_loss_that_is_no_number_ends_all_ranks_as_in_fit(
    rank: int, folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "active", SimpleNamespace(world=SimpleNamespace(rank=rank), progress=print))
    monkeypatch.delenv("HVDTRAIN_RUN_DIR", raising=False)
    if folder:
        monkeypatch.setenv("HVDTRAIN_RUN_DIR", str(tmp_path))
    record_epoch(1, samples=8, seconds=1.0, train_loss=0.5, val_loss=math.inf)
    if rank != 0:  # it may be of this rank alone: what rank 0 passes counts
        record_epoch(2, samples=8, seconds=1.0, train_loss=math.nan)
        return
    for epoch, loss in ((2, math.nan), (3, math.inf)):
        with pytest.raises(
            Diverged, match=f"the training loss is {loss} in epoch {epoch} at learning rate 0.1; try"
        ) as caught:
            record_epoch(epoch, samples=8, seconds=1.0, train_loss=loss, lr=0.1)
        assert not caught.value.agreed, "rank 0 tells the others"
    # The epoch is on record, as with `fit`.
    written = [epoch.epoch for epoch in read_epochs(tmp_path / "epochs.jsonl")]
    assert written == ([1, 2, 3] if folder else [])
    with pytest.raises(Diverged, match="in epoch 4; try"):
        record_epoch(4, samples=8, seconds=1.0, train_loss=math.nan)


@pytest.mark.parametrize("given", [{"val_acc": 98.2}, {"train_acc": -0.5}])
def test_an_accuracy_that_is_no_fraction_is_refused(
    given: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "active", SimpleNamespace(world=SimpleNamespace(rank=0), progress=print))
    monkeypatch.setenv("HVDTRAIN_RUN_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"in epoch 1 is no fraction of one; give 98.2 % as 0.982"):
        record_epoch(1, samples=8, seconds=1.0, **given)
    assert list(tmp_path.iterdir()) == []
    record_epoch(1, samples=8, seconds=1.0, train_acc=1, val_acc=0.0)


def test_a_run_whose_loop_records_no_number_has_diverged(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        "from types import SimpleNamespace as Stand\nfrom hvdtrain import launch, own_epochs\n"
        "launch.active = Stand(world=Stand(rank=0, size=1), progress=print)\n"
        "own_epochs.record_epoch(1, samples=8, seconds=1.0, train_loss=1e999)\n",
    )
    ended = run("hvdtrain.run", "--run-dir", tmp_path / "run", job)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    result = read_json(tmp_path / "run" / "result.json")
    assert result is not None and result["status"] == "diverged"
