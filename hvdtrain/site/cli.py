"""`hvdtrain site show|detect`: the profile that submission uses here, and a new one from what the cluster says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError, run_cli


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return run_cli(_main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="hvdtrain site", description=__doc__.split(":", 1)[1].strip().capitalize())
    commands = parser.add_subparsers(dest="action", required=True, metavar="show|detect")
    show = commands.add_parser("show", help="the whole profile as it counts here, and where each value comes from")
    show.add_argument("--site", metavar="FILE", help="a profile that goes before hvdtrain.toml and the user's own")
    show.add_argument("--json", action="store_true", help="as JSON")
    find = commands.add_parser("detect", help="a profile from sinfo, scontrol and srun, to be completed by hand")
    find.add_argument("--write", metavar="FILE", nargs="?", const="", help="into FILE, else the user's own")
    find.add_argument("--force", action="store_true", help="replace the file")
    given = parser.parse_args(argv)
    return _show(given.site, given.json) if given.action == "show" else _detect(given.write, given.force)


def _show(site: str | None, as_json: bool) -> int:
    from hvdtrain.site import commands, detect, files
    from hvdtrain.site.files import Layer

    layers = files.layers(Path.cwd(), site)
    groups: Sequence[detect.Group] = ()
    try:
        facts = detect.look()
        groups = facts.groups
        layers.insert(0, Layer(files.DETECTED, detect.profile(facts)))
    except commands.SlurmError as error:
        print(f"note: no cluster answers, so nothing is detected: {str(error).splitlines()[0]}", file=sys.stderr)
    profile = files.combine(layers, groups)
    values = profile.site.model_dump(mode="json")
    if as_json:
        import json

        print(json.dumps({"site": values, "origins": dict(profile.origins)}, indent=1))
        return 0
    for key, text in _lines(values, ()):
        origin = next(
            (who for name, who in profile.origins.items() if name == key or name.startswith(f"{key}.")), "default"
        )
        print(f"{f'{key} = {text}':<48} # {origin}")
    return 0


def _lines(values: Mapping[str, Any], above: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for key, value in values.items():
        path = (*above, key)
        if isinstance(value, Mapping) and value:
            found += _lines(value, path)
        else:
            found.append((".".join(path), "(not set)" if value is None else repr(value).replace("'", '"')))
    return found


def _detect(write: str | None, force: bool) -> int:
    from hvdtrain.site import detect, files

    facts = detect.look()
    text = _HEADING.format(name=facts.settings.get("ClusterName", "this cluster")) + detect.to_toml(
        detect.profile(facts)
    )
    if write is None:
        print(text, end="")
        return 0
    path = Path(write).expanduser() if write else files.user_file()
    if path.exists() and not force:
        raise UserError(f"{path} exists; --force replaces it, and without --write the profile is only printed")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"wrote {path}; `hvdtrain site show` lists everything else that it may say")
    return 0


_HEADING = """\
# Site profile of {name}, as SLURM describes it. Add what it cannot know, such as
#   account = "..."   time = "4:00:00"   modules = ["cuda/12.4"]   interface = "ib0"
# Keys of a table go below the table's heading, all others above the first heading. Delete what you do not want to fix,
# above all nodes, per_node, gpus_per_node and cpus_per_task: they would hold for every partition, while what is not said
# here is looked up.
"""
