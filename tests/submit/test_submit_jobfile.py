"""Options of a job, read from its text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hvdtrain.errors import UserError
from hvdtrain.job import STANDARD_OPTIONS, positive_int
from hvdtrain.paths import job_names, shipped
from hvdtrain.submit import jobfile


def options(text: str) -> dict[str, jobfile.JobOption]:
    return jobfile.find_options(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "from hvdtrain import job\njob.parser(__doc__, epochs=7, batch_size=16, lr=0.5, lr_rule='sqrt')",
        "import hvdtrain.job\nhvdtrain.job.parser(__doc__, epochs=7, batch_size=16, lr=0.5, lr_rule='sqrt')",
        "from hvdtrain import job as j\nj.parser(__doc__, epochs=7, batch_size=16, lr=0.5, lr_rule='sqrt')",
        "from hvdtrain.job import parser\nparser(__doc__, epochs=7, batch_size=16, lr=0.5, lr_rule='sqrt')",
    ],
)
def test_standard_options_and_their_defaults(text: str) -> None:
    found = options(text)
    assert set(found) == set(STANDARD_OPTIONS)
    defaults = {name: option.default for name, option in found.items()}
    assert defaults == {
        "--epochs": 7, "--batch-size": 16, "--lr": 0.5, "--lr-rule": "sqrt", "--warmup-epochs": 0.0, "--seed": 0,
    }  # fmt: skip
    assert set(found["--lr-rule"].choices or ()) == {"adascale", "auto", "linear", "none", "sqrt"}


def test_somebody_elses_parser_is_not_ours() -> None:
    assert options("import job\njob.parser(None, epochs=1, batch_size=1, lr=1)") == {}


def test_a_default_that_is_computed_is_unknown() -> None:
    found = options("from hvdtrain import job\njob.parser(None, epochs=N, batch_size=16, lr=0.5)")
    assert found["--epochs"].default is None
    assert found["--batch-size"].default == 16


def test_set_defaults_is_seen() -> None:
    text = "from hvdtrain import job\np = job.parser(None, epochs=1, batch_size=16, lr=0.5)\n"
    assert options(text + "p.set_defaults(batch_size=64)")["--batch-size"].default == 64
    assert options(text + "p.set_defaults(batch_size=f())")["--batch-size"].default is None


def test_added_options() -> None:
    found = options(
        "p.add_argument('-w', '--width', '--breadth', type=int, default=3)\n"
        "p.add_argument('--model', choices=('a', 'b'))\n"
        "p.add_argument('--fast', action='store_true')\n"
        "p.add_argument('--augment', action=argparse.BooleanOptionalAction)\n"
        "p.add_argument('place')\n"
        "p.add_argument(name)\n"
    )
    assert set(found) == {"--width", "--breadth", "--model", "--fast", "--augment"}
    assert (found["--width"].default, found["--width"].convert) == (3, int)
    assert found["--model"].choices == ("a", "b")
    assert found["--fast"].switch
    assert found["--augment"].switch
    assert not found["--model"].switch


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("--model", "c", "legal is small, large"),
        ("--model", "lagre", 'did you mean "large"?'),
        ("--width", "1.5", "takes a whole number"),
        ("--fast", "yes", "is a switch without a value; give it as -- --fast"),
        ("--modle", "small", 'takes no --modle (--set x); did you mean "--model"?'),
        ("--lr", "-1", "-1 is not a positive number"),
        ("--lr", "fast", "fast is not a positive number"),
    ],
)
def test_values_that_a_job_would_refuse(room: Path, name: str, value: str, said: str) -> None:
    job = jobfile.read(room / "toy.py")
    with pytest.raises(UserError) as caught:
        job.check(name, value, "--set x")
    assert said in str(caught.value)


def test_a_job_is_not_run_to_be_read(tmp_path: Path) -> None:
    job = tmp_path / "trap.py"
    job.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nparser.add_argument('--x')\n")
    assert set(jobfile.read(job).options) == {"--x"}
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("beginning", "kind"),
    [
        ("from hvdtrain import job", "job.positive_int"),
        ("from hvdtrain import job as j", "j.positive_int"),
        ("from hvdtrain.job import positive_int", "positive_int"),
        ("import hvdtrain.job", "hvdtrain.job.positive_int"),
    ],
)
def test_types_of_hvdtrain_are_known(beginning: str, kind: str) -> None:
    assert options(f"{beginning}\np.add_argument('--width', type={kind})")["--width"].convert is positive_int
    # Somebody else's of that name says nothing.
    assert options(f"import job, j\np.add_argument('--width', type={kind})")["--width"].convert is None


@pytest.mark.parametrize(
    ("job", "given", "said"),
    [
        ("mnist_cnn", "--accumulate 0", "0 is not a positive whole number"),
        ("mnist_cnn", "--accumulate -2", "-2 is not a positive whole number"),
        ("mnist_cnn", "--dropout 1.5", "1.5 is not a number from 0 to less than 1"),
        ("mnist_mlp", "--workers -1", "-1 is not a whole number from 0 on"),
        ("mnist_mlp", "--test-images 0", "0 is not a positive whole number"),
        ("mnist_mlp", "--train-images 0", "0 is not a positive whole number"),
        ("mnist_mlp", "--hidden 0", "0 is not a positive whole number"),
        ("fruit", "--image-size 0", "0 is not a positive whole number"),
        ("caltech256", "--max-bad -1", "-1 is not a whole number from 0 on"),
    ],
)
def test_numbers_that_a_job_of_the_project_would_refuse(job: str, given: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        jobfile.read(shipped("jobs") / f"{job}.py").check(*given.split(), "--set x")
    assert str(caught.value) == f"--set x: {said}"


@pytest.mark.parametrize("content", [b"def f(:\n", b"\x00", b"\xff\xfe"])
def test_what_is_not_python(tmp_path: Path, content: bytes) -> None:
    job = tmp_path / "broken.py"
    job.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.py"):
        jobfile.read(job)


@pytest.mark.parametrize("name", job_names())
def test_every_job_of_the_project_takes_the_axes(name: str) -> None:
    job = jobfile.read(shipped("jobs") / f"{name}.py")
    assert {"--epochs", "--batch-size", "--lr-rule", "--seed"} <= set(job.options)
    assert job.default("--batch-size")
