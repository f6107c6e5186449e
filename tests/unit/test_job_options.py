"""Options that all jobs understand, and where jobs are."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtrain import job, lr, paths
from hvdtrain.errors import UserError


def parse(*arguments: str) -> dict[str, object]:
    parser = job.parser("a job", epochs=30, batch_size=32, lr=0.01, warmup_epochs=5)
    return vars(parser.parse_args(arguments))


def test_defaults_are_the_jobs() -> None:
    assert parse() == {
        "epochs": 30, "batch_size": 32, "lr": 0.01, "lr_rule": "auto", "warmup_epochs": 5, "seed": 0,
    }  # fmt: skip


def test_every_standard_option_is_parsed() -> None:
    values = {
        "--epochs": "2",
        "--batch-size": "8",
        "--lr": "0.5",
        "--lr-rule": "sqrt",
        "--warmup-epochs": "0.5",
        "--seed": "7",
    }
    assert set(values) == set(job.STANDARD_OPTIONS)
    assert parse(*[word for pair in values.items() for word in pair]) == {
        "epochs": 2, "batch_size": 8, "lr": 0.5, "lr_rule": "sqrt", "warmup_epochs": 0.5, "seed": 7,
    }  # fmt: skip


def test_a_strategy_is_an_option_of_jobs_that_have_several(capsys: pytest.CaptureFixture[str]) -> None:
    parser = job.parser("a job", epochs=1, batch_size=1, lr=1, strategies=("horovod", "ddp"))
    assert parser.parse_args([]).strategy == "horovod"
    assert parser.parse_args(["--strategy", "ddp"]).strategy == "ddp"
    with pytest.raises(SystemExit):
        parse("--strategy", "ddp")
    assert "unrecognized arguments: --strategy" in capsys.readouterr().err


@pytest.mark.parametrize("rule", lr.CHOICES)
def test_every_rule_is_an_option(rule: str) -> None:
    assert parse("--lr-rule", rule)["lr_rule"] == rule


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--epochs", "0", "0 is not a positive whole number"),
        ("--epochs", "1.5", "--epochs"),
        ("--batch-size", "-1", "-1 is not a positive whole number"),
        ("--lr", "0", "0 is not a positive number"),
        ("--lr", "nan", "nan is not a positive number"),
        ("--lr", "fast", "--lr"),
        ("--lr-rule", "cubic", "choose from"),
        ("--warmup-epochs", "-0.5", "-0.5 is not a number from 0 on"),
        ("--warmup-epochs", "nan", "nan is not a number from 0 on"),
        ("--epoch", "3", "unrecognized arguments: --epoch"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(f"{option}={value}" if value.startswith("-") else option, *([] if value.startswith("-") else [value]))
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_share_is_less_than_all(capsys: pytest.CaptureFixture[str]) -> None:
    parser = job.parser("a job", epochs=1, batch_size=1, lr=1)
    parser.add_argument("--dropout", type=job.share)
    assert parser.parse_args(["--dropout", "0"]).dropout == 0.0
    assert parser.parse_args(["--dropout", "0.5"]).dropout == 0.5
    for value in ("1", "1.5", "-0.1", "nan", "half"):
        with pytest.raises(SystemExit):
            parser.parse_args([f"--dropout={value}"])
        assert f"{value} is not a number from 0 to less than 1" in capsys.readouterr().err


def test_the_projects_jobs_are_found_by_name() -> None:
    assert "digits" in paths.job_names()
    for name in paths.job_names():
        assert paths.find_job(name).is_file()
        assert paths.find_job(name).name == f"{name}.py"


def test_a_job_of_ones_own_is_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / "digits.py"
    own.write_text("")
    for given in (str(own), "digits.py", "./digits.py", "~/digits.py"):
        assert paths.find_job(given) == own
    # Without .py it is a name, even when a file of that name is here.
    assert paths.find_job("digits") != own


def test_an_unknown_job_lists_the_jobs_and_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        paths.find_job("digit")
    assert f"the jobs are {', '.join(paths.job_names())}" in str(caught.value)
    assert str(caught.value).endswith('; did you mean "digits"?')


@pytest.mark.parametrize("given", ["none.py", "folder.py"])
def test_a_path_without_a_file_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UserError) as caught:
        paths.find_job(given)
    assert f'"{given}"' in str(caught.value) and str(tmp_path) in str(caught.value)
