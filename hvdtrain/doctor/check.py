"""One check: what was found, and for what is wrong, why it matters and what to type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check. `why` and `fix` are empty where nothing is wrong."""

    status: Status
    what: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Context:
    """What checks look at: the folder where studies are kept."""

    folder: Path


@dataclass(frozen=True)
class Check:
    """A named check of one part: `installation`, `node` or `site`."""

    name: str
    part: str
    run: Callable[[Context], Finding]


@dataclass
class Registry:
    """Checks in the order in which they are printed."""

    checks: list[Check] = field(default_factory=list)

    def add(self, part: str, name: str) -> Callable[[Callable[[Context], Finding]], Callable[[Context], Finding]]:
        """A decorator that adds a function as a check."""

        def register(function: Callable[[Context], Finding]) -> Callable[[Context], Finding]:
            self.checks.append(Check(name, part, function))
            return function

        return register


REGISTRY = Registry()


def ok(what: str) -> Finding:
    """Nothing is wrong."""
    return Finding("ok", what)


def skipped(what: str) -> Finding:
    """There is nothing to look at; says why."""
    return Finding("skipped", what)


def failed(what: str, why: str, fix: str) -> Finding:
    """Training will fail, or be wrong."""
    return Finding("failed", what, why, fix)


def warning(what: str, why: str, fix: str) -> Finding:
    """Training may be slow, or fail later."""
    return Finding("warning", what, why, fix)


def examine(check: Check, context: Context) -> dict[str, Any]:
    """The outcome as plain values. A check that itself breaks has found something too."""
    try:
        finding = check.run(context)
    except Exception as error:  # noqa: BLE001 - whatever a broken machine does to a check is to be told, with the others
        finding = failed(
            f"the check itself failed: {type(error).__name__}: {error}",
            "what it would have told is unknown",
            "look at the message; if it is no fault of this machine, report it with the output of hvdtrain doctor --json",
        )
    return {"name": check.name, "part": check.part, **asdict(finding)}
