"""Measurements from CSV files, checked line by line: a table typed by hand is where mistakes come from."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.durations import parse_duration, time_unit
from analysis.headers import PER_RANK_UNIT, Header
from analysis.schema import COLUMNS, COUNTS, DEVICES, GROUP, METRICS, REQUIRED, WORDS, Metric
from hvdtrain.errors import UserError, nearest, printable

Row = dict[str, str | int | float | None]
#: Two columns of one metric, such as images/s and images/s per GPU, differ by rounding up to this share.
_ROUNDED = 0.02


def read_csv(path: Path, ranks_needed: bool = True) -> list[Row]:
    """The rows of one CSV file in the tidy format (see `analysis.tables.read`).

    The first line names the columns, in any order; `n_gpus`, `metric` and `value` must be there, the rest may be
    absent or empty. An absent `source` is the file's name; an absent `device` is "gpu" where a GPU type is given; an
    absent batch, per rank or global, follows from the other and the number of ranks; steps/s of a known batch become samples/s.
    Without `ranks_needed` a published table may leave their number open.

    Returns:
        One dictionary per row with every column of `COLUMNS`: times in s, accuracies as fractions of one.

    Raises:
        UserError: names the file and line, what was given, and what is legal.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    rows: list[Row] = []
    header: Header | None = None
    try:
        for fields in reader:
            # Published tables say where they come from above the first line.
            if not any(field.strip() for field in fields) or fields[0].lstrip().startswith("#"):
                continue
            where = f"{path}, line {reader.line_num}"
            if header is None:
                header = Header(fields, where, REQUIRED)
                continue
            if len(fields) != len(header.names):
                raise UserError(f"{where}: {len(fields)} fields, but the first line names {len(header.names)} columns")
            rows.extend(
                _once([(given, _row(given, where, path.name, ranks_needed)) for given in header.rows(fields)], where)
            )
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from error
    _as_samples(rows)
    if not rows:
        raise UserError(f"{path} holds no measurements; its first line names columns, of {', '.join(COLUMNS)}")
    return rows


def _once(measured: Sequence[tuple[Mapping[str, str], Row]], where: str) -> list[Row]:
    """The rows of one line. Columns that mean the same metric are one measurement, the first of them, and must agree."""
    first: dict[object, tuple[Mapping[str, str], Row]] = {}
    for given, row in measured:
        before, kept = first.setdefault(row["metric"], (given, row))
        one, other = kept["value"], row["value"]
        assert isinstance(one, float) and isinstance(other, float)
        if abs(one - other) > _ROUNDED * one:
            said = " and ".join(f'"{own["heading"]}" ({own["value"]})' for own in (before, given))
            values = f"{one:g} and {other:g} {row['unit']}"
            raise UserError(
                f"{where}: {said} both are {row['metric']}, and differ: {values}; keep the column that is right"
            )
    return [row for _, row in first.values()]


def _as_samples(rows: list[Row]) -> None:
    """Steps/s of a known batch become samples/s: steps of different batches are different work.

    Where samples/s of the same configuration are there too, these count and the steps stay what they are.
    """
    keys = [*GROUP, "n_gpus", "n_nodes", "global_batch", "replicate"]
    sampled = {tuple(row[name] for name in keys) for row in rows if row["metric"] == "throughput"}
    for row in rows:
        value, batch = row["value"], row["global_batch"]
        if row["metric"] != "steps_per_s" or not isinstance(batch, int) or tuple(row[name] for name in keys) in sampled:
            continue
        assert isinstance(value, float)
        row.update(metric="throughput", value=value * batch, unit=METRICS["throughput"].unit)


