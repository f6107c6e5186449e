"""Where a profile comes from: command line > --site FILE > hvdtrain.toml here > the user's file > detected > defaults."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hvdtrain.errors import UserError, nearest
from hvdtrain.site import detect
from hvdtrain.site.profile import Container, Gpu, Limits, Requeue, Site

SETTINGS_FILE = "hvdtrain.toml"
TABLE = "site"
#: Origin of what the cluster says of itself.
DETECTED = "detected"
#: Origin of what is typed.
COMMAND_LINE = "the command line"
_MODELS: Mapping[str, type[Any]] = {"gpus": Gpu, "container": Container, "requeue": Requeue, "limits": Limits}


@dataclass(frozen=True)
class Layer:
    """Values of one origin, as nested tables."""

    origin: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Profile:
    """A complete profile, and for each key that somebody set, who did."""

    site: Site
    origins: Mapping[str, str]


def user_file() -> Path:
    """The user's own profile."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "hvdtrain" / "site.toml"


def layers(directory: Path, given: str | None) -> list[Layer]:
    """What files say, the weakest first; `given` is --site.

    Raises:
        UserError: a file is missing, is not TOML, or its site part is no table.
    """
    found = []
    if (path := user_file()).is_file():
        found.append(Layer(str(path), read_toml(path)))
    if (path := directory / SETTINGS_FILE).is_file():
        table = read_toml(path).get(TABLE, {})
        if not isinstance(table, dict):
            raise UserError(f"{path}: [{TABLE}] is a table of its own, not {TABLE} = {table!r}")
        found.append(Layer(f"{SETTINGS_FILE} here", table))
    if given is not None:
        path = Path(given).expanduser()
        if not path.is_file():
            raise UserError(
                f"--site {given}: there is no such file; `hvdtrain site detect --write FILE` makes one from this cluster",
            )
        values = read_toml(path)
        # A file with a [site] table is an hvdtrain.toml of somewhere else.
        found.append(Layer(given, values[TABLE] if isinstance(values.get(TABLE), dict) else values))
    return found


def combine(parts: Sequence[Layer], groups: Sequence[detect.Group] = ()) -> Profile:
    """The profile that the layers make, later ones winning key by key; lists are replaced, not joined.

    A layer's `partition` also wins over those that weaker layers have for GPU types: who names one wants to be there. Only
    one that a file names for all jobs takes no types that it has not, as the cluster's `groups` of nodes say.

    Raises:
        UserError: an unknown key (names the nearest), or a value that is not legal there.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    named = max((number for number, part in enumerate(parts) if "partition" in part.values), default=0)
    general = parts[named].values.get("partition") if parts and parts[named].origin != COMMAND_LINE else None
    away = detect.elsewhere(groups, general) if isinstance(general, str) else {}
    apart = {*away, *(kind for kind, name in detect.short_names(groups).items() if name in away)}
    for name, partition in away.items():
        origins[f"gpus.{name}.partition"] = DETECTED
        _put(merged, ("gpus", name, "partition"), partition)
    for number, part in enumerate(parts):
        for path, value in _leaves(part.values):
            _check_key(path, part.origin)
            if number < named and path[0] == "gpus" and path[-1] == "partition":
                known = {**merged.get("gpus", {}).get(path[1], {}), **part.values["gpus"][path[1]]}
                if known.get("slurm", path[1]) not in apart:
                    _put(merged, path, None)  # and not nothing: it may be all that is said of the type
                    continue
            origins[".".join(path)] = part.origin
            _put(merged, path, value)
    try:
        return Profile(Site.model_validate(merged), origins)
    except ValidationError as error:
        raise UserError(_explain(error, origins)) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def _leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        path = (*above, key)
        # Tables of the model go key by key; free ones (environment, nccl) too, so that layers add to each other.
        if isinstance(value, Mapping) and (value or path[0] == "gpus"):
            yield from _leaves(value, path) if value else [(path, {})]
        else:
            yield path, value


def _check_key(path: tuple[str, ...], origin: str) -> None:
    legal: Mapping[str, Any] = Site.model_fields
    shown = path[0]
    word = path[0]
    if word in legal and word in _MODELS:
        inner = path[2:] if word == "gpus" else path[1:]
        if inner:
            legal, word, shown = _MODELS[word].model_fields, inner[0], ".".join(path[: len(path) - len(inner) + 1])
    if word not in legal:
        raise UserError(
            f'{origin}: a site profile has no key "{shown}"; legal are {", ".join(legal)}{nearest(word, legal)}'
        )


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            below = tree[key] = {}
        tree = below
    tree[path[-1]] = value


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    key = next(
        (key for key in sorted(origins, key=len, reverse=True) if where.startswith(key) or key.startswith(f"{where}.")),
        where,
    )
    message = str(first["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    more = f" (and {error.error_count() - 1} more mistakes)" if error.error_count() > 1 else ""
    return f"{origins.get(key, 'site profile')}: {where} = {first['input']!r}: {message}{more}"
