"""Where a report is written to: the whole of it, or nothing with one line that says why."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.assemble import assemble
from analysis.tables import read_inputs
from analysis.text import markdown
from hvdtrain.errors import UserError
from tests.analysis.conftest import AddCell


def table(path: Path, workloads: tuple[str, ...] = ("digits",)) -> Path:
    lines = [f"{name},A100,{n},throughput,{100 * n / (1 + 0.02 * n)}\n" for name in workloads for n in (1, 2, 4)]
    path.write_text("workload,gpu_type,n_gpus,metric,value\n" + "".join(lines))
    return path


def held(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with what it holds."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


def figures_are_a_file(out: Path) -> list[str]:
    out.mkdir()
    (out / "figures").write_text("mine")
    return [str(out / "figures"), "is a file, and a report goes into a folder"]


def a_figure_is_a_folder(out: Path) -> list[str]:
    (out / "figures" / "throughput.svg").mkdir(parents=True)
    (out / "report.html").write_text("the one before")
    return [str(out / "figures" / "throughput.svg"), "is a folder, and the report would be a file of that name"]


@pytest.mark.parametrize("occupied", [figures_are_a_file, a_figure_is_a_folder])
def test_a_place_that_is_taken_is_said_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], occupied: Callable[[Path], list[str]]
) -> None:
    own, out = table(tmp_path / "own.csv"), tmp_path / "out"
    expected = occupied(out)
    before = held(tmp_path)
    assert main(["report", str(own), "--out", str(out)]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(" ...")]
    assert said == f"error: {' '.join(expected)}"
    assert held(tmp_path) == before


@pytest.mark.parametrize("name", ["report.html", "figures/throughput.png", "figures", "../out/report.md"])
def test_the_json_replaces_no_other_file_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    own, out = table(tmp_path / "own.csv"), tmp_path / "out"
    assert main(["report", str(own), "--out", str(out), "--json", str(out / name)]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(" ...")]
    assert said.startswith(f"error: --json {out / name} is the place of {out}")
    assert said.endswith("give the JSON another name")
    assert held(tmp_path).keys() == {"own.csv"}


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    own, out = table(tmp_path / "own.csv"), tmp_path / "new" / "out"

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    # Loading a module may write its compiled form, which the limit would cut too.
    command = [sys.executable, "-B", "-m", "analysis", "report", str(own), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=full, check=False)
    (said,) = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]
    assert (done.returncode, done.stdout) == (2, "")
    assert said == f"error: {out / 'report.html'} cannot be written (File too large); give another --out"
    assert held(tmp_path).keys() == {"own.csv"}


def test_a_name_that_is_not_utf_8_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = table(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv")))
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/out\xe9"))
    assert main(["report", str(own), "--out", str(out)]) == 0
    assert "caf\ufffd.csv</code>" in (out / "report.html").read_text()
    assert "caf\ufffd.csv" in (out / "report.json").read_text()
    assert "out\ufffd/report.html" in capsys.readouterr().out


@pytest.mark.parametrize("workloads", [("resnet", "net_two"), ("resnet",)])
def test_the_markdown_says_whose_answer_it_is(tmp_path: Path, workloads: tuple[str, ...]) -> None:
    text = markdown(assemble(read_inputs([table(tmp_path / "own.csv", workloads)])), "report.png")
    answers = text.split("## What stands out")[0].split("![")[0]
    headings = [line for line in answers.splitlines() if line.startswith("**")]
    assert headings == (["**resnet**", "**net\\_two**"] if len(workloads) > 1 else [])
    assert answers.count("Fastest ") == len(workloads)


def test_figures_of_the_report_before_do_not_stay(tmp_path: Path) -> None:
    from analysis.report import FIGURE_FILES

    out = tmp_path / "out"
    assert main(["report", str(table(tmp_path / "own.csv", ("a", "b"))), "--out", str(out)]) == 0
    first = {path.name for path in (out / "figures").iterdir()}
    assert "1-throughput.svg" in first
    assert all(FIGURE_FILES.fullmatch(name) for name in first)
    # The second has a name of ours, but is of no report.
    for name in ("my-own.png", "phases.png"):
        (out / "figures" / name).write_text("mine")
    assert main(["report", str(table(tmp_path / "own.csv")), "--out", str(out)]) == 0
    names = {path.name for path in (out / "figures").iterdir()}
    assert not names & first
    assert {"throughput.svg", "throughput.png", "my-own.png", "phases.png"} <= names


def test_a_terminal_without_a_names_letters_shows_escapes(tmp_path: Path) -> None:
    own = table(tmp_path / "own.csv", ("日本é",))
    command = [sys.executable, "-m", "analysis", "report", own.name]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for more in ((), ("--json", "-")):
        done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, env=env, timeout=60, check=False)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert "日本é" in {group["workload"] for group in json.loads(done.stdout)["groups"]}


def test_large_numbers_have_no_exponents(tmp_path: Path) -> None:
    lines = [
        f"net,A100,{n},4096,60,{metric},{value}"
        for n in (64, 128, 256)
        for metric, value in (
            ("epoch_time", f"{40000 * 64 / n} s"),
            ("epochs_to_stability", 20 + n / 16),
            ("val_acc", 0.8),
        )
    ]
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["workload,gpu_type,n_gpus,per_gpu_batch,epochs,metric,value", *lines]) + "\n")
    assert main(["report", str(own), "--out", str(tmp_path / "out"), "--budget", "5000000"]) == 0
    said = (tmp_path / "out/report.md").read_text()
    assert "2,097,152" in said and "a budget of 5,000,000 GPU-hours" in said
    assert not re.findall(r"\de\+\d|-0 ?%", said)


def test_a_cell_with_files_of_tensorboard_is_a_cell(add_cell: AddCell, tmp_path: Path) -> None:
    study = add_cell(2)
    (cell,) = study.glob("digits-*")
    (cell / "events.out.tfevents.1.h").write_bytes(b"")
    for path, said in ((cell, "is one cell; give its study"), (study.parent, "it holds the studies")):
        with pytest.raises(UserError, match=said):
            read_inputs([path])


@pytest.mark.parametrize("kind", ["hardware", "device"])
def test_no_word_of_gpus_where_cpus_were_measured(tmp_path: Path, kind: str) -> None:
    own = tmp_path / "own.csv"
    lines = [
        f"cnn,CPU,{n},{metric},{value}"
        for n in (1, 2, 4)
        for metric, value in (("epoch_time", f"{60 / n} s"), ("val_acc", 0.7))
    ]
    own.write_text("\n".join([f"workload,{kind},ranks,metric,value", *lines]) + "\n")
    assert main(["report", str(own), "--out", str(tmp_path / "out"), "--target", "0.9"]) == 0
    assert not re.findall(r".*GPU.*", (tmp_path / "out/report.md").read_text())
