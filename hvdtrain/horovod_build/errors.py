"""The two ways a build can be refused or fail, each with its exit status."""

from __future__ import annotations


class RequestError(Exception):
    """What was asked for cannot be done here: exit status 2. The message says what to type instead."""


class BuildError(Exception):
    """The build was tried and failed: exit status 1. The message says why, as far as that is known."""