def _row(given: Mapping[str, str], where: str, source: str, ranks_needed: bool) -> Row:
    for name in REQUIRED:
        if name not in given and (ranks_needed or name != "n_gpus"):
            raise UserError(f'{where}: "{name}" is empty')
    row: Row = dict.fromkeys(COLUMNS)
    row.update({name: printable(given[name]) for name in WORDS if name in given})
    row.update({name: _whole(given[name], name, where, least=1) for name in COUNTS if name in given})
    if "replicate" in given:
        row["replicate"] = _whole(given["replicate"], "replicate", where, least=0)
    row["source"] = row["source"] or printable(source)
    row["device"] = _device(given, where)
    if str(row["gpu_type"]).lower() in DEVICES:
        row["gpu_type"] = None
    row["value"], row["unit"] = _value(given, where)
    ranks, per_rank, overall = row["n_gpus"], row["per_gpu_batch"], row["global_batch"]
    if not isinstance(ranks, int):
        return row
    value = row["value"]
    assert isinstance(value, float)
    if given["metric"] == "throughput" and PER_RANK_UNIT.search(given.get("unit", "")):
        row["value"] = value * ranks
    if isinstance(per_rank, int) and overall is None:
        row["global_batch"] = per_rank * ranks
    elif isinstance(overall, int) and per_rank is None and overall % ranks == 0:
        row["per_gpu_batch"] = overall // ranks
    return row


def _whole(text: str, name: str, where: str, least: int) -> int:
    try:
        # Spreadsheets write 2.0 as soon as one field of the column is empty.
        value = float(text)
        if not value.is_integer() or value < least:
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(f'{where}: {name} "{text}" is not a whole number of {least} or more') from None
    return int(value)


def _device(given: Mapping[str, str], where: str) -> str | None:
    device = given.get("device", "").lower()
    if not device:
        # A column of hardware names the device where it is no GPU of a type.
        kind = given.get("gpu_type", "").lower()
        return kind if kind in DEVICES else "gpu" if kind else None
    if device not in DEVICES:
        legal = " or ".join(DEVICES)
        raise UserError(f'{where}: device "{given["device"]}" is not {legal}{nearest(device, DEVICES)}')
    return device


def _value(given: Mapping[str, str], where: str) -> tuple[float, str]:
    name = given["metric"]
    if name not in METRICS:
        raise UserError(f'{where}: no metric "{name}"; the metrics are {", ".join(METRICS)}{nearest(name, METRICS)}')
    metric = METRICS[name]
    unit = given.get("unit")
    if metric.is_time:
        if unit is not None and time_unit(unit) is None:
            raise UserError(f'{where}: {name} is a time, its unit cannot be "{unit}"; use d, h, min, s or ms')
        try:
            seconds = parse_duration(given["value"], unit)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        return _checked(seconds, name, given["value"], where), metric.unit
    if name.endswith("_acc"):
        return _accuracy(given["value"], unit, where, name), metric.unit
    if unit is not None and name == "throughput":
        # "images/s per GPU": the caller multiplies by the ranks.
        unit = PER_RANK_UNIT.sub("", unit)
    if unit is not None and unit.lower() not in (metric.unit.lower(), *metric.aliases):
        raise UserError(f'{where}: {name} is in {metric.unit}, not "{unit}"{nearest(unit, _spellings(metric))}')
    return _checked(_number(given["value"], name, where), name, given["value"], where), metric.unit


def _spellings(metric: Metric) -> tuple[str, ...]:
    return (metric.unit, *metric.aliases)


def _accuracy(text: str, unit: str | None, where: str, name: str) -> float:
    if unit is not None and unit.lower() not in ("%", "percent", *_spellings(METRICS[name])):
        raise UserError(f'{where}: {name} has the unit "fraction" (0 to 1) or "%", not "{unit}"')
    in_percent = text.endswith("%") or (unit or "").lower() in ("%", "percent")
    value = _number(text.removesuffix("%").strip(), name, where) / (100 if in_percent else 1)
    if not 0 <= value <= 1:
        hint = "" if in_percent else '; if it is in percent, give the unit "%"'
        raise UserError(f"{where}: {name} {text} is not between 0 and {'100 %' if in_percent else '1'}{hint}")
    return value


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f'{where}: {name} "{text}" is not a number; write it like 1234.5') from None
    if not math.isfinite(value):
        raise UserError(f'{where}: {name} "{text}" is not finite; leave a measurement out that there is none of')
    return value


def _checked(value: float, name: str, text: str, where: str) -> float:
    # Zero seconds or samples per second is never a measurement, and every ratio of it would be infinite.
    if not value > 0 or not math.isfinite(value):
        raise UserError(f'{where}: {name} "{text}" is not above zero')
    return value
