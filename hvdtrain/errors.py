"""What a user sees instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the person at the keyboard: the message says what was given, what is legal, what to type."""


def nearest(given: str, legal: Iterable[str]) -> str:
    """`'; did you mean "x"?'` for the closest legal word, or nothing when none is close."""
    close = difflib.get_close_matches(given, list(legal), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""
