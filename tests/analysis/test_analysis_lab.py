"""The published Horovod lab, from its own table alone: what a careful reader finds in it."""

from __future__ import annotations

import pandas as pd
import pytest

import analysis
from analysis.sentences import rivals_of
from hvdtrain.errors import UserError


@pytest.fixture(scope="module")
def lab() -> pd.DataFrame:
    return analysis.reference("caltech256_lab")


def numbers(found: list[analysis.Finding], code: str) -> dict[str, float]:
    (finding,) = [one for one in found if one.code == code]
    assert finding.message
    assert finding.likely
    assert finding.next
    assert finding.rows
    return dict(finding.numbers)


def test_the_three_anomalies_are_found_and_named(lab: pd.DataFrame) -> None:
    found = analysis.diagnose(lab)
    total = numbers(found, "inconsistent_total")
    assert (total["product"], total["total_time"]) == (6270, 5910)
    assert numbers(found, "superlinear") == pytest.approx(
        {"from": 2, "to": 4, "speedup": 2.58, "efficiency": 1.29}, rel=0.01
    )
    same = numbers(found, "input_bound")
    assert same["n_gpus"] == 4
    assert same["ratio"] == pytest.approx(81 / 80)


def test_findings_point_at_their_rows(lab: pd.DataFrame) -> None:
    for finding in analysis.diagnose(lab):
        rows = lab.loc[list(finding.rows)]
        if finding.code == "inconsistent_total":
            assert set(rows["n_gpus"]) == {2}
        if finding.code == "input_bound":
            assert set(rows["gpu_type"]) == {"T4", "V100"}
            assert set(rows["n_gpus"]) == {4}


def test_sixteen_v100_are_forecast_with_a_range_and_a_warning(lab: pd.DataFrame) -> None:
    rows = analysis.fit_scaling(lab).predict([16, 64])
    v100 = rows[rows["gpu_type"] == "V100"].set_index("n_gpus")
    assert v100.loc[16, "status"] == "insufficient_data"
    assert 21.9 <= v100.loc[16, "low"] < v100.loc[16, "value"] < v100.loc[16, "high"] < 30
    assert 22 <= v100.loc[16, "value"] <= 28
    assert v100.loc[64, "status"] == "refused"
    assert pd.isna(v100.loc[64, "value"])


def test_thirty_epochs_are_one_end_of_an_interval_and_cannot_be_confirmed(lab: pd.DataFrame) -> None:
    row = analysis.fit_epochs(lab).predict(512).iloc[0]
    assert 28 <= row["low"] <= 31
    assert 28 <= row["value"] <= 42
    assert row["high"] > 42
    assert row["by_log2"] < row["by_power"] < row["value"], "the three laws part ways, and all are reported"
    horizon = numbers(analysis.diagnose(lab), "horizon")
    assert horizon["epochs"] == 30
    assert horizon["high"] > 30


def test_eight_v100_reach_stable_accuracy_first(lab: pd.DataFrame) -> None:
    best = analysis.recommend(lab)
    assert best.fastest is not None
    assert (best.fastest.name, best.fastest_rivals) == ("8 x V100", ())
    # 25 epochs of 44 s, and the 67 s that the run took besides its 30 epochs.
    assert best.fastest.seconds == pytest.approx(25 * 44 + 67)
    assert best.fastest.gpu_hours == pytest.approx(8 * 1167 / 3600)
    assert [way.name for way in best.ways] == ["8 x V100", "4 x V100", "4 x T4", "2 x T4"]
    # By GPU-hours nothing separates the rest: nobody repeated a run.
    assert best.cheapest is not None
    assert {best.cheapest.name, *(way.name for way in best.cheapest_rivals)} == {"2 x T4", "4 x T4", "4 x V100"}
    assert any(
        "not told apart from 4 x V100 (1.89 GPU-hours), 4 x T4 (1.89 GPU-hours)." in said for said in best.sentences
    )
    assert (
        rivals_of(best.ways[:2], "seconds") == "; not told apart from 8 x V100 (19 min 27 s), 4 x V100 (28 min 22 s)."
    )
    assert "16 GPUs" in best.next_run


def test_a_higher_target_leaves_out_who_never_reached_it(lab: pd.DataFrame) -> None:
    best = analysis.recommend(lab, target=0.68)
    assert {way.name for way in best.ways} == {"2 x T4", "4 x V100"}
    assert {way.name for way in best.unreached} == {"8 x V100", "4 x T4"}
    assert any("not extrapolated" in sentence for sentence in best.sentences)


def test_limits_choose_among_what_surely_meets_them(lab: pd.DataFrame) -> None:
    by_deadline = analysis.recommend(lab, deadline=3600)
    assert by_deadline.best is not None
    assert by_deadline.best.name == "2 x T4"
    by_budget = analysis.recommend(lab, budget=2.2)
    assert by_budget.best is not None
    assert by_budget.best.name == "4 x V100"
    # Its best guess of 28:22 keeps half an hour, its interval does not.
    close = analysis.recommend(lab, deadline=1750, budget=2.2)
    assert close.best is None
    assert "interval reaches beyond" in close.sentences[-1]


def test_prices_make_hours_into_cost(lab: pd.DataFrame) -> None:
    best = analysis.recommend(lab, prices={"t4": 0.35, "V100": 2.48})
    assert best.cheapest is not None
    assert best.cheapest.cost == pytest.approx(0.35 * 2 * 2955 / 3600)
    assert best.cheapest.name == "2 x T4"
    assert {way.name for way in best.cheapest_rivals} == {"4 x T4"}


def test_the_forecast_is_listed_and_never_ranked(lab: pd.DataFrame) -> None:
    best = analysis.recommend(lab)
    ahead = {way.name: way for way in best.forecasts}
    assert not ahead["16 x V100"].measured
    assert ahead["16 x V100"].low < 67 + 39 * 23.5 < ahead["16 x V100"].high
    assert not {way.name for way in best.ways} & set(ahead)


def test_groups_are_never_pooled_over_gpu_types(lab: pd.DataFrame) -> None:
    groups = analysis.fit_scaling(lab).groups
    assert [(group.fields["gpu_type"], group.data.n.tolist()) for group in groups] == [("T4", [2, 4]), ("V100", [4, 8])]
    assert any(finding.code == "mixed_gpu_types" for finding in analysis.diagnose(lab))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"target": 68}, "between 0 and 1; did you mean 0.68"),
        ({"deadline": 0}, "deadline 0 is not above zero"),
        ({"prices": {"T4": -1}}, "the price of T4, -1, is not above zero"),
    ],
)
def test_mistakes_are_said(lab: pd.DataFrame, arguments: dict[str, float], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        analysis.recommend(lab, **arguments)  # type: ignore[arg-type]


def test_every_reference_set_can_be_read_and_diagnosed() -> None:
    from analysis.references import names

    assert len(names()) >= 6
    for name in names():
        table = analysis.reference(name)
        assert len(table)
        assert table["value"].notna().all()
        analysis.diagnose(table)
    with pytest.raises(UserError, match='did you mean "caltech256_lab"'):
        analysis.reference("caltech256")
