"""Checks of the runs behind a table: what their phases and their curves say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from analysis import words
from analysis.curves import accuracy_curves
from analysis.diagnosis import Finding
from analysis.runs import Run
from analysis.schema import GROUP
from analysis.stability import SHORTEST, Stability, epochs_to_stability
from hvdtrain.record import Epoch

PHASES = ("data", "forward", "backward", "allreduce", "optimizer", "val")
#: Above these shares of an epoch a phase is what limits.
_INPUT, _COMMUNICATION, _OVERHEAD = 0.30, 0.30, 0.35


def phase_shares(epochs: Sequence[Epoch]) -> Mapping[str, float] | None:
    """Median share of an epoch's seconds in each phase, and "other" for the rest; None where no phase was measured.

    The first epoch of every start is left out where there are others.
    """
    steady = [epoch for place, epoch in enumerate(epochs) if place and epoch.restart == epochs[place - 1].restart] or list(epochs)
    found: dict[str, float] = {}
    for phase in PHASES:
        shares = [seconds / epoch.seconds for epoch in steady
                  if epoch.seconds and (seconds := getattr(epoch, f"seconds_{phase}")) is not None]  # fmt: skip
        if shares:
            found[phase] = statistics.median(shares)
    if not found or set(found) <= {"val"}:
        return None
    return {**found, "other": max(0.0, 1 - sum(found.values()))}


def bound(shares: Mapping[str, float]) -> str:
    """What limits: "input", "communication", "overhead" or "compute"."""
    if shares.get("data", 0.0) > _INPUT:
        return "input"
    if shares.get("allreduce", 0.0) > _COMMUNICATION:
        return "communication"
    return "overhead" if shares.get("other", 0.0) > _OVERHEAD else "compute"


def by_size(runs: Sequence[Run]) -> dict[tuple[object, ...], dict[int, list[Run]]]:
    """Measured runs by group and number of ranks."""
    found: dict[tuple[object, ...], dict[int, list[Run]]] = {}
    for run in runs:
        if run.measured:
            found.setdefault(tuple(getattr(run, name) for name in GROUP), {}).setdefault(run.n_gpus, []).append(run)
    return found


def stability_of(runs: Sequence[Run], tolerance: float = 0.01) -> dict[int, Stability]:
    """Epochs to stability of the median curve of each number of ranks; those without a curve are absent."""
    rates = {run.n_gpus: {epoch.epoch: epoch.lr for epoch in run.epochs} for run in runs}
    found = {}
    for ranks, curve in accuracy_curves(runs).items():
        numbers = list(curve)
        lr = [rates.get(ranks, {}).get(number) for number in numbers]
        found[ranks] = epochs_to_stability(
            [spread.median for spread in curve.values()], tolerance, epochs=[float(number) for number in numbers],
            lr=None if any(rate is None for rate in lr) else [float(rate or 0) for rate in lr],
        )  # fmt: skip
    return found


def run_checks(runs: Sequence[Run]) -> Iterator[Finding]:
    """Findings from phases (`input_bound`) and curves (`horizon`)."""
    for key, sizes in by_size(runs).items():
        fields = dict(zip(GROUP, key, strict=True))
        device, name = runs[0].device if fields["device"] is None else str(fields["device"]), str(fields["workload"] or "")
        for ranks, own in sorted(sizes.items()):
            shares = phase_shares([epoch for run in own for epoch in run.epochs])
            if shares and bound(shares) == "input":
                yield Finding("input_bound", f"{words.ranks(ranks, device)}: {shares['data']:.0%} of an epoch is waiting for data", (), name,
                              "reading or augmenting cannot keep up", "a packed cache, more loader workers, or less augmentation",
                              {"share": shares["data"]})  # fmt: skip
        for ranks, stable in sorted(stability_of([run for own in sizes.values() for run in own]).items()):
            if stable.status == "censored":
                yield Finding("horizon", f"{words.ranks(ranks, device)}: not stable by epoch {stable.longer_than or 0:g} "
                              f"({'; '.join(stable.notices)})", (), name, "the run is too short", "train longer")  # fmt: skip
            elif stable.moved and stable.epoch is not None:
                yield Finding("horizon", f"{words.ranks(ranks, device)}: stable at epoch {stable.epoch:g}, but "
                              f"{'; '.join(stable.notices)}", (), name, "the plateau still moves", "train longer")  # fmt: skip


__all__ = ["PHASES", "SHORTEST", "bound", "by_size", "phase_shares", "run_checks", "stability_of"]
