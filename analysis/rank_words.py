"""Numbers of ranks in names that people give to runs: `resnet-4gpu`, `log_n8.csv`."""

from __future__ import annotations

import re
from pathlib import PurePath

#: A number apart from its word ("4-gpu") only at the beginning or before the plural: a model's number and a date end there too
#: ("resnet-50-gpu").
_RANKS = re.compile(
    r"(?:^|[^a-z0-9])(?:n(\d+)|np(\d+)|(\d+)\s*x?(?:gpus?|ranks?|workers?)|(\d+)[-_ ](?:gpus|ranks|workers))(?:[^a-z0-9]|$)"
    r"|^(\d+)[-_ ](?:gpu|rank|worker)(?:[^a-z0-9]|$)",
    re.IGNORECASE,
)
#: What says nothing of what is trained, with a number of its own or without.
_ANY_RUN = re.compile(
    r"(runs?|logs?|exp(eriment)?s?|trials?|seeds?|jobs?|train(ing)?|metrics|version|rep(licate)?s?|test|results?|[rsv])?[-_ .]?\d*",
    re.IGNORECASE,
)
_SEPARATORS = "-_ ."


def ranks_in(path: PurePath) -> int:
    """The number of ranks that the last three parts of a path name, the nearest first; 0 where none does."""
    return next((ranks for part in reversed(path.parts[-3:]) if (ranks := _ranks(part)[0])), 0)


def workload_in(path: PurePath) -> str | None:
    """What stands before the ranks in the part of a path that names them: "resnet" of `resnet-4gpu/metrics.csv`."""
    for part in reversed(path.parts[-3:]):
        ranks, begin, _ = _ranks(part)
        if ranks:
            before = part[:begin].strip(_SEPARATORS)
            return None if _ANY_RUN.fullmatch(before) else before
    return None


def without_ranks(name: str, ranks: int) -> str:
    """The name of a job without its number of ranks, where it says that."""
    said, begin, end = _ranks(name)
    if said != ranks or not ranks:
        return name
    before, after = name[:begin].strip(_SEPARATORS), name[end:].strip(_SEPARATORS)
    return "-".join(filter(None, (before, after)))


def _ranks(text: str) -> tuple[int, int, int]:
    """The number, and from where to where it stands with its word; zeros where there is none."""
    found = _RANKS.search(text)
    if found is None:
        return 0, 0, 0
    return int(next(group for group in found.groups() if group)), found.start(), found.end()
