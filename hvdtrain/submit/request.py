"""What the user asks for, complete and checked as far as that can be done without looking at the machine."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain import paths
from hvdtrain.errors import UserError, nearest
from hvdtrain.submit import jobfile, options, values
from hvdtrain.submit.grid import Common, Grid

SETTINGS_FILE = "hvdtrain.toml"
_SETTINGS = ("job", "gpus")


@dataclass(frozen=True)
class Request:
    """One call of `submit`. `folder` is the study's, as the user would write it; `directory` where they typed.

    `launcher_chosen`: nobody has named a launcher, and where cells run it was chosen by what is there. `from_file`: options that
    hvdtrain.toml gave; it may say something else when the request is given again.
    """

    grid: Grid
    common: Common
    folder: Path
    directory: Path
    stall_timeout: float | None
    retry_failed: bool
    dry_run: bool
    then_report: bool
    wait: bool
    launcher_chosen: bool = False
    from_file: tuple[str, ...] = ()

    def within(self, folder: Path) -> Request:
        """The same for the study in `folder`: this one, unless that was renamed, moved or copied since."""
        if paths.same(folder, self.directory / self.folder):
            return self
        return replace(self, folder=folder, common=replace(self.common, study=folder.name))

    def cell_folder(self, name: str) -> Path:
        """The run folder of one cell."""
        return self.folder / name


def read(given: argparse.Namespace, cluster: str, directory: Path) -> Request:
    """The request in the parsed options.

    Raises:
        UserError: a value is wrong, or the job does not exist.
    """
    defaults = read_settings_file(directory / SETTINGS_FILE)
    used = {key: text for key, text in defaults.items() if getattr(given, key) is None}
    gpus = given.gpus if given.gpus is not None else defaults.get("gpus")
    if gpus is None:
        raise UserError(
            f"--gpus is missing: say how many ranks to train with, such as --gpus 2,4 "
            f"(or gpus = [2, 4] in {SETTINGS_FILE})"
        )
    job = jobfile.read(paths.find_job(given.job if given.job is not None else defaults.get("job", "digits")))
    grid = Grid(
        gpus=values.counts("--gpus", gpus),
        gpu_types=() if given.gpu_type is None else values.names("--gpu-type", given.gpu_type),
        batch_sizes=() if given.batch_size is None else values.counts("--batch-size", given.batch_size),
        lr_rules=() if given.lr_rule is None else _rules(given.lr_rule, job),
        seeds=() if given.seeds is None else values.seeds(given.seeds),
        settings=_settings(given.settings),
        epochs=None if given.epochs is None else values.count("--epochs", given.epochs),
    )
    common = Common(
        study=values.study_name(job.workload if given.study is None else given.study),
        job=job,
        launcher=values.word("--launcher", given.launcher, options.LAUNCHERS),
        cluster=cluster,
        extra_arguments=tuple(given.job_arguments),
        environment=values.environment(given.environment),
    )
    if not given.out:
        raise UserError('--out "": legal is the folder in which studies are kept, such as --out runs')
    return Request(
        grid=grid,
        common=common,
        folder=Path(given.out).expanduser() / common.study,
        directory=directory,
        stall_timeout=None if given.stall_timeout is None else values.seconds("--stall-timeout", given.stall_timeout),
        retry_failed=given.retry_failed,
        dry_run=given.dry_run,
        then_report=given.then_report,
        wait=given.wait,
        from_file=tuple(f"--{key}={text}" for key, text in used.items()),
    )


def read_settings_file(path: Path) -> dict[str, str]:
    """`job` and `gpus` from an `hvdtrain.toml`, as the command line would have them; empty without the file.

    Raises:
        UserError: the file is not TOML, or holds something else.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{path.name} cannot be read: {error.strerror}") from error
    # Its [site] table is a site profile's, read where there is a site.
    found = {key: value for key, value in _toml(path, content).items() if key != "site"}
    result = {}
    for key, value in found.items():
        if key not in _SETTINGS:
            raise UserError(
                f'{path.name}: there is no setting "{key}"; legal are {", ".join(_SETTINGS)}{nearest(key, _SETTINGS)}'
            )
        entries = value if isinstance(value, list) and key == "gpus" else [value]
        if not all(isinstance(entry, str) or (key == "gpus" and type(entry) is int) for entry in entries):
            raise UserError(f'{path.name}: legal is job = "name" and gpus = [2, 4], not {key} = {value!r}')
        result[key] = ",".join(str(entry) for entry in entries)
    return result


def _toml(path: Path, content: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise UserError(f"{path.name} is not valid TOML: {error}") from error


def _rules(text: str, job: jobfile.JobFile) -> tuple[str, ...]:
    legal = job.take("--lr-rule", f"--lr-rule {text}").choices
    # A job with its own rules that the text does not list: any word, and the job itself decides.
    return values.rules(
        text, legal if legal is not None else tuple(word.strip() for word in text.split(",") if word.strip())
    )


_AXES = {
    "epochs": "--epochs",
    "batch-size": "--batch-size",
    "lr-rule": "--lr-rule",
    "seed": "--seeds",
    "batch_size": "--batch-size",
    "lr_rule": "--lr-rule",
    "seeds": "--seeds",
    "gpus": "--gpus",
}


def _settings(given: list[str]) -> dict[str, tuple[str, ...]]:
    settings = values.settings(given)
    for key, entries in settings.items():
        if key in _AXES:
            given_value = ",".join(entries)
            comma = "," if key == "seed" and len(entries) == 1 else ""
            raise UserError(
                f"--set {key}={given_value}: {key} has an option of its own: {_AXES[key]} {given_value}{comma}"
            )
    return settings
