"""Column names as people write them, and wide tables made long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from analysis.schema import COLUMNS, METRICS
from hvdtrain.errors import UserError, nearest

#: Read and left alone: text for humans.
IGNORED = ("note", "notes", "comment", "comments", "remark")
MISSING = ("", "n/a", "na", "nan", "null", "none", "-", "--", "not run")

#: What a column may be called besides its own name, letters and digits only, lower case.
_ALIASES = {
    "model": "workload", "job": "workload", "network": "workload", "task": "workload", "benchmark": "workload",
    "gpu": "gpu_type", "gputype": "gpu_type", "gpumodel": "gpu_type", "hardware": "gpu_type", "accelerator": "gpu_type",
    "gpus": "n_gpus", "ngpus": "n_gpus", "numgpus": "n_gpus", "numberofgpus": "n_gpus", "gpucount": "n_gpus",
    "ranks": "n_gpus", "workers": "n_gpus", "nworkers": "n_gpus", "numreplicas": "n_gpus", "worldsize": "n_gpus", "np": "n_gpus",
    "nodes": "n_nodes", "nnodes": "n_nodes", "numnodes": "n_nodes", "hosts": "n_nodes",
    "batch": "per_gpu_batch", "batchsize": "per_gpu_batch", "batchpergpu": "per_gpu_batch", "localbatch": "per_gpu_batch",
    "localbsz": "per_gpu_batch", "pergpubatchsize": "per_gpu_batch",
    "globalbatchsize": "global_batch", "totalbatch": "global_batch",
    "lrrule": "lr_rule", "dtype": "precision", "seed": "replicate", "run": "replicate", "repeat": "replicate",
    "trial": "replicate", "nepochs": "epochs",
}  # fmt: skip

#: Wide tables: a column that is a metric, as (metric, unit, whether it counts one rank only).
_METRIC_ALIASES = {
    "throughput": ("throughput", None, False),
    "imagess": ("throughput", None, False),
    "imgs": ("throughput", None, False),
    "imgsec": ("throughput", None, False),
    "imagessec": ("throughput", None, False),
    "imagespersec": ("throughput", None, False),
    "imagespersecond": ("throughput", None, False),
    "sampless": ("throughput", None, False),
    "samplessec": ("throughput", None, False),
    "samplespersecond": ("throughput", None, False),
    "stepss": ("steps_per_s", None, False),
    "its": ("steps_per_s", None, False),
    "stepspers": ("steps_per_s", None, False),
    "stepspersecond": ("steps_per_s", None, False),
    "epochtime": ("epoch_time", None, False),
    "timeperepoch": ("epoch_time", None, False),
    "sepoch": ("epoch_time", "s", False),
    "secondsperepoch": ("epoch_time", "s", False),
    "totaltime": ("total_time", None, False),
    "time": ("total_time", None, False),
    "total": ("total_time", None, False),
    "elapsed": ("total_time", None, False),
    "trainingtime": ("total_time", None, False),
    "valacc": ("val_acc", None, False),
    "valaccuracy": ("val_acc", None, False),
    "accuracy": ("val_acc", None, False),
    "epochstostability": ("epochs_to_stability", None, False),
    "epochstotarget": ("epochs_to_target", None, False),
    "noisescale": ("noise_scale", None, False),
    "timetotarget": ("time_to_target", None, False),
    "energy": ("energy", None, False),
    "energyj": ("energy", "J", False),
}
_PER_RANK = re.compile(r"\s*(?:/|per|_per_|\()\s*(?:gpu|rank|worker|replica|device)\)?\s*$", re.IGNORECASE)
_UNIT = re.compile(r"[\[(]\s*([^\])]+)\s*[\])]\s*$")
#: What a per-rank unit may end in: "images/s/GPU", "images/s per worker".
PER_RANK_UNIT = re.compile(r"\s*(?:/|per)\s*(?:gpu|rank|worker|replica|device)s?\s*$", re.IGNORECASE)


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9%]", "", name.lower())


def column(name: str) -> str | None:
    """The column of the tidy table that `name` means, None when it is none of them."""
    if name in COLUMNS:
        return name
    bare = _bare(name)
    same = [own for own in COLUMNS if _bare(own) == bare]
    return same[0] if same else _ALIASES.get(bare)


def metric_column(name: str) -> tuple[str, str | None, bool] | None:
    """What a column of a wide table measures: metric, unit (None: not said), and whether of one rank only."""
    rest, unit, per_rank = _taken_apart(name)
    known = _METRIC_ALIASES.get(_bare(rest)) or ((rest, None, False) if rest in METRICS else None)
    if known is None:
        return None
    metric, own_unit, _ = known
    if metric == "total_time" and per_rank:
        return None
    return metric, unit or own_unit, per_rank


def _taken_apart(name: str) -> tuple[str, str | None, bool]:
    """A heading without its unit and "per GPU", the unit, and whether it is of one rank only."""
    found = _UNIT.search(name)
    rest, unit = (name[: found.start()].strip(), found[1]) if found else (name, None)
    if unit is not None and PER_RANK_UNIT.fullmatch(unit):
        return rest, None, True
    per_rank = _PER_RANK.search(rest)
    return (rest[: per_rank.start()] if per_rank else rest), unit, per_rank is not None


class Header:
    """The first line of a table, understood: which columns are settings, and which measure something.

    Attributes:
        names: the tidy column of each field; None for a measurement or for text that is not read.
        wide: position -> (metric, unit, per rank), empty for a long table. Beside a validation accuracy, `accuracy` is that of
            training, as Keras names them.
    """

    def __init__(self, fields: Sequence[str], where: str, required: Sequence[str]) -> None:
        """Understand `fields`.

        Raises:
            UserError: names the first column that cannot be understood, one that is there twice, or what is missing.
        """
        given = [field.strip() for field in fields]
        if len(given) == 1 and any(mark in given[0] for mark in ";\t"):
            raise UserError(
                f"{where}: columns are separated by commas here, numbers written with a point: save it as such"
            )
        self.names: list[str | None] = []
        self.wide: dict[int, tuple[str, str | None, bool]] = {}
        long = "metric" in given or "value" in given
        for place, name in enumerate(given):
            own = column(name)
            measures = None if long or own in COLUMNS else metric_column(name)
            if own is None and measures is None and _bare(name) not in IGNORED:
                legal = [*COLUMNS, *(() if long else METRICS)]
                raise UserError(
                    f'{where}: no column "{name}"; the columns are {", ".join(legal)}{nearest(name, legal)}'
                )
            if own is not None and own in self.names:
                raise UserError(
                    f'{where}: column "{name}" is there {given.count(name) if given.count(name) > 1 else 2} times'
                )
            self.names.append(own)
            if measures is not None:
                self.wide[place] = measures
        self._given = given
        validated = [place for place, own in self.wide.items() if own[0] == "val_acc" and not self._is_accuracy(place)]
        for place, (_, unit, per_rank) in self.wide.items() if validated else ():
            if self._is_accuracy(place):
                self.wide[place] = "train_acc", unit, per_rank
        needed = ["n_gpus"] if self.wide else required
        missing = [name for name in needed if name not in self.names]
        if missing:
            raise UserError(f"{where}: column {' and '.join(missing)} missing; {', '.join(required)} are needed")

    def _is_accuracy(self, place: int) -> bool:
        return _bare(_taken_apart(self._given[place])[0]) == "accuracy"

    def rows(self, fields: Sequence[str]) -> list[Mapping[str, str]]:
        """The measurements of one line, each as tidy column -> text; what is missing is left out, never made 0.

        In a wide table each has its column's `heading` too.
        """
        texts = [field.strip() for field in fields]
        common = {
            name: text for name, text in zip(self.names, texts, strict=True) if name and text.lower() not in MISSING
        }
        if not self.wide:
            return [common] if "value" in common else []
        found: list[Mapping[str, str]] = []
        for place, (metric, unit, per_rank) in self.wide.items():
            if texts[place].lower() not in MISSING:
                text = texts[place]
                row = {**common, "metric": metric, "value": text, "heading": self._given[place]}
                if unit:
                    row["unit"] = unit
                if per_rank:
                    row["unit"] = f"{row.get('unit', METRICS[metric].unit)}/gpu"
                found.append(row)
        return found
