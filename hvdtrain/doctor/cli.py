"""`hvdtrain doctor`: every check, as text for people or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError, run_cli

PARTS = ("installation", "node", "site")
_MARKS = {"ok": "ok     ", "warning": "WARNING", "failed": "FAILED ", "skipped": "-      "}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns 0 when nothing failed, 1 when something did, 2 for a wrong request."""
    return run_cli(_main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hvdtrain doctor",
        description="What is wrong with this installation, node and site, why it matters, and what to type.",
        epilog="Exit status: 0 nothing failed, 1 a check failed, 2 the request was wrong.",
    )
    parser.add_argument("--json", action="store_true", help="as a JSON list on standard output")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where studies are kept (default: runs)")
    parser.add_argument("--on-nodes", type=int, metavar="N", help="check N compute nodes too, as a SLURM job")
    parser.add_argument(
        "--srun",
        action="append",
        default=[],
        metavar="OPTION",
        help="for that job, which takes nothing from the site profile: --srun=--partition=gpu --srun=--gpus-per-node=1",
    )
    parser.add_argument("--report-to", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.on_nodes is not None and given.on_nodes < 1:
        raise UserError(f"--on-nodes {given.on_nodes}: legal is a number of nodes from 1, such as 2")
    if given.report_to:
        from hvdtrain.doctor import on_nodes

        on_nodes.report(given.report_to, lambda: examine(("installation", "node"), given.out))
        return 0
    outcomes = examine(PARTS, given.out)
    if given.on_nodes:
        from hvdtrain.doctor import on_nodes

        outcomes += on_nodes.ask(given.on_nodes, given.out, given.srun)
    if given.json:
        print(json.dumps(outcomes, indent=1))
    else:
        _print(outcomes)
    return 1 if any(outcome["status"] == "failed" for outcome in outcomes) else 0


def examine(parts: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """The outcomes of all checks of these parts."""
    from hvdtrain.doctor import check, container, installation, node, slurm
    from hvdtrain.doctor import folder as records

    assert installation and node and container and records and slurm  # importing them registers their checks
    context = check.Context(folder)
    chosen = [each for part in parts for each in check.REGISTRY.checks if each.part == part]
    return [check.examine(each, context) for each in chosen]


def _print(outcomes: Sequence[dict[str, Any]]) -> None:
    part = None
    for outcome in outcomes:
        heading = outcome.get("node") or outcome["part"]
        if heading != part:
            print(f"{'' if part is None else chr(10)}{heading}")
            part = heading
        print(f"  {_MARKS[outcome['status']]} {outcome['name']:<18} {outcome['what']}")
        if outcome["why"]:
            print(f"{'':10}why it matters: {outcome['why']}")
            print(f"{'':10}what to type:   {outcome['fix']}")
    count = {status: sum(outcome["status"] == status for outcome in outcomes) for status in _MARKS}
    print(f"\n{len(outcomes)} checks: {', '.join(f'{number} {status}' for status, number in count.items() if number)}")
    sys.stdout.flush()
