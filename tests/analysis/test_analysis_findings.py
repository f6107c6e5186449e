"""Each finding is raised by what it describes, with its numbers, and by nothing that is ordinary."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis import plain
from analysis.assemble import assemble
from analysis.checks_speed import speed_checks
from analysis.finding import CODES
from analysis.phases import bound, phase_seconds
from analysis.tables import read_inputs
from hvdtrain.record import Epoch, EpochLog, finish
from tests.analysis.conftest import AddCell

HEAD = "workload,gpu_type,n_gpus,n_nodes,per_gpu_batch,epochs,metric,value,unit\n"


def found(tmp_path: Path, rows: str, head: str = HEAD) -> dict[str, analysis.Finding]:
    path = tmp_path / "t.csv"
    path.write_text(head + rows)
    findings = analysis.diagnose(analysis.read(path))
    for finding in findings:
        assert finding.code in CODES
        assert finding.message
        assert finding.likely
        assert finding.next
        assert finding.numbers or finding.code == "implausible"
    return {finding.code: finding for finding in findings}


def throughput(values: dict[int, float], batch: int | dict[int, int] = 32, kind: str = "V100") -> str:
    return "".join(
        f"net,{kind},{n},{-(-n // 8)},{batch[n] if isinstance(batch, dict) else batch},,throughput,{value},images/s\n"
        for n, value in values.items()
    )


GOOD = {1: 100, 2: 195, 4: 380, 8: 740}


def test_ordinary_scaling_raises_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, throughput(GOOD)) == {}


@pytest.mark.parametrize(
    ("values", "code", "numbers"),
    [
        ({1: 100, 2: 195, 4: 480, 8: 940}, "superlinear", {"from": 2, "to": 4, "speedup": 480 / 195}),
        ({1: 100, 2: 195, 4: 380, 8: 330}, "retrograde", {"from": 4, "to": 8, "speedup": 330 / 380}),
        ({1: 100, 2: 102, 4: 99, 8: 101}, "per_worker_suspected", {"low": 99, "high": 102}),
        ({1: 100, 2: 195}, "insufficient_data", {"sizes": 2}),
        ({8: 740, 16: 1100, 32: 2100}, "node_boundary", {"step": 740 * 16 / 8 / 1100}),
    ],
)
def test_speeds(tmp_path: Path, values: dict[int, float], code: str, numbers: dict[str, float]) -> None:
    raised = found(tmp_path, throughput(values))
    assert set(raised) == {code}
    for name, value in numbers.items():
        assert raised[code].numbers[name] == pytest.approx(value)


@pytest.mark.parametrize(("device", "unit"), [("gpu", "samples/s/GPU"), ("cpu", "samples/s/rank")])
def test_cpu_ranks_are_not_called_gpus(tmp_path: Path, device: str, unit: str) -> None:
    rows = "".join(f"net,{device},{n},32,throughput,{value},images/s\n" for n, value in {1: 100, 2: 102, 4: 99}.items())
    raised = found(tmp_path, rows, head="workload,device,n_gpus,per_gpu_batch,metric,value,unit\n")
    assert unit in raised["per_worker_suspected"].next


def test_what_this_suite_recorded_counts_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "flat.csv"
    path.write_text(HEAD + throughput({1: 100, 2: 102, 4: 99, 8: 101}))
    table = analysis.read(path)
    raised = [finding.code for finding in speed_checks(table, {table["source"].iloc[0]})]
    assert raised == ["retrograde"]
    assert [finding.code for finding in speed_checks(table, {"another"})] == ["per_worker_suspected"]


def test_a_speed_up_that_cannot_be(tmp_path: Path) -> None:
    raised = found(tmp_path, throughput({1: 100, 2: 195, 4: 1500}))
    assert set(raised) == {"implausible"}
    assert "4 ranks measured 15" in raised["implausible"].message or "7.69 times" in raised["implausible"].message


def test_an_epoch_that_takes_as_long_on_more_ranks(tmp_path: Path) -> None:
    rows = "".join(f"net,V100,{n},1,32,10,epoch_time,{value},s\n" for n, value in {1: 60, 2: 61, 4: 62}.items())
    assert set(found(tmp_path, rows)) == {"weak_scaling"}


def test_one_size_of_five_off(tmp_path: Path) -> None:
    raised = found(
        tmp_path, throughput({1: 100, 2: 195, 4: 250, 8: 740, 16: 1440}, kind="A100").replace(",2,32", ",1,32")
    )
    assert raised["outlier"].numbers["n_gpus"] == 4


def test_one_replicate_of_three_off(tmp_path: Path) -> None:
    rows = throughput(GOOD) + throughput(GOOD) + throughput({**GOOD, 4: 200})
    raised = found(tmp_path, rows)
    assert set(raised) == {"outlier"}
    assert len(raised["outlier"].rows) == 1
    assert raised["outlier"].numbers == {"value": pytest.approx(200), "others": pytest.approx(380)}


def test_gpu_types(tmp_path: Path) -> None:
    both = found(tmp_path, throughput({1: 100, 2: 195, 4: 380}, kind="T4") + throughput({1: 101, 2: 196, 4: 381}))
    assert set(both) == {"input_bound"}
    paced = found(tmp_path, throughput({2: 200}, kind="T4") + throughput({2: 201}, kind="T4 + V100"))
    assert "mixed_gpu_types" in paced and "input_bound" not in paced, "the slower type sets the pace"
    apart = found(tmp_path, throughput({1: 100, 2: 195}, kind="T4") + throughput({4: 800, 8: 1500}))
    assert "mixed_gpu_types" in apart
    one = found(tmp_path, throughput({1: 100, 2: 195, 4: 380}, kind="t4 + v100"))
    assert set(one) == {"mixed_gpu_types"}


def test_batches(tmp_path: Path) -> None:
    raised = found(tmp_path, throughput(GOOD, batch={1: 64, 2: 64, 4: 64, 8: 16}))
    assert "batch_changed" in raised
    strong = found(tmp_path, throughput(GOOD, batch={1: 64, 2: 32, 4: 16, 8: 8}))
    assert "batch_changed" not in strong, "strong scaling holds the global batch"
    grid = found(tmp_path, throughput(GOOD) + throughput({1: 120, 2: 230}, batch=64))
    assert "batch_changed" not in grid, "a half-finished grid is none"


def test_entries_that_contradict_each_other(tmp_path: Path) -> None:
    rows = "net,V100,1,1,32,30,epoch_time,209,s\nnet,V100,1,1,32,30,total_time,5910,s\n"
    raised = found(tmp_path, rows)
    assert raised["inconsistent_total"].numbers["product"] == 6270
    rounded = found(tmp_path, rows.replace("5910", "6250"))
    assert "inconsistent_total" not in rounded
    hidden = found(tmp_path, rows.replace("5910", "20000"))
    assert "only 31% of the whole" in hidden["inconsistent_total"].message
    lengths = found(tmp_path, "net,V100,1,1,32,30,val_acc,0.8,\nnet,V100,2,1,32,20,val_acc,0.8,\n")
    assert lengths["epochs_differ"].numbers == {"fewest": 20, "most": 30}


def test_a_study_that_was_recorded_does_not_contradict_itself() -> None:
    table = analysis.reference("caltech256_lab")
    table.attrs["all_from_runs"] = True
    assert "inconsistent_total" not in {finding.code for finding in analysis.diagnose(table)}


def test_a_horizon_that_is_too_near(tmp_path: Path) -> None:
    rows = "".join(f"net,V100,{n},1,32,30,epochs_to_stability,{value},\n" for n, value in {2: 15, 4: 19, 8: 25}.items())
    assert found(tmp_path, rows)["horizon"].numbers["epochs"] == 30
    long = found(tmp_path, rows.replace(",30,", ",200,"))
    assert long == {}


@pytest.mark.parametrize(
    ("ranks", "phases", "limit"),
    [
        (1, {"data": 5.0, "forward": 2.0, "backward": 3.0, "other": 0.1}, "input"),
        (2, {"data": 0.1, "forward": 2.0, "backward": 3.0, "allreduce": 4.0, "other": 0.1}, "communication"),
        (2, {"data": 0.1, "forward": 2.0, "backward": 3.0, "allreduce": 0.5, "other": 0.1}, "compute"),
        (2, {"data": 0.1, "forward": 1.0, "backward": 1.0, "other": 4.0, "val": 50.0}, "overhead"),
        # What was not measured is in another phase: DDP communicates in the backward pass, Keras on PyTorch fetches before a step.
        (2, {"data": 0.1, "forward": 2.0, "backward": 3.0, "other": 0.1}, "compute or communication"),
        (1, {"data": 0.1, "forward": 2.0, "backward": 3.0, "other": 0.1}, "compute"),
        (2, {"forward": 1.0, "backward": 1.0, "allreduce": 0.1, "other": 4.0}, "input or overhead"),
        (2, {"forward": 2.0, "backward": 3.0, "allreduce": 0.1, "other": 0.1}, "compute"),
    ],
)
def test_what_limits(ranks: int, phases: dict[str, float], limit: str) -> None:
    assert bound(phases, ranks) == limit


def test_what_may_limit_is_said_in_the_table(add_cell: AddCell) -> None:
    for ranks in (1, 2):
        study = add_cell(ranks, status=None)
        log = EpochLog(study / f"digits-n{ranks}-s0" / "epochs.jsonl", next_epoch=4)
        log.append(Epoch(4, seconds=10.0, seconds_forward=3.0, seconds_backward=6.0))
        finish(study / f"digits-n{ranks}-s0", "completed", 0)
    report = assemble(read_inputs([study]))
    sheet = plain.phases(report, report.parts[0])
    assert sheet is not None
    assert [row[-1] for row in sheet.rows] == ["compute-bound", "compute- or communication-bound"]


def test_phases_leave_first_epochs_out_and_invent_nothing() -> None:
    epochs = [
        Epoch(1, seconds=10.0, seconds_data=1.0, restart=0),
        Epoch(2, seconds=4.0, seconds_data=1.0, seconds_val=0.5, restart=0),
        Epoch(3, seconds=9.0, seconds_data=1.0, seconds_val=0.5, restart=1),
        Epoch(4, seconds=4.0, seconds_data=1.0, seconds_val=0.5, restart=1),
    ]
    assert phase_seconds(epochs) == {"data": 1.0, "val": 0.5, "other": 2.5}
    assert phase_seconds([Epoch(1, seconds=3.0)]) is None


def test_the_order_is_by_gravity(tmp_path: Path) -> None:
    codes = [finding.code for finding in analysis.diagnose(analysis.reference("caltech256_lab"))]
    assert codes == sorted(codes, key=CODES.index)
    assert isinstance(analysis.diagnose(analysis.reference("caltech256_lab")), list)
    assert isinstance(analysis.reference("fruit_lab"), pd.DataFrame)
