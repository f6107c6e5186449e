"""Draws what is in bench/results for docs/performance.md.

    python bench/pictures.py                 # docs/pictures/*.svg, anew
    python bench/pictures.py --into FOLDER

The same numbers give the same files, byte by byte, under the same version of matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
# Okabe and Ito's colours, which stay apart for the colour-blind.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "hvdtrain",
}


def load(name: str) -> Any:
    """The numbers of one bench."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def machine(*names: str) -> str:
    """Which machines were measured, and when."""
    facts = [load(name)["machine"] for name in names]
    places = dict.fromkeys(f"{each['cores']} cores of {each['processor']}, {each['date']}" for each in facts)
    return "; ".join(places)


def steps(figure: Figure) -> str:
    """How much longer a step takes by hand, and with each framework's own way."""
    axes = figure.subplots(1, 2)
    blocks = [("PyTorch", "step_torch_blocks"), ("Keras", "step_keras_blocks_cnn"), ("Keras", "step_keras_blocks_mlp")]
    rivals = [
        ("PyTorch", "step_torch", "DDP"),
        ("PyTorch", "step_torch_4_ranks", "DDP"),
        ("Keras", "step_keras_cnn", "multiworker"),
        ("Keras", "step_keras", "multiworker"),
        ("Keras", "step_keras_4_ranks", "multiworker"),
    ]
    by_hand, by_rival = [], []
    for framework, name in blocks:
        for key, each in load(name)["steps"].items():
            case, contender = key.split(": ", 1)
            if contender == "hvdtrain":
                # Theirs over ours: above 1 ours is faster, as on the right.
                found = each["times of hand-written"]
                by_hand.append((f"{framework}, {case}", 1 / found["ratio"], 1 / found["high"], 1 / found["low"]))
    for framework, name, rival in rivals:
        for case, each in load(name)["steps"].items():
            found = each["times of hvdtrain"][rival]
            by_rival.append((f"{framework}, {case}", found["median"], found["low"], found["high"]))
    titles = ("By hand (90 % interval)", "By DDP or MultiWorkerMirrored (quartiles)")
    for place, rows, title in zip(axes, (by_hand, by_rival), titles, strict=True):
        _ratios(place, rows, title)
    return machine(*(name for _, name in blocks), *(name for _, name, _ in rivals))


def _ratios(axes: Axes, rows: list[tuple[str, float, float, float]], title: str) -> None:
    for place, (label, middle, low, high) in enumerate(rows):
        colour = BLUE if label.startswith("PyTorch") else ORANGE
        axes.plot([low, high], [place, place], color=colour, linewidth=2)
        axes.plot([middle], [place], "o", color=colour)
    axes.axvline(1.0, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [label.replace(" ranks", "") for label, *_ in rows])
    axes.invert_yaxis()
    axes.set(title=title, xlabel="their step in times of ours: right of 1, ours is faster")


def allreduce(figure: Figure) -> str:
    """Bandwidth by size of the message."""
    names = ("allreduce", "allreduce_1gbit")
    styles = {"Horovod MPI": (BLUE, "o"), "Horovod Gloo": (ORANGE, "s"), "torch Gloo": (GREEN, "^")}
    axes = figure.subplots(1, 2)
    for place, name, title in zip(axes, names, ("Ranks of one machine", "A node each, links of 1 gbit/s"), strict=True):
        for ranks, contenders in load(name)["bus_mb_per_s"].items():
            for contender, found in contenders.items():
                colour, mark = styles[contender]
                sizes = sorted(int(key) for key in found if key.isdigit())
                rates = [found[str(size)]["median"] for size in sizes]
                line = "-" if ranks.startswith("2") else ":"
                place.plot(sizes, rates, line + mark, color=colour, markersize=4, label=f"{contender}, {ranks}")
        stream = load(name)["bus_mb_per_s"]["2 ranks"]["Horovod MPI"]["TCP stream"]["median"]
        place.axhline(stream, color=GREY, linewidth=1, label="one TCP stream")
        place.set(title=title, xlabel="bytes of the message", ylabel="bus bandwidth, MB/s")
        place.set_xscale("log", base=2)
        place.set_yscale("log")
        place.yaxis.set_major_formatter("{x:,.0f}")
        place.xaxis.set_major_formatter(FuncFormatter(_bytes))
        place.legend(loc="lower right")
    return machine(*names)


def _bytes(value: float, _: object) -> str:
    return f"{value / 2**20:g} MB" if value >= 2**20 else f"{value / 2**10:g} KB"


def slow_links(figure: Figure) -> str:
    """A study over slow links, and what its first three sizes say of the fourth."""
    axes = figure.subplots()
    for (link, found), colour in zip(load("slow_network")["links"].items(), (BLUE, ORANGE), strict=True):
        rates = {int(nodes): each["median"] for nodes, each in found["samples_per_s"].items()}
        speed = f"{link.replace('gbit', ' gbit')}/s"
        axes.plot(list(rates), list(rates.values()), "o-", color=colour, label=f"measured, {speed}")
        said, last = found["predicted"], max(rates)
        reach = [[said["value"] - said["low"]], [said["high"] - said["value"]]]
        label = f"predicted from 1 to 3 nodes (90 %), {speed}"
        axes.errorbar(
            [last + 0.06], [said["value"]], yerr=reach, fmt="D", color=colour, capsize=3, alpha=0.6, label=label
        )
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xticks([1, 2, 3, 4])
    axes.set(title="A study over slow links", xlabel="nodes, one rank each", ylabel="samples/s")
    axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return machine("slow_network")


