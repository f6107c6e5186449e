"""Scaling fits on sizes whose law is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.fitting import fit_group
from analysis.measured import measured
from analysis.models import MODELS, fit_model, karp_flatt
from analysis.schema import COLUMNS
from analysis.tables import frame
from hvdtrain.errors import UserError


def table(sizes: list[int], values: list[float], metric: str = "throughput", **fields: object) -> pd.DataFrame:
    common = {"workload": "net", "gpu_type": "V100", "device": "gpu", "per_gpu_batch": 32, **fields}
    rows = []
    for place, (size, value) in enumerate(zip(sizes, values, strict=True)):
        row: dict[str, object] = dict.fromkeys(COLUMNS)
        row.update(
            {"n_gpus": size, "n_nodes": -(-size // 8), "metric": metric, "value": value, "unit": "x", "source": "s"}
        )
        row.update({name: value[place] if isinstance(value, list) else value for name, value in common.items()})
        rows.append(row)
    return frame(rows)  # type: ignore[arg-type]


def amdahl(n: float, share: float = 0.05) -> float:
    return 100 * n / (1 + share * (n - 1))


def test_amdahls_law_is_found_again() -> None:
    n = np.array([1.0, 2, 4, 8])
    fitted = fit_model(MODELS["amdahl"], n, np.log(n / amdahl(n)))
    assert fitted.values[0] == pytest.approx(0.05, rel=1e-3)
    assert fitted.residual < 1e-6
    assert karp_flatt(amdahl(8) / 100, 8) == pytest.approx(0.05)
    assert karp_flatt(1.0, 1) is None


@pytest.mark.parametrize("metric", ["throughput", "epoch_time", "steps_per_s", "total_time"])
def test_every_metric_is_predicted_in_its_own_unit(metric: str) -> None:
    sizes = [1, 2, 4, 8]
    speed = [amdahl(n, 0.01) for n in [*sizes, 16]]
    values = {
        "throughput": speed,
        "epoch_time": [1e5 / one for one in speed],
        "total_time": [1e6 / one for one in speed],
        "steps_per_s": [one / n / 32 for one, n in zip(speed, [*sizes, 16], strict=True)],
    }[metric]
    own = table(sizes, values[:4], metric, n_nodes=1)
    row = analysis.fit_scaling(own).predict(16, gpus_per_node=16).iloc[0]
    assert row["status"] == "ok"
    assert row["value"] == pytest.approx(values[4], rel=0.08)
    assert row["low"] < values[4] < row["high"]


def test_intervals_widen_with_distance() -> None:
    fit = analysis.fit_scaling(table([1, 2, 4], [100, 190, 370]))
    rows = fit.predict([4, 8, 16], gpus_per_node=16)
    widths = np.log(rows["high"] / rows["low"]).to_numpy()
    assert widths[0] < widths[1] < widths[2]


def test_what_each_number_of_sizes_allows() -> None:
    assert analysis.fit_scaling(table([4], [100])).predict(8)["status"].tolist() == ["insufficient_data"]
    two = analysis.fit_scaling(table([1, 2], [100, 190])).predict(4).iloc[0]
    assert two["status"] == "insufficient_data"
    assert two["low"] < two["value"] < two["high"]
    sizes = [1, 2, 4, 8, 16]
    for count in (3, 4, 5):
        (group,) = analysis.fit_scaling(table(sizes[:count], [amdahl(n) for n in sizes[:count]], n_nodes=1)).groups
        assert group.status == "ok"
        assert ("usl" in group.models) == (count >= 5)
        assert {"amdahl", "log2", "power", "ring"} <= set(group.models)
        assert sum(group.weights.values()) == pytest.approx(1)


def test_too_far_or_across_an_unmeasured_boundary_is_refused() -> None:
    fit = analysis.fit_scaling(table([1, 2, 4], [100, 190, 370]))
    rows = fit.predict([8, 16, 17, 64], gpus_per_node=8).set_index("n_gpus")
    assert rows["status"].to_dict() == {8: "ok", 16: "refused", 17: "refused", 64: "refused"}
    assert rows.loc[[16, 17, 64], "value"].isna().all()
    assert (rows["low"] < rows["high"]).all(), "the range is stated all the same"
    inside = fit.predict([16], gpus_per_node=16).iloc[0]
    across = rows.loc[16]
    assert across["low"] < inside["low"], "what a boundary may cost is part of the range"


def test_a_measured_boundary_is_part_of_the_fit() -> None:
    speed = [100, 195, 380, 740, 1100, 2150]
    fit = analysis.fit_scaling(table([1, 2, 4, 8, 16, 32], speed))
    row = fit.predict([64]).iloc[0]
    assert row["status"] == "ok"
    assert row["value"] == pytest.approx(4200, rel=0.05)
    (boundary,) = [one for one in analysis.diagnose(table([1, 2, 4, 8, 16, 32], speed)) if one.code == "node_boundary"]
    assert boundary.numbers["step"] == pytest.approx(740 * 2 / 1100)


def test_many_sizes_on_two_nodes_say_little_of_a_third() -> None:
    # Of DeepSpeech2 in the placements of Pollux (batch 10): a GPU costs more on two nodes than on one, and less on three.
    cost = [1.0, 1.121, 1.267, 1.427, 2.412, 2.443, 2.495, 2.654, 2.104]
    values = [100 * n / one for n, one in enumerate(cost, 1)]
    own = table(list(range(1, 9)), values[:8], n_nodes=[1] * 4 + [2] * 4)
    row = analysis.fit_scaling(own).predict(9, gpus_per_node=4).iloc[0]
    assert row["status"] == "ok"
    assert row["low"] < values[8] < row["high"]


def test_one_outlier_of_five_or_more_sizes_is_left_out() -> None:
    sizes = [1, 2, 4, 8, 16]
    clean = [amdahl(n, 0.01) for n in sizes]
    dirty = [*clean[:2], 0.6 * clean[2], *clean[3:]]
    (group,) = analysis.fit_scaling(table(sizes, dirty, n_nodes=1)).groups
    assert group.outlier == 4
    (untouched,) = analysis.fit_scaling(table(sizes, clean, n_nodes=1)).groups
    assert untouched.outlier is None
    predicted = [fit.predict(32, gpus_per_node=64)["value"].iloc[0] for fit in (
        analysis.fit_scaling(table(sizes, clean, n_nodes=1)), analysis.fit_scaling(table(sizes, dirty, n_nodes=1)))]  # fmt: skip
    assert predicted[1] == pytest.approx(predicted[0], rel=0.05)


def test_what_cannot_be_is_refused() -> None:
    own = table([1, 2, 4], [100, 190, 900])
    row = analysis.fit_scaling(own).predict(8).iloc[0]
    assert row["status"] == "refused"
    assert row[["value", "low", "high"]].isna().all()
    assert "implausible" in {finding.code for finding in analysis.diagnose(own)}


def test_replicates_narrow_the_interval() -> None:
    once = analysis.fit_scaling(table([1, 2, 4], [100, 180, 330])).predict(8).iloc[0]
    often = (
        analysis.fit_scaling(table([1, 1, 1, 2, 2, 2, 4, 4, 4], [100.0] * 3 + [180.0] * 3 + [330.0] * 3))
        .predict(8)
        .iloc[0]
    )
    assert often["high"] / often["low"] < once["high"] / once["low"]


def test_strong_scaling_of_steps_is_told_from_weak() -> None:
    weak = table([1, 2, 4], [10, 9.8, 9.5], "steps_per_s")
    strong = table([1, 2, 4], [10, 19.6, 38], "steps_per_s", per_gpu_batch=[64, 32, 16], global_batch=64)
    (a,), (b,) = measured(weak), measured(strong)
    assert (a.held, b.held) == ("batch per rank", "global batch")
    assert analysis.fit_scaling(weak).predict(8)["value"].iloc[0] == pytest.approx(9.2, rel=0.06)
    assert analysis.fit_scaling(strong).predict(8)["value"].iloc[0] == pytest.approx(74, rel=0.06)


def test_the_contract_of_predict() -> None:
    rows = analysis.fit_scaling(table([1, 2, 4], [100, 190, 370])).predict([16, 32])
    assert rows.columns.tolist() == [
        "workload", "gpu_type", "device", "per_gpu_batch", "lr_rule", "precision", "n_gpus", "value", "low", "high", "status",
    ]  # fmt: skip
    assert rows["n_gpus"].tolist() == [16, 32]
    with pytest.raises(UserError, match="0 ranks cannot be predicted"):
        analysis.fit_scaling(table([1, 2, 4], [100, 190, 370])).predict(0)
    with pytest.raises(UserError, match="no column metric and value"):
        analysis.fit_scaling(pd.DataFrame({"n_gpus": [1]}))


def test_a_table_of_a_few_columns_will_do() -> None:
    bare = pd.DataFrame({"n_gpus": [1, 2, 4], "metric": "throughput", "value": [100.0, 190, 370]})
    row = analysis.fit_scaling(bare).predict(8).iloc[0]
    assert row["status"] == "ok"
    assert analysis.diagnose(bare) == []
    assert analysis.recommend(bare).basis == "million samples"
    assert analysis.fit_epochs(bare).groups == ()
    typed = bare.assign(gpu_type="T4", per_gpu_batch=32.0)
    assert analysis.fit_scaling(typed).groups[0].fields["device"] == "gpu"
    on_cpus = analysis.fit_scaling(bare.assign(gpu_type="CPU")).groups[0].fields
    assert (on_cpus["device"], on_cpus["gpu_type"]) == ("cpu", None)
    with pytest.raises(UserError, match="column n_gpus of the table"):
        analysis.fit_scaling(bare.assign(n_gpus=["one", "two", "four"]))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05])
def test_intervals_hold_new_measurements_about_nine_times_in_ten(share: float) -> None:
    """Simulated: Amdahl's law with 2 % of noise on each measurement, and the next doubling."""
    random = np.random.default_rng(3)
    held = []
    for _ in range(60):
        sizes = np.array([1.0, 2, 4, 8])
        speed = amdahl(sizes, share) * np.exp(random.normal(0, 0.02, 4))
        (data,) = measured(table([1, 2, 4], speed[:3].tolist()))
        _, low, high = fit_group(data).quantiles(np.array([8.0]), np.array([1.0]))
        held.append(low[0] <= speed[3] <= high[0])
    assert np.mean(held) >= 0.8
