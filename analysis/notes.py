"""What a reader must know before believing a scaling table: pure functions, sentences out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from analysis import words
from analysis.runs import Run, group_key, under_each_rule
from analysis.scaling import Group

_BASIS = {
    "throughput": "samples/s, training only: s/epoch also holds validation",
    "epoch_time": "s/epoch, because samples/s were not recorded throughout",
    "total_time": "the total time, because neither samples/s nor s/epoch were recorded throughout",
}


def runs_of(group: Group, runs: Sequence[Run]) -> list[Run]:
    """The measured runs behind a group: those of each size on the fewest nodes, as in its table."""
    held = {} if group.global_batch is None else {group.key[:-1]: (group.global_batch,)}
    return [
        run
        for run in under_each_rule(runs)
        # Not what does not say its batch where there are several series, nor what was timed on fewer nodes too.
        if run.measured and group_key(run, held) == group.key and run.source in group.sources
    ]


def baseline_note(group: Group) -> str:
    """What speedup and efficiency mean in this table."""
    if group.baseline is None:
        return (
            "Speedup and efficiency: not computed, no throughput, no time of an epoch and no total time was recorded."
        )
    lengths = " Runs of different numbers of epochs are compared by the epoch." if group.baseline.one_length else ""
    return f"Speedup and efficiency {group.baseline.text}. Computed from {_BASIS[group.baseline.metric]}.{lengths}"


def notes(group: Group, runs: Sequence[Run]) -> list[str]:
    """Whatever besides the number of ranks differs between the cells of a group, and what the numbers include.

    Args:
        group: one group of `analysis.scaling.scaling`.
        runs: the measured runs behind it; empty for a group that comes from CSV files.

    Returns:
        Sentences, the baseline first.
    """
    found = [baseline_note(group)]
    if group.global_batch is not None:
        found.append(
            f"The global batch is held at {group.global_batch} (strong scaling): on more ranks each computes less."
        )
    if any(point.replicates > 1 for point in group.points):
        found.append("Numbers are medians of the replicates, with the least and the greatest in brackets.")
    if any(point.includes_first_epoch for point in group.points):
        found.append("* includes the first epoch, with its warm-up: the run has only one.")
    for point in (point for point in group.points if point.other_nodes):
        who, besides = (
            words.ranks(point.n_gpus, group.device),
            words.listing([str(count) for count in point.other_nodes]),
        )
        nodes = "node" if point.other_nodes == (1,) else "nodes"
        found.append(f"{who} were measured on {besides} {nodes} too: left out, only the fewest nodes count.")
    if any(run.again for run in runs):
        who = words.ranks(1, group.device)
        found.append(f"At {who} every learning-rate rule is the same: its runs are those of another rule.")
    if len(group.points) == 1:
        found.append("One rank count only: there is no scaling to see.")
    # A world of one rank exchanges nothing: who started it is no part of what is compared.
    several = [run for run in runs if run.n_gpus > 1]
    found.extend(_differing("under different launchers", _launching, several, group.device))
    found.extend(_differing("on different hosts", lambda run: _joined(run.hosts), runs, group.device))
    found.extend(_differing("on different GPU models", lambda run: _joined(run.gpu_models), runs, group.device))
    found.extend(_oversubscribed(runs, group.device))
    for run in runs:
        if run.n_gpus != run.asked:
            asked, ran = words.ranks(run.asked, group.device), words.ranks(run.n_gpus, group.device)
            found.append(f"{run.name}: {asked} were asked for, but the run's world had {ran}; it is counted as that.")
    studies = sorted({run.study for run in runs})
    files = sorted(set(group.sources) - {run.source for run in runs})
    if len(studies) + len(files) > 1:
        places = words.listing([*studies, *files])
        found.append(f"Measurements come from {places}: what differs between these is counted as scaling here.")
    return found


def _launching(run: Run) -> str:
    return " with ".join(part for part in (run.launcher, run.controller) if part)


def _joined(names: Sequence[str]) -> str:
    return " + ".join(sorted(names))


def _differing(how: str, fact: Callable[[Run], str], runs: Sequence[Run], device: str | None) -> list[str]:
    by_fact: dict[str, set[int]] = {}
    for run in runs:
        if fact(run):
            by_fact.setdefault(fact(run), set()).add(run.n_gpus)
    if len(by_fact) < 2:
        return []
    ordered = sorted(by_fact.items(), key=lambda item: (min(item[1]), item[0]))
    parts = [f"{_counts(counts, device)}: {_shortened(name)}" for name, counts in ordered]
    return [f"Cells ran {how} ({words.listing(parts)}), so the comparison measures that too."]


def _shortened(name: str) -> str:
    parts = name.split(" + ")
    return name if len(parts) <= 3 else f"{parts[0]} + {len(parts) - 1} more"


def _counts(counts: set[int], device: str | None) -> str:
    return f"{', '.join(str(count) for count in sorted(counts))} {words.rank_noun(device, many=counts != {1})}"


def _oversubscribed(runs: Sequence[Run], device: str | None) -> list[str]:
    crowded: dict[tuple[str, int], set[int]] = {}
    for run in runs:
        # Ranks are spread evenly: the shape of a cell is nodes x tasks per node.
        if run.cores is not None and run.n_gpus > run.cores * max(len(run.hosts), 1):
            crowded.setdefault((_joined(run.hosts), run.cores), set()).add(run.n_gpus)
    found = []
    for (hosts, cores), counts in sorted(crowded.items()):
        who = ("The ranks of " if device == "gpu" else "") + _counts(counts, device)
        what = f"{cores} core{'s' if cores != 1 else ''}{' each' if '+' in hosts else ''}"
        place = _shortened(hosts) or "the machine"
        found.append(f"{who} shared {what} of {place}: they took turns, so the comparison measures that too.")
    return found