def start_up(figure: Figure) -> str:
    """Seconds until the first step has ended, by part."""
    axes = figure.subplots()
    parts = ("launch", "import", "init", "build", "broadcast", "first step")
    colours = dict(zip(parts, (GREY, BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9"), strict=True))
    rows = [
        (f"{framework}, {case}", each)
        for framework, name in (("PyTorch", "startup"), ("TensorFlow", "startup_tensorflow"))
        for case, each in load(name)["seconds"].items()
    ]
    for place, (_, seconds) in enumerate(rows):
        left = 0.0
        for part in parts:
            axes.barh(
                place, seconds[part]["median"], left=left, color=colours[part], label=part if place == 0 else None
            )
            left += seconds[part]["median"]
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set(title="From the command to the end of the first step", xlabel="seconds")
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return machine("startup", "startup_tensorflow")


#: Contender of the input's bench -> what it is, and whether it is a limit.
_INPUT = {
    "read limit": ("limit: copying cached rows", True),
    "cached, plain": ("cached, no augmentation", False),
    "cached epoch": ("cached, full augmentation", False),
    "(c) DataLoader": ("torch DataLoader, Pillow, flip only", False),
    "(a) generator": ("Keras ImageDataGenerator", False),
    "(b) tf.data": ("tf.data and Keras layers", False),
    "decode limit": ("limit: libjpeg-turbo alone", True),
    "first epoch": ("first epoch: decode, check, write", False),
    "Pillow": ("Pillow, decoding alone", False),
}


def input_pipeline(figure: Figure) -> str:
    """Images/s of the input, cached and in the first epoch, beside others and the limits."""
    axes = figure.subplots()
    found = load("input_pipeline")
    for place, (name, (label, limit)) in enumerate(_INPUT.items()):
        values = found["images_per_s"][name]
        colour = GREY if limit else BLUE if name in ("cached, plain", "cached epoch", "first epoch") else ORANGE
        axes.barh(place, statistics.median(values), color=colour)
        axes.plot([min(values), max(values)], [place, place], color="black", linewidth=1)
        axes.annotate(f" {statistics.median(values):,.0f} ", (max(values), place), va="center", fontsize=7.5)
        axes.text(0.0, place, f"{label}  ", ha="right", va="center", transform=axes.get_yaxis_transform())
    axes.set_xscale("log")
    axes.set_xlim(right=6e5)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(title="Input: median and range (ours blue, others orange, limits grey)", xlabel="images/s")
    return f"{found['machine']}, {found['date']}"


def commands(figure: Figure) -> str:
    """Seconds of commands, and of their counterparts elsewhere."""
    names, places = ("control", "control_torchx"), figure.subplots(1, 2)
    for axes, name, title in zip(places, names, ("Beside submitit", "Beside torchx, on a slower machine"), strict=True):
        rows = [(each, seconds) for each, seconds in load(name)["seconds"].items() if each != "python -c pass"]
        for place, (each, seconds) in enumerate(rows):
            axes.barh(place, seconds["median"], color=ORANGE if "submitit" in each or "torchx" in each else BLUE)
            axes.plot([seconds["low"], seconds["high"]], [place, place], color="black", linewidth=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(rows)), [each for each, _ in rows])
        axes.invert_yaxis()
        axes.set(title=title, xlabel="seconds, median and range (ours blue)")
    return machine(*names)


def profile(figure: Figure) -> str:
    """Where the time of one default step goes."""
    axes, found = figure.subplots(), load("profile_step")
    whole = sum(found["phases"].values())
    for place, value in enumerate(found["phases"].values()):
        axes.barh(place, value, color=BLUE)
        axes.annotate(f" {value:.1f} ms, {100 * value / whole:.0f} %", (value, place), va="center")
    axes.set_xlim(right=1.25 * max(found["phases"].values()))
    axes.set_yticks(range(len(found["phases"])), list(found["phases"]))
    axes.invert_yaxis()
    axes.set(title=f"A step of the {found['model']}, {found['ranks']} CPU ranks, {whole:.0f} ms", xlabel="ms")
    return machine("profile_step")


#: File -> who draws it, and its size in inches.
PICTURES: dict[str, tuple[Callable[[Figure], str], tuple[float, float]]] = {
    "steps": (steps, (10.0, 3.4)),
    "allreduce": (allreduce, (10.0, 4.2)),
    "slow-links": (slow_links, (7.0, 3.6)),
    "start-up": (start_up, (8.0, 3.6)),
    "input": (input_pipeline, (8.0, 3.4)),
    "commands": (commands, (10.0, 3.4)),
    "profile": (profile, (7.0, 2.6)),
}


def draw(folder: Path) -> Iterable[Path]:
    """Draw all of them into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (drawer, size) in PICTURES.items():
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=size, layout="constrained")
            figure.supxlabel(drawer(figure), fontsize=7, color=GREY)
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None, "Creator": None})
        yield path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--into", type=Path, default=ROOT / "docs" / "pictures", metavar="FOLDER", help="(default docs/pictures)"
    )
    for path in draw(parser.parse_args().into):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
