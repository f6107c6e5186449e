"""What a user sees of a mistake."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from hvdtrain.errors import Diverged, UserError, agreed, nearest, run_cli


@pytest.mark.parametrize(
    ("given", "legal", "hint"),
    [
        ("lnear", ["linear", "sqrt"], '; did you mean "linear"?'),
        ("digit", ["digits", "caltech256"], '; did you mean "digits"?'),
        ("zzz", ["linear", "sqrt"], ""),
        ("x", [], ""),
    ],
)
def test_nearest(given: str, legal: list[str], hint: str) -> None:
    assert nearest(given, legal) == hint
    assert nearest(given, iter(legal)) == hint


def raising(error: BaseException) -> int:
    def main(argv: object) -> int:
        raise error

    return run_cli(main, [])


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no job"), 2, "error: no job\n"),
        (Diverged("not a number"), 2, "error: not a number\n"),
        (KeyboardInterrupt(), 1, "error: interrupted\n"),
        (OSError(errno.EROFS, "Read-only file system", "runs/a"), 2, "error: runs/a: Read-only file system\n"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, said: str
) -> None:
    assert raising(error) == status
    assert capsys.readouterr() == ("", said)


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())
    with pytest.raises(OSError, match="Bad file descriptor"):
        raising(OSError(errno.EBADF, "Bad file descriptor"))


def test_status_and_arguments_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli(len, ["a", "b"]) == 2
    monkeypatch.setattr(sys, "argv", ["program", "x", "y", "z"])
    assert run_cli(len, None) == 3
    assert run_cli(len, []) == 0


def test_only_what_all_ranks_share_is_agreed() -> None:
    assert agreed(Diverged("x")).agreed and not Diverged("x").agreed and not UserError("x").agreed


def test_a_reader_that_has_seen_enough_is_no_traceback() -> None:
    program = (
        "import sys; from hvdtrain.errors import run_cli\n"
        "sys.exit(run_cli(lambda argv: [print('x' * 100) for _ in range(10000)] and 0, []))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 1
