"""Prices that some GPU types have and others do not: money is never compared with hours."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.__main__ import main
from analysis.plain import ways as sheet
from analysis.plots.costs import pareto_plot

UNPRICED = "Without a price, and so not judged by cost: 4 x T4, 2 x T4; give --price T4=RATE."


@pytest.fixture
def table(caltech: Path) -> pd.DataFrame:
    return analysis.read(caltech)


def test_a_budget_in_money_is_not_kept_by_hours(table: pd.DataFrame) -> None:
    best = analysis.recommend(table, budget=5, prices={"V100": 2.48})
    assert best.best is None, "2.88 GPU-hours of 4 x T4 are not 2.88 of the currency"
    assert best.sentences[-2:] == (UNPRICED, "Nothing that has a price keeps a budget of 5.")
    richer = analysis.recommend(table, budget=7.2, prices={"V100": 2.48})
    assert richer.best is not None and richer.best.name == "4 x V100"


def test_a_budget_in_money_is_money_for_every_workload(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [
        f"{name},{kind},{n},10,{s}\n" for name, kind in (("a", "V100"), ("b", "T4")) for n, s in ((1, 5000), (2, 2600))
    ]
    path.write_text("workload,GPU,GPUs,epochs,total time [s]\n" + "".join(lines))
    best = analysis.recommend(analysis.read(path), budget=5, prices={"V100": 2.48})
    of = {answer.workload: answer for answer in (best, *best.others)}
    assert of["a"].best is not None and of["a"].best.name == "2 x V100"
    assert (of["b"].best, of["b"].cheapest) == (None, None)
    assert of["b"].sentences[-2:] == (
        "Without a price, and so not judged by cost: 2 x T4, 1 x T4; give --price T4=RATE.",
        "Nothing that has a price keeps a budget of 5.",
    )
    assert pareto_plot(of["b"].ways, (), ["T4"], of["b"].money) is None, "no figure of hours beside one of money"


def test_without_a_budget_a_workload_that_has_no_price_is_judged_by_hours(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [
        f"{name},{kind},{n},10,{s}\n" for name, kind in (("a", "V100"), ("b", "")) for n, s in ((1, 3400), (2, 1900))
    ]
    path.write_text("workload,GPU,GPUs,epochs,total time [s]\n" + "".join(lines))
    best = analysis.recommend(analysis.read(path), deadline=3600, prices={"V100": 2})
    of = {answer.workload: answer for answer in (best, *best.others)}
    assert {name: own.money for name, own in of.items()} == {"a": True, "b": False}
    for own in of.values():
        assert own.best is not None and own.best == own.cheapest and own.best.n_gpus == 1
        assert not any("Nothing that" in said or "Without a price" in said for said in own.sentences)
    plot = pareto_plot(of["b"].ways, (), [], of["b"].money)
    assert plot is not None and plot.alt.startswith("Time against rank-hours")


def test_the_cheapest_by_a_deadline_has_a_price(table: pd.DataFrame) -> None:
    best = analysis.recommend(table, deadline=3600, prices={"T4": 100})
    assert best.best is not None and best.best.name == "4 x T4", "not 4 x V100, whose 2.78 GPU-hours are fewer than 288"
    assert best.cheapest is not None and best.cheapest.name == "4 x T4"
    assert {way.name for way in best.cheapest_rivals} <= {"2 x T4"}


def test_a_price_of_what_does_not_reach_the_target_leaves_nothing_to_judge(table: pd.DataFrame) -> None:
    only = table[(table["gpu_type"] == "T4") | (table["n_gpus"] == 8)]
    best = analysis.recommend(only, 0.675, budget=5, prices={"V100": 2.48})
    assert [way.name for way in best.ways] == ["4 x T4", "2 x T4"]
    assert (best.best, best.cheapest) == (None, None)
    assert UNPRICED in best.sentences


def test_where_no_way_has_a_price_hours_count(table: pd.DataFrame) -> None:
    for prices in (None, {"A100": 3.0}):
        best = analysis.recommend(table, budget=3, prices=prices)
        assert best.best is not None and best.best.name == "4 x V100"
        assert any("a budget of 3 GPU-hours" in said for said in best.sentences)
        assert not any("Without a price" in said for said in best.sentences)


def test_a_price_of_a_type_that_was_not_measured_is_said(table: pd.DataFrame) -> None:
    best = analysis.recommend(table, budget=3, prices={"V10": 2.48, "t4": 0.35})
    said = "No configuration ran on V10, so its price changes nothing: those measured are"
    assert best.sentences[-1].startswith(said) and {"V100", "T4"} <= set(
        best.sentences[-1].strip(".").replace(",", "").split()
    )
    assert not any("changes nothing" in said for said in analysis.recommend(table, prices={"V100": 2.48}).sentences)


def test_where_all_have_a_price_nothing_is_left_out(table: pd.DataFrame) -> None:
    best = analysis.recommend(table, budget=5, prices={"V100": 2.48, "T4": 0.35})
    assert best.best is not None and best.best.name == "4 x T4"
    assert not any("Without a price" in said for said in best.sentences)


def test_the_figure_has_one_kind_of_cost(table: pd.DataFrame) -> None:
    kinds = ["T4", "V100"]
    best = analysis.recommend(table, prices={"V100": 2.48})
    plot = pareto_plot(best.ways, best.forecasts, kinds)
    assert plot is not None
    assert plot.alt.startswith("Time against cost. 8 x V100: 23.1 min, 7.64; 4 x V100: 41.7 min, 6.89. None beats")
    assert plot.alt.endswith("Without a price, and not shown: 4 x T4, 2 x T4.")
    assert plot.figure.axes[0].get_ylabel() == "cost"
    hours = pareto_plot(analysis.recommend(table).ways, (), kinds)
    assert hours is not None and hours.figure.axes[0].get_ylabel() == "GPU-hours"
    assert "not shown" not in hours.alt
    lone = [way for way in best.ways if way.name != "4 x V100"]
    assert pareto_plot(lone, (), kinds) is None, "one way with a price is no comparison"


def test_a_type_of_several_words_is_quoted_and_cpu_ranks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "workload,GPU,device,GPUs,epoch time [s]\n"
    path.write_text(f"{head}net,Tesla T4,gpu,1,9\nnet,,cpu,2,8\nnet,A100,gpu,1,2\n")
    best = analysis.recommend(analysis.read(path), prices={"a100": 3})
    named = 'not judged by cost: 2 CPU ranks, 1 x Tesla T4; give --price cpu=RATE --price "Tesla T4=RATE".'
    assert any(named in said for said in best.sentences)


def test_the_report_says_it(caltech: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = caltech.parent / "out"
    assert main(["report", str(caltech), "--price", "V100=2.48", "--budget", "5", "--out", str(out)]) == 0
    assert UNPRICED in " ".join(capsys.readouterr().out.split())
    assert UNPRICED in (out / "report.md").read_text()


MIXED = "workload,device,GPU,GPUs,epochs,total time [s]\n"
NO_RATE = "Without a price, and so not judged by cost: 4 CPU ranks; give --price cpu=RATE --price V100=RATE."


def test_hours_of_cpu_ranks_are_no_hours_of_gpus(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{MIXED}net,cpu,,4,10,1000\nnet,gpu,V100,1,10,5000\nnet,gpu,V100,2,10,2600\n")
    table = analysis.read(path)
    best = analysis.recommend(table)
    assert best.fastest is not None and best.fastest.name == "4 CPU ranks"
    assert best.cheapest is not None and best.cheapest.name == "1 x V100"
    assert [way.name for way in best.cheapest_rivals] == ["2 x V100"]
    assert NO_RATE in best.sentences
    plot = pareto_plot(best.ways, (), ["V100"])
    assert plot is not None and plot.alt.startswith("Time against GPU-hours. 2 x V100")
    assert plot.alt.endswith("Without a price, and not shown: 4 CPU ranks.")
    assert "rank-hours" in sheet(best).columns, "what GPU-hours would not say of CPU ranks"
    limited = analysis.recommend(table, budget=1.2)
    assert limited.best is None
    assert "Nothing that ran on GPUs keeps a budget of 1.2 GPU-hours." in limited.sentences
    assert NO_RATE in limited.sentences
    half = analysis.recommend(table, prices={"cpu": 0.05})
    assert half.cheapest is not None and half.cheapest.name == "4 CPU ranks"
    assert any("not judged by cost: 2 x V100, 1 x V100; give --price V100=RATE." in said for said in half.sentences)
    priced = analysis.recommend(table, prices={"cpu": 0.05, "V100": 2.48})
    assert priced.cheapest is not None and priced.cheapest.name == "4 CPU ranks"
    assert not any("Without a price" in said for said in priced.sentences)


def test_hours_of_one_kind_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{MIXED}net,cpu,,4,10,1000\nnet,cpu,,2,10,2500\nother,gpu,V100,1,10,5000\n")
    best = analysis.recommend(analysis.read(path), budget=1.2)
    assert best.cheapest is not None and best.cheapest.name == "4 CPU ranks"
    assert best.best is not None and best.best.name == "4 CPU ranks"
    assert not any("Without a price" in said for answer in (best, *best.others) for said in answer.sentences)
