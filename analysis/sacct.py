"""Job times from SLURM's accounting: `sacct -P -o JobID,JobName,State,Elapsed,AllocTRES,NNodes,...`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.csv_files import Row
from analysis.durations import parse_duration
from analysis.rank_words import without_ranks
from analysis.schema import COLUMNS
from hvdtrain.errors import UserError, printable

NEEDED = ("JobID", "State", "Elapsed")
_GPU = re.compile(r"gres/gpu(?::(?P<type>[^=,]+))?=(?P<count>\d+)")
_ENERGY = re.compile(r"^(?P<value>[0-9.]+)(?P<scale>[KMG]?)$")
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}


def _tasks(lines: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Tasks by job: SLURM says how many of a step, and of a job only where it has none."""
    found: dict[str, int] = {}
    for fields in lines:
        job, tasks = fields.get("jobid", "").split(".")[0], fields.get("ntasks", "")
        found[job] = max(found.get(job, 0), int(tasks) if tasks.isdigit() else 0)
    return found


def is_sacct(fields: Sequence[str]) -> bool:
    """Whether these are the headings of a sacct dump (any separator)."""
    return "jobid" in (name.strip().lower() for name in fields) and "elapsed" in (
        name.strip().lower() for name in fields
    )


def read_sacct(path: Path, text: str) -> list[Row]:
    """`total_time` (and `energy`, where accounted) of every completed job; its steps are part of it and not counted again.

    Raises:
        UserError: a column is missing, or no job completed.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    separator = "|" if "|" in lines[0] else ","
    names = [name.strip() for name in lines[0].rstrip(separator).split(separator)]
    legal = {name.lower(): name for name in names}
    missing = [name for name in NEEDED if name.lower() not in legal]
    if not {"alloctres", "ntasks", "allocgres", "reqtres"} & legal.keys():
        missing.append("AllocTRES")
    if missing:
        raise UserError(f"{path}: a sacct dump needs the column {' and '.join(missing)}; "
                        "make it with: sacct -P -o JobID,JobName,State,Elapsed,AllocTRES,NNodes,ConsumedEnergyRaw")  # fmt: skip
    rows: list[Row] = []
    of_line = [
        dict(zip((name.lower() for name in names), (field.strip() for field in line.split(separator)), strict=False))
        for line in lines[1:]
    ]
    tasks_of = _tasks(of_line)
    for number, fields in enumerate(of_line, start=2):
        if "." in fields.get("jobid", "") or fields.get("state", "").split()[:1] != ["COMPLETED"]:
            continue
        tres = fields.get("alloctres") or fields.get("allocgres") or fields.get("reqtres") or ""
        gpus = _GPU.findall(tres)
        typed = [(kind, int(count)) for kind, count in gpus if kind]
        count = sum(own for _, own in typed) or max((int(own) for _, own in gpus), default=0)
        ranks = count or tasks_of.get(fields["jobid"], 0)
        if not ranks:
            continue
        common: Row = dict.fromkeys(COLUMNS)
        workload = printable(without_ranks(fields.get("jobname", ""), ranks)) or None
        nodes = fields.get("nnodes") or fields.get("allocnodes") or ""
        common |= {
            "source": printable(f"{path.name}:{fields['jobid']}"), "workload": workload,
            "gpu_type": printable(" + ".join(sorted({kind for kind, _ in typed}))) or None, "n_gpus": ranks,
            "n_nodes": int(nodes) if nodes.isdigit() else None, "device": "gpu" if count else "cpu",
        }  # fmt: skip
        try:
            elapsed = parse_duration(fields["elapsed"])
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
        if elapsed > 0:
            rows.append({**common, "metric": "total_time", "value": elapsed, "unit": "s"})
        energy = _ENERGY.match(fields.get("consumedenergyraw") or fields.get("consumedenergy") or "")
        if energy and float(energy["value"]) > 0:
            joule = float(energy["value"]) * _SCALES[energy["scale"]]
            rows.append({**common, "metric": "energy", "value": joule, "unit": "J"})
    if not rows:
        raise UserError(f"{path}: no completed job with GPUs or tasks; jobs that failed are not measured")
    return rows
