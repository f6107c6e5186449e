"""Epochs against global batch, where the law is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.epochs import fit_batches
from analysis.schema import COLUMNS
from analysis.tables import frame
from hvdtrain.errors import UserError


def counts(batches: list[int], epochs: list[float], **fields: object) -> pd.DataFrame:
    rows = []
    for batch, value in zip(batches, epochs, strict=True):
        row: dict[str, object] = dict.fromkeys(COLUMNS)
        row.update(
            {"workload": "net", "n_gpus": 1, "global_batch": batch, "metric": "epochs_to_stability", "value": value}
        )
        rows.append({**row, **fields})
    return frame(rows)  # type: ignore[arg-type]


def test_the_hyperbola_is_found_again() -> None:
    batches = [64, 128, 256, 512]
    (group,) = analysis.fit_epochs(counts(batches, [10 * (1 + b / 300) for b in batches])).groups
    assert group.emin == pytest.approx(10, rel=0.02)
    assert group.bcrit == pytest.approx(300, rel=0.05)
    assert group.bcrit_low < 300 < group.bcrit_high
    row = analysis.fit_epochs(counts(batches, [10 * (1 + b / 300) for b in batches])).predict(1024).iloc[0]
    assert row["value"] == pytest.approx(10 * (1 + 1024 / 300), rel=0.02)
    assert row["low"] < row["value"] < row["high"]
    assert row["status"] == "ok"


def test_epochs_that_do_not_grow_have_a_critical_batch_far_above() -> None:
    group = fit_batches(np.array([32.0, 64, 128]), np.array([20.0, 20, 20]), np.ones(3))
    assert group.bcrit > 8 * 128
    # Three equal counts do not exclude growth beyond them: the best guess allows for some, the interval for none.
    low, value, _ = group.interval(256.0)
    assert low == pytest.approx(20, rel=0.01)
    assert 20 < value < 24


def test_one_run_gone_wrong_of_several_moves_nothing() -> None:
    clean = counts([64, 64, 64, 128, 128, 128, 256, 256, 256], [10, 10, 10, 12, 12, 12, 15, 15, 15])
    dirty = counts([64, 64, 64, 128, 128, 128, 256, 256, 256], [10, 10, 10, 12, 90, 12, 15, 15, 15])
    assert analysis.fit_epochs(dirty).predict(512).equals(analysis.fit_epochs(clean).predict(512))


def test_statuses() -> None:
    fit = analysis.fit_epochs(counts([64, 128], [10, 12]))
    assert fit.predict(256)["status"].tolist() == ["insufficient_data"]
    one = analysis.fit_epochs(counts([64], [10])).predict(128).iloc[0]
    assert one["status"] == "insufficient_data"
    assert np.isnan(one["value"])
    far = analysis.fit_epochs(counts([64, 128, 256], [10, 12, 15])).predict([1024, 1025])
    assert far["status"].tolist() == ["ok", "refused"]
    assert far["value"].isna().tolist() == [False, True]


def test_learning_rate_rules_are_apart() -> None:
    both = pd.concat([counts([64, 128, 256], [10, 12, 15], lr_rule="linear"),
                      counts([64, 128, 256], [10, 20, 40], lr_rule="none")], ignore_index=True)  # fmt: skip
    rows = analysis.fit_epochs(both).predict(512).set_index("lr_rule")
    assert rows.loc["none", "value"] > 2 * rows.loc["linear", "value"]


def test_the_noise_scale_is_a_second_estimate() -> None:
    noise = counts([64], [450.0]).assign(metric="noise_scale")
    (group,) = analysis.fit_epochs(pd.concat([counts([64, 128, 256], [10, 12, 15]), noise], ignore_index=True)).groups
    assert group.bcrit_noise == 450


def test_a_batch_is_a_whole_number() -> None:
    with pytest.raises(UserError, match="global batch of 0"):
        analysis.fit_epochs(counts([64, 128, 256], [10, 12, 15])).predict(0)


@pytest.mark.parametrize("epochs", [[25.0, 45, 117], [5.0, 95], [10.0, 12, 15], [20.0, 20, 20]])
def test_the_critical_batch_lies_in_its_own_interval(epochs: list[float]) -> None:
    batches = [1024, 2048, 4096][: len(epochs)]
    (group,) = analysis.fit_epochs(counts(batches, epochs)).groups
    assert group.bcrit_low <= group.bcrit <= group.bcrit_high
