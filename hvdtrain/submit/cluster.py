"""The cluster that a request goes to: its profile, from the command line down to what is detected, and its nodes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.site import commands, detect, files
from hvdtrain.site.commands import SlurmError
from hvdtrain.site.detect import Facts
from hvdtrain.site.files import Layer, Profile
from hvdtrain.site.times import minutes
from hvdtrain.submit import values
from hvdtrain.submit.nodes import with_hidden

#: Options of the command line that go before the profile's keys of the same names.
OPTIONS = ("partition", "account", "qos", "time", "mem")


def read(given: argparse.Namespace) -> tuple[Profile, Facts | None]:
    """The complete profile for a command line, and what SLURM says of its nodes; None where it does not answer.

    Raises:
        UserError: an option or a profile is wrong.
    """
    if commands.present():
        commands.cluster()  # whether one is chosen, not several
    try:
        facts = detect.look() if commands.present() else None
    except SlurmError:
        facts = None  # --dry-run needs no cluster; `look` says what is wrong
    for name in (*OPTIONS, "container"):
        if getattr(given, name) == "":
            raise UserError(f'--{name} "": give a value, or leave the option out')
    detected = [] if facts is None else [Layer(files.DETECTED, detect.profile(facts))]
    typed: dict[str, Any] = {name: getattr(given, name) for name in OPTIONS if getattr(given, name) is not None}
    if given.time is not None:
        try:
            minutes(given.time)
        except ValueError as error:
            raise UserError(f"--time {error}") from error
    if given.cpus_per_task is not None:
        typed["cpus_per_task"] = values.count("--cpus-per-task", given.cpus_per_task)
    if given.container is not None:
        typed["container"] = {"image": given.container}
    parts = [*detected, *files.layers(Path.cwd(), given.site), Layer(files.COMMAND_LINE, typed)]
    profile = files.combine(parts, facts.groups if facts is not None else ())
    if facts is not None:
        shown, facts = facts.groups, with_hidden(profile, facts)
        types = detect.hidden_types(shown, facts.groups)
        profile = files.combine([Layer(files.DETECTED, {"gpus": types}), *parts], shown) if types else profile
    site = profile.site
    if given.container is not None and site.container.kind == "none":
        kind = "apptainer"
        site = site.model_copy(update={"container": site.container.model_copy(update={"kind": kind})})
    return replace(profile, site=site), facts
