"""Checks of the runs behind a table: what their phases and their curves say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from analysis import words
from analysis.curves import accuracy_curves, common_part
from analysis.finding import Finding, describe
from analysis.measured import fields_of
from analysis.phases import bound, by_size, phases_by_size
from analysis.runs import Run, accuracies
from analysis.settled import BATCH, unsettled
from analysis.stability import Stability, epochs_to_stability


def stability_of(runs: Sequence[Run], tolerance: float = 0.01) -> dict[int, Stability]:
    """Epochs to stability of the median curve of each number of ranks; those without a curve are absent."""
    found = {}
    for ranks in accuracy_curves(runs):
        every = [run for run in runs if run.n_gpus == ranks and accuracies(run.epochs)]
        own, end = common_part(every)
        curve = {number: spread for number, spread in accuracy_curves(own)[ranks].items() if number <= end}
        rates = {epoch.epoch: epoch.lr for run in reversed(own) for epoch in run.epochs}
        lr = [rate for number in curve if (rate := rates.get(number)) is not None]
        one = epochs_to_stability(
            [spread.median for spread in curve.values()],
            tolerance,
            epochs=[float(number) for number in curve],
            lr=lr if len(lr) == len(curve) else None,
        )
        found[ranks] = replace(one, notices=(*one.notices, *_shortened(every, own, end)))
    return found


def _shortened(every: Sequence[Run], own: Sequence[Run], end: int) -> list[str]:
    """That the median curve leaves out runs that ended before its `end`, or what some went on to do."""
    further = sum(max(accuracies(run.epochs)) > end for run in own)
    found = []
    if len(own) < len(every):
        found.append(
            f"{len(every) - len(own)} of {len(every)} runs have no accuracy of epoch {end} and are not in the median curve"
        )
    if further:
        found.append(f"the median curve ends at epoch {end}, beyond which {further} of {len(every)} runs went")
    return found


def run_checks(table: pd.DataFrame, runs: Sequence[Run]) -> Iterator[Finding]:
    """Findings from phases (`input_bound`), curves (`horizon`) and GPUs (`mixed_gpu_types`) of the runs behind a table."""
    yield from _mixed(runs)
    for key, sizes in by_size(table, runs).items():
        # What runs of another rule say is said of that rule.
        own = [run for several in sizes.values() for run in several if not run.again]
        if not own:
            continue
        device, about = own[0].device, describe({**fields_of(key), "global_batch": key[-1]})
        yield from _waiting(own, device, about)
        yield from _unsettled(own, device, about)
    yield from _lower_bounds(runs)


def _mixed(runs: Sequence[Run]) -> Iterator[Finding]:
    """Runs on several GPU types at once, which are in no table: they measure neither."""
    kinds: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.mixed and len(run.gpu_models) > 1:
            kinds.setdefault(run.gpu_models, []).append(run)
    for models, own in kinds.items():
        yield Finding(
            "mixed_gpu_types",
            f"{', '.join(run.name for run in own)} ran on {' and '.join(models)} at once, and {'is' if len(own) == 1 else 'are'} "
            "left out",
            (),
            " + ".join(models),
            likely="the slowest GPU sets the pace of every step",
            next="ask for one type (--gpu-type), and measure each by itself",
            numbers={"types": float(len(models)), "runs": float(len(own))},
        )


def _lower_bounds(runs: Sequence[Run]) -> Iterator[Finding]:
    """Global batches whose counts of epochs are left out, where some of their runs settled and most did not."""
    for own, open_ended in unsettled(runs, BATCH):
        one = own[0]
        if len(open_ended) == len(own) or one.global_batch is None or all(run.again for run in own):
            continue
        yield Finding(
            "horizon",
            f"global batch {one.global_batch}: {len(open_ended)} of {len(own)} runs had not settled when they ended, so what the "
            "others count is a lower bound and left out of how epochs grow with the batch",
            (),
            one.workload or "",
            likely="the runs ended before their accuracy settled",
            next="train these longer: the ones that settled are the quick ones",
            numbers={
                "global_batch": float(one.global_batch),
                "runs": float(len(own)),
                "unsettled": float(len(open_ended)),
            },
        )


def _waiting(runs: Sequence[Run], device: str | None, about: str) -> Iterator[Finding]:
    for ranks, seconds in phases_by_size(runs).items():
        if bound(seconds, ranks) != "input":
            continue
        training = sum(value for phase, value in seconds.items() if phase != "val")
        share = seconds["data"] / training
        yield Finding(
            "input_bound",
            f"{words.ranks(ranks, device)}: {words.amount(seconds['data'])} of {words.amount(training)} s of training "
            f"({share:.0%}) wait for data",
            (),
            about,
            likely="reading or augmenting cannot keep up",
            next="train on a packed cache, with more loader workers, or with less augmentation",
            numbers={"n_gpus": float(ranks), "share": share},
        )


def _unsettled(runs: Sequence[Run], device: str | None, about: str) -> Iterator[Finding]:
    for ranks, stable in sorted(stability_of(runs).items()):
        who = words.ranks(ranks, device)
        if stable.status == "censored" and stable.longer_than is not None:
            yield Finding(
                "horizon",
                f"{who}: not stable by epoch {stable.longer_than:g} ({'; '.join(stable.notices)})",
                (),
                about,
                likely="the run ended before its accuracy settled",
                next="train longer: what is stable cannot be seen in fewer epochs",
                numbers={"n_gpus": float(ranks), "longer_than": stable.longer_than},
            )
        elif stable.moved and stable.epoch is not None:
            yield Finding(
                "horizon",
                f"{who}: stable at epoch {stable.epoch:g}, but {'; '.join(stable.notices)}",
                (),
                about,
                likely="the plateau still moves",
                next="train longer, and see whether the answer stays",
                numbers={"n_gpus": float(ranks), "epoch": stable.epoch},
            )
