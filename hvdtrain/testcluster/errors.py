"""What can go wrong, each with the exit status that the command line gives it."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster could not be started or used; the message is for the person at the keyboard."""

    status = 1


class RequestError(ClusterError):
    """The request itself was wrong."""

    status = 2


class MissingToolsError(ClusterError):
    """Programs are not installed; the message lists the packages that hold them."""

    status = 3
