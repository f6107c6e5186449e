"""Which options a job takes, and their defaults, read from its text: importing a job would load frameworks."""

from __future__ import annotations

import argparse
import ast
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain import job as standard
from hvdtrain.errors import UserError, nearest

#: Values for keywords of `job.parser` that are not written as literals: only the other properties are used then.
_STAND_IN: Mapping[str, Any] = {"epochs": 1, "batch_size": 1, "lr": 1.0}
_CONVERTERS: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float}


@dataclass(frozen=True)
class JobOption:
    """One option of a job. `default` is None where the text does not show it; `switch` is an option without a value."""

    name: str
    default: Any = None
    choices: tuple[str, ...] | None = None
    convert: Callable[[str], Any] | None = None
    switch: bool = False


@dataclass(frozen=True)
class JobFile:
    """A job's file and the options that its text shows."""

    path: Path
    options: Mapping[str, JobOption]

    @property
    def workload(self) -> str:
        """The job's name: its file without the ending."""
        return self.path.stem

    def default(self, name: str) -> Any:
        """The value that the job takes when option `name` is not given; None when that cannot be seen."""
        return self.options[name].default if name in self.options else None

    def value(self, name: str, text: str) -> Any:
        """What the job makes of `text` for option `name`: itself where it shows no other kind, None where it cannot be seen."""
        if name not in self.options:
            return None
        convert = self.options[name].convert
        with contextlib.suppress(argparse.ArgumentTypeError, ValueError):
            return text if convert is None else convert(text)
        return None

    def take(self, name: str, given_as: str) -> JobOption:
        """The option `name`.

        Raises:
            UserError: the job does not take it; names the nearest that it takes.
        """
        if name not in self.options:
            legal = f"It takes {', '.join(sorted(self.options))}" if self.options else "No option shows in its file"
            hint = nearest(name, self.options) or "."
            raise UserError(
                f'the job "{self.workload}" takes no {name} ({given_as}){hint} {legal}; '
                "arguments after -- are passed to it unchecked"
            )
        return self.options[name]

    def check(self, name: str, value: str, given_as: str) -> None:
        """Raise UserError unless the job would take `value` for option `name`."""
        option = self.take(name, given_as)
        if option.switch:
            raise UserError(
                f'{given_as}: {name} of the job "{self.workload}" is a switch without a value; give it as -- {name}'
            )
        if option.choices is not None and value not in option.choices:
            raise UserError(f"{given_as}: legal is {', '.join(option.choices)}{nearest(value, option.choices)}")
        if option.convert is not None:
            try:
                option.convert(value)
            except argparse.ArgumentTypeError as error:
                raise UserError(f"{given_as}: {error}") from error
            except ValueError as error:
                kind = "whole number" if option.convert is int else "number"
                raise UserError(
                    f'{given_as}: {name} of the job "{self.workload}" takes a {kind}, not "{value}"'
                ) from error


def read(path: Path) -> JobFile:
    """The options in the job file at `path`.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise UserError(f"the job file {path} is not valid Python: {error.msg} in line {error.lineno}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"the job file {path} cannot be read: {error}") from error
    return JobFile(path, find_options(tree))


def find_options(tree: ast.AST) -> dict[str, JobOption]:
    """The options that `job.parser(...)` and `.add_argument("--x", ...)` calls in `tree` add, by every long name."""
    options: dict[str, JobOption] = {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    parser_names = set(_names_of("parser", tree))
    known = {given: kind for name, kind in standard.TYPES.items() for given in _names_of(name, tree)}
    converters = {**_CONVERTERS, **known}
    for call in calls:
        if ast.unparse(call.func) in parser_names:
            options.update(_standard(_keywords(call)))
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            names = [text for text in map(_literal, call.args) if isinstance(text, str) and text.startswith("--")]
            options.update((name, _added(name, call, converters)) for name in names)
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "set_defaults":
            for key, value in _keywords(call).items():
                name = "--" + key.replace("_", "-")
                if name in options:
                    options[name] = replace(options[name], default=value)
    return options


def _names_of(function: str, tree: ast.AST) -> Iterator[str]:
    """Under which names the file has `function` of `hvdtrain.job`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name == "hvdtrain.job":
                    yield f"{name.asname or 'hvdtrain.job'}.{function}"
        elif isinstance(node, ast.ImportFrom) and node.module == "hvdtrain":
            yield from (f"{name.asname or 'job'}.{function}" for name in node.names if name.name == "job")
        elif isinstance(node, ast.ImportFrom) and node.module == "hvdtrain.job":
            yield from (name.asname or function for name in node.names if name.name == function)


def _standard(given: Mapping[str, Any]) -> dict[str, JobOption]:
    """The standard options, from the very parser that the job will use."""
    legal = standard.parser.__annotations__.keys() - {"description", "return"}
    known = {key: value for key, value in given.items() if key in legal and value is not None}
    parser = standard.parser(None, **{**_STAND_IN, **known})
    hidden = {f"--{key.replace('_', '-')}" for key in given.keys() | _STAND_IN.keys() if key not in known}
    result = {}
    for name in (*standard.STANDARD_OPTIONS, *(["--strategy"] if known.get("strategies") else [])):
        action = parser._option_string_actions[name]
        choices = tuple(str(choice) for choice in action.choices) if action.choices is not None else None
        convert = action.type if callable(action.type) else None
        default = None if name in hidden else action.default
        result[name] = JobOption(name, default, choices, convert)
    return result


def _added(name: str, call: ast.Call, converters: Mapping[str, Callable[[str], Any]]) -> JobOption:
    given = _keywords(call)
    choices = given.get("choices")
    kind = next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "type"), "")
    action = next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "action"), "")
    switch = "BooleanOptionalAction" in action or given.get("action") in (
        "store_true",
        "store_false",
        "store_const",
        "count",
    )
    legal = tuple(str(choice) for choice in choices) if isinstance(choices, (list, tuple, set)) else None
    return JobOption(name, given.get("default"), legal, converters.get(kind), switch)


def _keywords(call: ast.Call) -> dict[str, Any]:
    """The keyword arguments of a call; those that are not literals as None."""
    return {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg is not None}


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
