"""The command line: `python -m analysis report STUDY|FILE.csv... [--out DIR] [--json FILE|-] [--target ACC]`."""

from __future__ import annotations

import argparse
import gc
import io
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError, run_cli

_PATIENCE_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 1 interrupted, 2 the request was wrong (both said on stderr)."""
    return run_cli(lambda given: _report(_parser().parse_args(given)), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Says how training scales.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="what studies and tables say about scaling: a page, figures, JSON",
        description="Prints tables and conclusions, and writes report.html, report.md, report.json and figures.",
        allow_abbrev=False,
    )
    report.add_argument("inputs", nargs="+", type=Path, metavar="STUDY|FILE.csv", help="study folders, tables and logs")
    report.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: STUDY/report, else ./report)")
    report.add_argument(
        "--json",
        metavar="FILE|-",
        help="where the JSON goes instead (default: report.json in DIR); "
        "- prints it, and nothing else, on stdout, and writes the rest only if --out is given",
    )
    report.add_argument("--target", metavar="ACC", help="accuracy to reach, as 0.67 or 67%% (default: what all reach)")
    report.add_argument("--deadline", metavar="TIME", help='ask for the cheapest way in this time, as "2 h"')
    report.add_argument(
        "--budget", metavar="COST", help="ask for the fastest way at this cost (GPU-hours without --price)"
    )
    report.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="TYPE=RATE",
        help="cost of one GPU-hour of a type; may be repeated",
    )
    report.add_argument(
        "--reference", metavar="NAME", help="lay a published table under the figures, as caltech256_lab"
    )
    return parser


def _report(options: argparse.Namespace) -> int:
    # A name that the terminal's encoding does not have is shown in escapes: everything else is worth seeing.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    inputs: list[Path] = options.inputs
    out: Path | None = options.out
    json_to: str | None = options.json
    asked = _asked(options)
    with _patience("loading pandas and matplotlib"), _no_collection():
        # Only now: pandas and matplotlib take seconds on a cold disk, and --help must not.
        from rich.console import Console

        from analysis.assemble import assemble
        from analysis.insights import Asked
        from analysis.references import reference
        from analysis.report import FIGURES, JSON, check_places, files, json_text, reference_note, write
        from analysis.tables import is_study, read_inputs
        from analysis.text import show
        from hvdtrain.errors import printable

    with _patience(f"reading {', '.join(str(path) for path in inputs)}"):
        below = None if options.reference is None else reference(options.reference)
        report = assemble(read_inputs(inputs), Asked(**asked), below)

    printed = json_to == "-"
    contents: dict[Path, bytes] = {}
    if out is not None or not printed:
        folder = out or (inputs[0] / "report" if is_study(inputs[0]) else Path("report"))
        json_file = None if printed else Path(json_to) if json_to else folder / JSON
        check_places(folder, json_file)
        with _patience("drawing the figures"), _no_collection():
            _load_seaborn()
            contents = files(report, folder, json_file)
        write(contents, folder)
        if note := reference_note(report):
            print(note, file=sys.stderr)
    if printed:
        # With JSON's own escapes: what reads it knows these.
        sys.stdout.write(json_text(report, plain=not (sys.stdout.encoding or "").lower().startswith("utf")))
    else:
        # Without a terminal rich assumes 80 columns and would fold every cell of the table.
        show(report, Console() if sys.stdout.isatty() else Console(width=120))
    figures = [path for path in contents if path.parent.name == FIGURES]
    for path in contents:
        if path not in figures:
            print(f"wrote {printable(str(path))}", file=sys.stderr if printed else sys.stdout)
    if figures:
        print(
            f"wrote {len(figures)} files in {printable(str(figures[0].parent))}",
            file=sys.stderr if printed else sys.stdout,
        )
    return 0


def _load_seaborn() -> None:
    """Without the parts of SciPy of which seaborn makes density curves and dendrograms, and no report has one: 0.7 s to load.

    seaborn has a substitute for where SciPy is not installed. Only here, where nobody else uses seaborn in the same process.
    """
    left_out = {name for name in ("scipy.stats", "scipy.cluster") if name not in sys.modules}
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # importing None raises ImportError
    try:
        import seaborn  # noqa: F401
    finally:
        for name in left_out:
            del sys.modules[name]


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """Target, limits and prices as numbers.

    Raises:
        UserError: one of them is none.
    """
    from analysis.durations import parse_duration

    prices = {}
    for text in options.price:
        kind, equals, rate = text.partition("=")
        if not equals or not kind:
            raise UserError(f"--price {text} is not TYPE=RATE; write it like --price V100=2.48")
        prices[kind] = _number("--price", text, rate)
    target = None
    if options.target is not None:
        share = options.target.removesuffix("%").strip()
        target = _number("--target", options.target, share) / (100 if options.target.endswith("%") else 1)
    deadline = None if options.deadline is None else parse_duration(options.deadline)
    budget = None if options.budget is None else _number("--budget", options.budget, options.budget)
    return {"target": target, "deadline": deadline, "budget": budget, "prices": prices or None}


def _number(option: str, given: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{option} {given}: {text!r} is not a number") from None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without looking for garbage: modules and figures make hundreds of thousands of objects that stay, and a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _patience(doing: str) -> Iterator[None]:
    """Say on stderr what is going on, once it has taken two seconds."""
    timer = threading.Timer(_PATIENCE_S, lambda: print(f"{doing} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


if __name__ == "__main__":
    sys.exit(main())
