"""`hvdtrain new NAME`: a job of one's own to begin with, which runs at once."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.paths import job_names, same

FRAMEWORKS = ("torch", "keras")


def write(name: str, framework: str, folder: Path) -> Path:
    """Write the job `name` to `folder`; nothing is overwritten.

    Raises:
        UserError: a name that is none, or that a job of the suite or a module has, or a file that is there.
    """
    stem = name.removesuffix(".py")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", stem):
        raise UserError(f'"{name}" is no name for a job: letters, digits, _ and -, not a digit first')
    if stem in job_names():
        raise UserError(f'"{stem}" is a job of hvdtrain already ({", ".join(job_names())}); take another name')
    if _importable(stem, folder):
        raise UserError(f'"{stem}" is a module that a job, or what it imports, may need; take another name')
    path = folder / f"{stem}.py"
    text = Path(__file__).with_name("templates").joinpath(f"{framework}_job.py").read_text(encoding="utf-8")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text.replace("NAME", stem))
    except FileExistsError:
        raise UserError(f"{path} exists already; nothing was written") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _importable(name: str, folder: Path) -> bool:
    """Whether Python finds a module elsewhere than in `folder`: a job's own folder is searched first, so it would be hidden."""
    if name in sys.stdlib_module_names or name in sys.modules:
        return True
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    if spec.origin:
        return not same(Path(spec.origin).parent, folder)
    # A folder without Python in it, of images say, is no module that anybody needs.
    places = map(Path, spec.submodule_search_locations or ())
    return any(not same(place.parent, folder) and any(place.glob("*.py")) for place in places)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="hvdtrain new", description="Write a commented job that runs at once, to begin with."
    )
    parser.add_argument("name", metavar="NAME", help="of the job: NAME.py is written here")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch", help="default: torch")
    options = parser.parse_args(argv)
    path = write(options.name, options.framework, Path())
    print(f"wrote {path}\nnext: python -m hvdtrain.submit --job {path} --gpus 1,2 --wait")
    return 0
