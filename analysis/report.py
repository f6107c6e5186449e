"""Writing a report: all of it is made first, then each file appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from analysis.as_json import as_json
from analysis.assemble import NAME_RANKS, Report
from hvdtrain.errors import UserError

PAGE, FIGURE, MARKDOWN, JSON = "report.html", "report.png", "report.md", "report.json"
#: Folder of the single figures, beside the page.
FIGURES = "figures"
#: What this program calls the files of figures.
FIGURE_FILES = re.compile(
    r"(\d+-)?(time|throughput|efficiency|karp_flatt|phases|accuracy_(epoch|time|gpu_hours)|epochs|pareto)(-\d+)?\.(svg|png)"
)
#: Workloads beyond these have their tables, and no figures of their own.
_MOST_DRAWN = 4


def json_text(report: Report, plain: bool = False) -> str:
    """report.json as text; `plain` in ASCII alone."""
    return json.dumps(as_json(report), indent=1, allow_nan=False, ensure_ascii=plain) + "\n"


def files(report: Report, out: Path, json_file: Path | None) -> dict[Path, bytes]:
    """Everything a report consists of, as path -> contents, nothing written yet.

    Args:
        report: what to write.
        out: the folder of the page, the figures and the Markdown.
        json_file: where the JSON goes; None leaves it out.

    Raises:
        UserError: nothing was measured on a known number of ranks, so that there is nothing to draw; or the JSON would
            take the place of another file of the report.
    """
    if not report.parts:
        raise UserError(_nothing(report))
    from analysis import figure
    from analysis.html import page
    from analysis.plots.gallery import gallery
    from analysis.plots.style import DPI
    from analysis.raster import png
    from analysis.text import markdown

    with ThreadPoolExecutor(1) as encoder:
        plots = {workload: [(plot, plot.svg()) for plot in gallery(report, workload)] for workload in _drawn(report)}
        note = reference_note(report)
        contents = {out / PAGE: page(report, plots, note).encode()}
        encoded = {out / FIGURE: encoder.submit(png, figure.pixels(report), figure.DPI, report.caption)}
        listed = []
        for place, drawn in enumerate(plots.values(), start=1):
            for plot, svg in drawn:
                name = f"{FIGURES}/{f'{place}-' if len(plots) > 1 else ''}{plot.name}"
                contents[out / f"{name}.svg"] = svg
                encoded[out / f"{name}.png"] = encoder.submit(png, plot.pixels(), DPI, plot.alt)
                listed.append((plot.alt, f"{name}.png"))
    contents |= {path: future.result() for path, future in encoded.items()}
    contents[out / MARKDOWN] = markdown(report, FIGURE, listed, note).encode()
    if json_file is not None:
        for path in contents:
            if json_file.resolve() in (path.resolve(), *path.resolve().parents):
                raise UserError(
                    f"--json {json_file} is the place of {path}, a file of the report; give the JSON another name"
                )
        contents[json_file] = json_text(report).encode()
    return contents


def _drawn(report: Report) -> list[str | None]:
    """The workloads that have figures."""
    return list(dict.fromkeys(part.group.workload for part in report.parts))[:_MOST_DRAWN]


def reference_note(report: Report) -> str:
    """That a published table was asked for and is in no figure, and why; "" where it is, or none was asked for."""
    if report.reference is None:
        return ""
    from analysis.fitting import fit_scaling
    from analysis.plots.gallery import laid_under

    if any(laid_under(report, workload) for workload in _drawn(report)):
        return ""
    its = ", ".join(dict.fromkeys(fit.data.metric for fit in fit_scaling(report.reference).groups)) or "no speed"
    own = ", ".join(dict.fromkeys(fit.data.metric for fit in report.insights.fits.values())) or "no speed"
    return f"Nothing of the published table could be laid under the figures: it has {its}, and they show {own}."


def _nothing(report: Report) -> str:
    """Why there is no table, and what would make one."""
    inputs = ", ".join(report.inputs)
    if any(run.n_gpus for run in report.runs):
        return f"{inputs}: no accuracy at the end of a run is finite, and no time was recorded, so there is nothing to report"
    return (
        f"{inputs}: nothing says on how many ranks this was measured; {NAME_RANKS}. "
        "Curves by themselves: analysis.epochs_to_stability"
    )


def check_places(out: Path, json_file: Path | None) -> None:
    """Find out before the work is done whether its results have somewhere to go.

    Raises:
        UserError: a folder to write to is a file, or a file to write is a folder.
    """
    for folder in (out, out / FIGURES, *([] if json_file is None else [json_file.parent])):
        for part in (folder, *folder.parents):
            if part.exists() and not part.is_dir():
                raise UserError(f"{part} is a file, and a report goes into a folder")
    _check_targets((out / PAGE, out / FIGURE, out / MARKDOWN, *([] if json_file is None else [json_file])))


def _check_targets(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            raise UserError(f"{path} is a folder, and the report would be a file of that name")


def write(contents: Mapping[Path, bytes], out: Path) -> None:
    """Write each file aside first and rename all of them only when all are on disk.

    Figures that the report before in `out` shows and this one does not are removed: they would be taken for this one's.

    Raises:
        UserError: a folder or file cannot be written; nothing of this report is left behind then.
    """
    _check_targets(contents)
    aside = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    folders = dict.fromkeys(folder for path in contents for folder in reversed(path.parents))
    new = [folder for folder in folders if not folder.exists()]
    path, done, before = out, False, _shown(out)
    try:
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside[path].write_bytes(data)
        for path in contents:
            os.replace(aside[path], path)
        done = True
    except OSError as error:
        # A full disk has no name of a file in it, and that of the file aside says nothing to its reader.
        raise UserError(f"{path} cannot be written ({error.strerror}); give another --out") from error
    finally:
        # What went wrong is said above: that a file aside is not there, or cannot go, is no news.
        for path in aside.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in () if done else reversed(new):
            with contextlib.suppress(OSError):
                folder.rmdir()
    for path in before - contents.keys():
        path.unlink(missing_ok=True)


def _shown(out: Path) -> set[Path]:
    """Figures of the report in `out`. Others that lie beside them are the user's own, whatever they are called."""
    try:
        text = (out / MARKDOWN).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    stems = {Path(name).stem for name in re.findall(rf"\]\({FIGURES}/([^/)]+)\)", text)}
    files = (out / FIGURES / f"{stem}{suffix}" for stem in stems for suffix in (".png", ".svg"))
    return {path for path in files if FIGURE_FILES.fullmatch(path.name) and path.is_file()}
