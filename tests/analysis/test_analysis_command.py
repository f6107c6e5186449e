"""`python -m analysis report`, as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.references import path_of

AddCell = Callable[..., Path]

PNG = b"\x89PNG\r\n\x1a\n"
SPREAD = {"median", "low", "high", "count"}


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "analysis", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    # On a busy machine a command says what takes it so long; that is no part of what it has to say.
    done.stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.endswith(" ...\n"))
    return done


def test_ctrl_c_is_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "analysis",
        "report",
        str(path_of("caltech256_lab")),
        "--out",
        str(tmp_path / "out"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        libraries = Path(f"/proc/{process.pid}/maps")
        while "pandas" not in libraries.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said.splitlines()[-1]) == (1, "", "error: interrupted")
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_a_report_is_drawn_without_scipys_statistics(tmp_path: Path) -> None:
    """They take half a second to load, and nothing in a report needs them; whoever asks for them afterwards has them."""
    program = (
        "import sys; from analysis.__main__ import main; assert main(sys.argv[1:]) == 0; "
        "assert 'seaborn' in sys.modules and 'scipy.stats' not in sys.modules; import scipy.stats; print(scipy.stats.norm.cdf(0))"
    )
    words = ["report", str(path_of("fruit_lab")), "--out", str(tmp_path / "out")]
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "0.5"


@pytest.fixture
def study(add_cell: AddCell) -> Path:
    for seed in range(3):
        add_cell(1, [40, 100 + seed, 100 + seed], seed=seed)
        add_cell(2, [40, 180 + seed, 180 + seed], seed=seed)
    add_cell(4, [40], [0.3], status="timeout", reason="time limit of 10 min reached")
    return add_cell(8, [], [], status=None)


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


def check_schema(text: str) -> dict[str, Any]:
    """The documented fields, their types, and nothing that is not JSON."""
    report: dict[str, Any] = json.loads(text, parse_constant=no_constant)
    assert set(report) == {
        "version", "hvdtrain", "inputs", "groups", "left_out", "unanswered", "findings", "epochs_against_batch", "efficiency",
        "recommendations",
    }  # fmt: skip
    assert report["version"] == 1
    for group in report["groups"]:
        assert set(group) == {
            "title", "machine", "workload", "gpu_type", "device", "per_gpu_batch", "lr_rule", "precision", "sources",
            "points", "baseline", "global_batch", "notes", "fit", "predictions",
        }  # fmt: skip
        assert set(group["baseline"]) == {"n_gpus", "metric", "value", "absolute", "text", "one_length"}
        assert all(isinstance(note, str) for note in group["notes"])
        for point in group["points"]:
            spreads = {"epoch_time", "throughput", "total_time", "val_acc", "speedup", "efficiency"}
            others = {
                "n_gpus",
                "n_nodes",
                "replicates",
                "epochs",
                "includes_first_epoch",
                "other_nodes",
                "val_acc_by_epoch",
            }
            others |= {"stability", "phases", "bound"}
            assert set(point) == spreads | others
            for name in spreads:
                assert point[name] is None or set(point[name]) == SPREAD
            for epoch in point["val_acc_by_epoch"]:
                assert set(epoch) == SPREAD | {"epoch"}
    for cell in report["left_out"]:
        assert set(cell) == {"source", "n_gpus", "device", "status", "reason", "epochs"}
    return report


def test_a_study_is_reported_into_its_folder(study: Path, tmp_path: Path) -> None:
    done = run("report", "runs/digits", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    out = study / "report"
    assert sorted(path.name for path in out.iterdir()) == [
        "figures",
        "report.html",
        "report.json",
        "report.md",
        "report.png",
    ]
    wrote = [f"wrote runs/digits/report/{name}" for name in ("report.html", "report.png", "report.md", "report.json")]
    assert done.stdout.splitlines()[-5:-1] == wrote
    figures = {path.name for path in (out / "figures").iterdir()}
    names = {
        "throughput",
        "efficiency",
        "karp_flatt",
        "time",
        "accuracy_epoch",
        "accuracy_time",
        "accuracy_gpu_hours",
        "pareto",
    }
    assert figures >= {f"{name}.{form}" for name in names - {"time"} for form in ("png", "svg")}
    assert done.stdout.splitlines()[-1] == f"wrote {len(figures)} files in runs/digits/report/figures"
    assert (out / "report.png").read_bytes().startswith(PNG)

    report = check_schema((out / "report.json").read_text())
    one, two = report["groups"][0]["points"]
    assert one["throughput"] == {"median": 101, "low": 100, "high": 102, "count": 3}
    assert two["speedup"]["median"] == pytest.approx(181 / 101)
    assert two["efficiency"]["high"] == pytest.approx(182 / 101 / 2)
    assert [epoch["median"] for epoch in two["val_acc_by_epoch"]] == [0.5, 0.8, 0.9]
    timed_out = {"source": "runs/digits/digits-n4-s0", "n_gpus": 4, "device": "cpu", "status": "timeout"}
    assert {**timed_out, "reason": "time limit of 10 min reached", "epochs": 1} in report["left_out"]

    markdown = (out / "report.md").read_text()
    for text in (done.stdout, markdown):
        assert "against 1 CPU rank" in text
        assert "1.79x" in text
        assert "[1.78 to 1.80]" in text
        assert "digits-n4-s0 (4 CPU ranks, 1 epoch recorded): timeout: time limit of 10 min reached" in text
        assert "digits-n8-s0 (8 CPU ranks, 0 epochs recorded): running: no result yet" in text
        assert "GPU" not in text
    assert "(report.png)" in markdown


def test_a_second_report_replaces_the_first(study: Path, add_cell: AddCell) -> None:
    assert main(["report", str(study)]) == 0
    add_cell(16, [50, 900, 900])
    assert main(["report", str(study)]) == 0
    report = check_schema((study / "report" / "report.json").read_text())
    assert [point["n_gpus"] for point in report["groups"][0]["points"]] == [1, 2, 16]
    left = [path.name for path in (study / "report").rglob("*") if path.name.startswith(".")]
    assert left == [], "nothing written aside is left"


def test_json_on_stdout_is_nothing_else(caltech: Path, tmp_path: Path) -> None:
    done = run("report", caltech, "--json", "-", cwd=tmp_path)
    report = check_schema(done.stdout)
    assert [group["gpu_type"] for group in report["groups"]] == ["T4", "V100"]
    assert round(report["groups"][0]["points"][1]["efficiency"]["median"], 2) == 1.29
    assert list(tmp_path.iterdir()) == [caltech], "nothing is written"


def test_places_can_be_chosen(
    caltech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(caltech), "--out", "there", "--json", "numbers/lab.json"]) == 0
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        "report.html",
        "report.png",
        "report.md",
        "figures",
    }
    check_schema((tmp_path / "numbers" / "lab.json").read_text())
    assert "wrote numbers/lab.json" in capsys.readouterr().out


def test_a_file_is_reported_beside_the_user(caltech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(caltech)]) == 0
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {"report.html", "report.md", "report.json"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["runs"], "error: runs is not a study: it has no study.json; it holds the studies runs/digits\n"),
        (["bad.csv"], 'error: bad.csv, line 2: "98.5" is not a time'),
        (["caltech.csv", "--out", "taken"], "error: taken is a file, and a report goes into a folder\n"),
        (["caltech.csv", "--out", "taken/new"], "error: taken is a file, and a report goes into a folder\n"),
        (["caltech.csv", "--out", "new", "--json", "runs"], "error: runs is a folder, and the report would be a file"),
        (["caltech.csv", "--target", "68"], "error: target 68 is not an accuracy between 0 and 1; did you mean 0.68?"),
        (["caltech.csv", "--target", "most"], "error: --target most: 'most' is not a number"),
        (["caltech.csv", "--price", "V100"], "error: --price V100 is not TYPE=RATE; write it like --price V100=2.48"),
        (["caltech.csv", "--price", "V100=0"], "error: the price of V100, 0.0, is not above zero"),
        (["caltech.csv", "--price", "V100=inf"], "error: the price of V100, inf, is not finite; give currency units"),
        (["caltech.csv", "--deadline", "90"], 'error: "90" is not a time: the number has no unit'),
        (["caltech.csv", "--budget", "-1"], "error: budget -1.0 is not above zero"),
        (["caltech.csv", "--reference", "caltech"], 'error: no reference table "caltech"; there are caltech256_lab'),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    study: Path,
    caltech: Path,
    tmp_path: Path,
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("n_gpus,metric,value\n1,epoch_time,98.5\n")
    (tmp_path / "taken").write_text("a file")
    before = sorted(tmp_path.rglob("*"))
    assert main(["report", *arguments]) == 2
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines(keepends=True) if not line.endswith(" ...\n")]
    assert len(errors) == 1
    assert errors[0].startswith(expected)
    assert said.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_limits_and_prices_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    rows = [f"net,V100,{n},1,{100 / n + 1},{3000 / n + 60},{3e6 * (1 + n / 20)}" for n in (1, 2, 4)]
    table.write_text("model,GPU,GPUs,nodes,epoch time [s],total [s],epochs,energy\n" + "".join(
        f"{','.join(row.split(',')[:6])},30,{row.split(',')[6]}\n" for row in rows))  # fmt: skip
    monkeypatch.chdir(tmp_path)
    arguments = ["--deadline", "20 min", "--price", "V100=3", "--out", "out"]
    assert main(["report", "t.csv", *arguments]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Within a deadline of 20 min 00 s the cheapest is 4 x V100" in printed
    assert "a cost of" in printed
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "energy (kWh)" in markdown
    (answer,) = json.loads((tmp_path / "out" / "report.json").read_text())["recommendations"]
    assert answer["within_limits"]["name"] == "4 x V100"
    assert answer["ways"][0]["energy"] == pytest.approx(3e6 * 1.2)
    assert answer["ways"][0]["cost"] == pytest.approx(answer["ways"][0]["gpu_hours"] * 3)


def test_the_guide_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "read-a-report.md").read_text(encoding="utf-8")
    blocks = guide.split("```\n")[1::2]
    (table,) = [block for block in blocks if block.startswith("workload,")]
    (shown,) = [block for block in blocks if block.startswith("caltech256 on")]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caltech.csv").write_text(table, encoding="utf-8")
    assert main(["report", "caltech.csv"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in printed] == shown.splitlines(), "renew the block in the guide"


def test_a_mistake_ends_the_process_with_2(tmp_path: Path) -> None:
    done = run("report", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere does not exist")
    assert len(done.stderr.splitlines()) == 1


def test_help_is_there_at_once(tmp_path: Path) -> None:
    started = time.perf_counter()
    done = run("report", "--help", cwd=tmp_path)
    taken = time.perf_counter() - started
    assert done.returncode == 0
    assert "STUDY|FILE.csv" in done.stdout
    assert taken < 2, "half a second on an idle machine; pandas and matplotlib alone take longer than that"
    probe = (
        "import sys, analysis, analysis.__main__; sys.exit(bool({'pandas', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, check=False).returncode == 0
