"""The command line: `python -m analysis report STUDY|FILE.csv... [--out DIR] [--json FILE|-]`."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hvdtrain.errors import UserError

_PATIENCE_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 2 the request was wrong (said on stderr)."""
    options = _parser().parse_args(arguments)
    try:
        return _report(options.inputs, options.out, options.json)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Says how training scales.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="scaling table, figure and JSON of studies and CSV files",
        description="Prints the scaling tables and writes report.png, report.md and report.json.",
        allow_abbrev=False,
    )
    report.add_argument("inputs", nargs="+", type=Path, metavar="STUDY|FILE.csv", help="study folders and tables")
    report.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: STUDY/report, else ./report)")
    report.add_argument(
        "--json",
        metavar="FILE|-",
        help="where the JSON goes instead (default: report.json in DIR); "
        "- prints it, and nothing else, on stdout, and writes the rest only if --out is given",
    )
    return parser


def _report(inputs: Sequence[Path], out: Path | None, json_to: str | None) -> int:
    with _patience("loading pandas and matplotlib"):
        # Only now: pandas and matplotlib take seconds on a cold disk, and --help must not.
        from rich.console import Console

        from analysis.assemble import assemble
        from analysis.report import JSON, check_places, files, json_text, write
        from analysis.tables import is_study, read_inputs
        from analysis.text import show

    with _patience(f"reading {', '.join(str(path) for path in inputs)}"):
        report = assemble(read_inputs(inputs))

    printed = json_to == "-"
    contents: dict[Path, bytes] = {}
    if out is not None or not printed:
        folder = out or (inputs[0] / "report" if is_study(inputs[0]) else Path("report"))
        json_file = None if printed else Path(json_to) if json_to else folder / JSON
        check_places(folder, json_file)
        with _patience("drawing the figure"):
            contents = files(report, folder, json_file)
        write(contents)
    if printed:
        sys.stdout.write(json_text(report))
    else:
        # Without a terminal rich assumes 80 columns and would fold every cell of the table.
        show(report, Console() if sys.stdout.isatty() else Console(width=120))
    for path in contents:
        print(f"wrote {path}", file=sys.stderr if printed else sys.stdout)
    return 0


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
