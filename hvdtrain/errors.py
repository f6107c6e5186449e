"""What a user sees instead of a traceback."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

#: Control characters besides tab and line ends, and half characters: neither XML nor UTF-8 has them.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


class UserError(Exception):
    """A mistake of the person at the keyboard: the message says what was given, what is legal, what to type.

    `agreed`: every rank of the world raises it with the same words, so one of them says it for all.
    """

    agreed = False


SomeUserError = TypeVar("SomeUserError", bound=UserError)


def agreed(error: SomeUserError) -> SomeUserError:
    """`error`, which all ranks raise in the same words."""
    error.agreed = True
    return error


class Diverged(UserError):
    """The loss is no longer a number.

    `agreed` only where it was found in a value that all ranks share: a loss of the user's own may raise it on one rank.
    """


def printable(text: str) -> str:
    """`text` for a page, a figure and a terminal: with the sign for an unknown character where it has one that none can show.

    So are the bytes of a file's name that are not UTF-8.
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def nearest(given: str, legal: Iterable[str]) -> str:
    """`'; did you mean "x"?'` for the closest legal word, or nothing when none is close."""
    close = difflib.get_close_matches(given, list(legal), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


def refuse_unknown(given: Iterable[str], legal: Sequence[str], what: str) -> None:
    """Names of keyword arguments that are none of `legal`, which are `what`.

    Raises:
        UserError: names the first one, and all legal ones.
    """
    for name in given:
        if name not in legal:
            raise UserError(f"{name}= is none of {what} ({', '.join(legal)}){nearest(name, legal)}")


def without_traceback(previous: Callable[..., Any]) -> Callable[..., None]:
    """For `sys.excepthook`: a UserError that nobody caught is printed as a message, anything else as `previous` does."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    return show


#: What a file system answers to a program without fault: not permitted, read-only, full.
_FILE_SYSTEM = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def run_cli(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """The exit status of `main(argv)` (None: of the process's own arguments), a UserError being printed as status 2."""
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `| head` has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _FILE_SYSTEM:
            raise
        print(f"error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 1
