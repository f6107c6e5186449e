"""One configuration and what it takes to a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.finding import describe, known

#: What `Way.basis` may be where epochs are counted.
COUNTED = ("target", "stable", "recorded target")
#: 5 and 95 % of a normal distribution.
Z = 1.645


@dataclass(frozen=True)
class Way:
    """One configuration and what it takes to the target. Intervals are 90 %.

    Attributes:
        fields: the values of `analysis.schema.GROUP` by name; also `workload`, `gpu_type`, ... as attributes.
        epochs, seconds, gpu_hours, cost: None where they cannot be known; `cost` needs a price.
        energy: J, scaled from what was accounted for the whole run.
        val_acc: the accuracy that it ended with; `reached` whether that is the target (None: not recorded).
        basis: what `seconds` counts to: "target" (an accuracy), "stable" (accuracy), "recorded target" (epochs_to_target or
            time_to_target, of an accuracy that is not known here), or "whole run", "epoch", "million samples".
        mean_epoch: s that one more epoch adds; None where no epochs were timed.
        missing: what is not known, so that there are no `seconds`: "epochs" to the target, the "time" of one, "throughput",
            the time to a recorded "target".
        measured: False for a forecast.
        diverged: how many runs did, besides the `replicates`.
        missed: how many of the `replicates` ended without having been at the target, where curves say so.
        apart: the fields that are not the same in all ways of the workload.
        rules: further learning-rate rules that it is a way of, of one rank: all of them are the same there.
    """

    fields: Mapping[str, Any]
    n_gpus: int
    n_nodes: int | None
    epochs: float | None
    seconds: float
    low: float
    high: float
    val_acc: float | None
    reached: bool | None
    basis: str
    replicates: int
    price: float | None = None
    energy: float | None = None
    mean_epoch: float | None = None
    missing: str = ""
    measured: bool = True
    diverged: int = 0
    missed: int = 0
    apart: tuple[str, ...] = ()
    rules: tuple[str | None, ...] = ()

    @property
    def workload(self) -> str | None:
        """What is trained."""
        return known(self.fields["workload"])

    @property
    def gpu_type(self) -> str | None:
        """The GPU type."""
        return known(self.fields["gpu_type"])

    @property
    def per_gpu_batch(self) -> int | None:
        """Samples per rank and step."""
        value = self.fields["per_gpu_batch"]
        return None if value is None else int(value)

    @property
    def global_batch(self) -> int | None:
        """Samples per step of all ranks."""
        return None if self.per_gpu_batch is None else self.per_gpu_batch * self.n_gpus

    @property
    def hours(self) -> float:
        """`seconds` in hours."""
        return self.seconds / 3600

    @property
    def gpu_hours(self) -> float:
        """Rank-hours, whatever the device."""
        return self.n_gpus * self.hours

    @property
    def hours_unit(self) -> str:
        """What `gpu_hours` counts in words: "GPU-hours", or "rank-hours" where no GPU is known of."""
        return "GPU-hours" if self.fields["device"] == "gpu" else "rank-hours"

    @property
    def cost(self) -> float | None:
        """`gpu_hours` times the price; None without a price."""
        return None if self.price is None else self.gpu_hours * self.price

    @property
    def name(self) -> str:
        """ "8 x V100", "4 CPU ranks", with batch per rank, rule or precision where the workload has several: `apart`."""
        return self.named(self.apart)

    def named(self, names: Sequence[str]) -> str:
        """The same with the fields `names`, as far as they are known."""
        if self.gpu_type is not None:
            first = f"{self.n_gpus} x {self.gpu_type}"
        else:
            cpu = "CPU " if self.fields["device"] == "cpu" else ""
            first = f"{self.n_gpus} {cpu}rank{'' if self.n_gpus == 1 else 's'}"
        left_out = ("gpu_type", *(["lr_rule"] if self.rules else []))
        return ", ".join([first, *qualified(self.fields, [name for name in names if name not in left_out])])

    @property
    def group(self) -> str:
        """The group in words."""
        return describe(self.fields)

    def worth(self, by: str) -> tuple[float, float, float]:
        """Low, value and high of "seconds" or of "cost" (hours where there is no price: see `judged_by_cost`)."""
        scale = 1.0 if by == "seconds" else self.n_gpus / 3600 * (self.price if self.price is not None else 1.0)
        return scale * self.low, scale * self.seconds, scale * self.high


def once(ways: Sequence[Way]) -> list[Way]:
    """`ways`, those of one rank that differ in nothing but the learning-rate rule as one: it is one measurement."""
    found: dict[object, Way] = {}
    for place, way in enumerate(ways):
        others = {name: value for name, value in way.fields.items() if name != "lr_rule"}
        # As text, where a time that is NaN equals itself.
        key: object = repr({**way.__dict__, "fields": others}) if way.n_gpus == 1 else place
        first = found.get(key)
        found[key] = way if first is None else replace(first, rules=(*first.rules, known(way.fields["lr_rule"])))
    return list(found.values())


def of_each_rule(ways: Sequence[Way]) -> list[Way]:
    """The ways of `once`, for what compares by the learning-rate rule: under each of their rules."""
    return [
        one
        for way in ways
        for one in (way, *(replace(way, fields={**way.fields, "lr_rule": rule}, rules=()) for rule in way.rules))
    ]


def differing(groups: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Which of `analysis.schema.GROUP`, or `global_batch`, are not the same in all groups, workload and device apart."""
    names = ("gpu_type", "per_gpu_batch", "global_batch", "lr_rule", "precision")
    return tuple(name for name in names if len({known(fields.get(name)) for fields in groups}) > 1)


def qualified(fields: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The values of those fields in words, as far as they are known: "V100", "batch 32", "linear rule", "float16"."""
    text = {name: value for name in names if (value := known(fields.get(name))) is not None}
    if "per_gpu_batch" in text:
        text["per_gpu_batch"] = f"batch {float(text['per_gpu_batch']):.0f}"
    if "global_batch" in text:
        text["global_batch"] = f"global batch {float(text['global_batch']):.0f}"
    if "lr_rule" in text:
        text["lr_rule"] = "no rule" if text["lr_rule"] == "none" else f"{text['lr_rule']} rule"
    return list(text.values())


def judged_by_cost(ways: Sequence[Way], money: bool = False) -> list[Way]:
    """Those whose costs can be compared: with a price where any has one, because money is not compared with hours.

    Where none has one hours are compared: those of GPUs, of whatever type, but not with those of CPU ranks. With `money` costs
    are in the currency of prices all the same: something else of the same answer has one, and nothing is judged.
    """
    priced = [way for way in ways if way.price is not None]
    if priced or money:
        return priced
    if {"cpu", "gpu"} <= {way.fields["device"] for way in ways}:
        return [way for way in ways if way.fields["device"] == "gpu"]
    return list(ways)


def priced_as(fields: Mapping[str, Any]) -> str | None:
    """What a price is given for: the GPU type, or the device ("cpu") where there is none."""
    return known(fields["gpu_type"]) or known(fields["device"])
