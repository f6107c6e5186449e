"""Epochs to stability of published and synthetic curves, beside what others would say.

    python bench/stability.py DIR [--json FILE] [--repeats N]

DIR holds CSV files with the columns epoch and val_acc. For published curves nobody knows the truth, so the answers
stand side by side, with how far each moves when the last quarter of the curve is cut off. For synthetic curves the
answer is known: the first epoch from which the noise-free curve stays within the tolerance of its plateau.

The others: EarlyStopping (Keras' rule: patience 5, min_delta 0.001; its answer is the best epoch), argmax, kneed and ruptures
(`pip install kneed ruptures`; left out where they are not installed).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Started as a file, only its own folder is on the path; from a checkout without installation the rest is beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from analysis.stability import epochs_to_stability

Floats = NDArray[np.float64]
Detector = Callable[[Floats], "float | None"]
TOLERANCE = 0.01
LENGTHS = (30, 60, 100)
NOISES = (0.002, 0.005, 0.01)
REPEATS = 40


def ours(curve: Floats) -> float | None:
    """`analysis.epochs_to_stability`."""
    return epochs_to_stability(curve, TOLERANCE).epoch


def early_stopping(curve: Floats, patience: int = 5, min_delta: float = 0.001) -> float | None:
    """Keras' EarlyStopping on val_accuracy: the best epoch when `patience` epochs brought no gain; None if never."""
    best, at = -np.inf, 0
    for place, value in enumerate(curve):
        if value > best + min_delta:
            best, at = float(value), place
        elif place - at >= patience:
            return float(at + 1)
    return None


def argmax(curve: Floats) -> float | None:
    """The epoch of the best accuracy."""
    return None if not np.isfinite(curve).any() else float(np.nanargmax(curve) + 1)


def kneed(curve: Floats) -> float | None:
    """kneed's knee of a concave increasing curve, its defaults."""
    from kneed import KneeLocator

    finite = np.flatnonzero(np.isfinite(curve))
    found = KneeLocator(finite + 1, curve[finite], curve="concave", direction="increasing").knee
    return None if found is None else float(found)


def ruptures(curve: Floats) -> float | None:
    """ruptures' last change of mean (PELT, least squares, BIC penalty)."""
    import ruptures as rpt

    finite = np.flatnonzero(np.isfinite(curve))
    values = curve[finite]
    spread = float(np.median(np.abs(np.diff(values)))) * 1.4826 / np.sqrt(2) or 1e-4
    breaks = rpt.Pelt(model="l2", min_size=2).fit(values).predict(pen=3 * np.log(len(values)) * spread**2)
    return float(finite[breaks[-2]] + 1) if len(breaks) > 1 else None


def detectors() -> dict[str, Detector]:
    """Those that are installed."""
    found: dict[str, Detector] = {"hvdtrain": ours, "EarlyStopping": early_stopping, "argmax": argmax}
    for name, detector in (("kneed", kneed), ("ruptures", ruptures)):
        try:
            __import__(name)
        except ImportError:
            print(f"{name} is not installed and left out", file=sys.stderr)
        else:
            found[name] = detector
    return found


def synthetic(kind: str, length: int) -> tuple[Floats, float | None]:
    """A noise-free curve and the epoch from which it is stable; None where it never is."""
    t = np.arange(length, dtype=float)
    if kind == "exponential":
        curve = 0.85 - 0.75 * np.exp(-t / (length / 12))
    elif kind == "step schedule":
        first, then = 0.70 - 0.6 * np.exp(-t / (length / 20)), 0.82 - 0.12 * np.exp(-(t - length // 2) / (length / 40))
        curve = np.where(t < length // 2, first, then)
    elif kind == "overfit":
        curve = 0.85 - 0.75 * np.exp(-t / (length / 15)) - 0.08 * np.clip((t - 0.6 * length) / (0.4 * length), 0, None)
    else:
        return 0.30 + 0.5 * t / length, None
    level = curve.max() if kind == "overfit" else curve[-1]
    inside = np.abs(curve - level) <= TOLERANCE
    if kind == "overfit":
        return curve, float(np.flatnonzero(inside)[0] + 1)
    return curve, float(np.flatnonzero(~inside)[-1] + 2)


def trials(repeats: int = REPEATS) -> Iterator[tuple[str, int, float, Floats, float | None]]:
    """Every synthetic curve with its truth; NaN ones are exponential ones with three epochs lost."""
    generator = np.random.default_rng(7)
    for kind in ("exponential", "step schedule", "overfit", "never stable", "NaN"):
        for length in LENGTHS:
            curve, truth = synthetic("exponential" if kind == "NaN" else kind, length)
            for deviation in NOISES:
                for _ in range(repeats):
                    noisy = curve + generator.normal(0, deviation, length)
                    if kind == "NaN":
                        noisy[generator.choice(length - 5, 3, replace=False)] = np.nan
                    yield kind, length, deviation, noisy, truth


def measure(named: dict[str, Detector], repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Bias and spread of every detector on every kind and noise: of (answer - truth) in percent of the curve's length.

    `answered` is the share of curves with an answer; for "never stable" none is right, and it is the share of false ones.
    """
    cells: dict[tuple[str, float, str], list[float | None]] = {}
    for kind, length, deviation, curve, truth in trials(repeats):
        for name, detector in named.items():
            found = detector(curve)
            error = None if found is None else 100 * (found - (truth if truth is not None else found)) / length
            cells.setdefault((kind, deviation, name), []).append(error)
    rows = []
    for (kind, deviation, name), errors in cells.items():
        given = np.array([error for error in errors if error is not None])
        never = kind == "never stable" or not len(given)
        rows.append({
            "curve": kind, "noise": deviation, "detector": name, "n": len(errors), "answered": len(given) / len(errors),
            "bias": None if never else float(np.mean(given)),
            "spread": None if never else float(np.std(given)),
            "rmse": None if never else float(np.sqrt(np.mean(given**2))),
        })  # fmt: skip
    return rows


def published(folder: Path, named: dict[str, Detector]) -> list[dict[str, Any]]:
    """Every detector's answer on each file, whole and on its first three quarters; epochs count as 1, 2, ..."""
    rows = []
    for path in sorted(folder.glob("*.csv")):
        with open(path, encoding="utf-8-sig") as file:
            comments = [number for number, line in enumerate(file) if line.startswith("#")]
        table = pd.read_csv(path, skiprows=comments).drop_duplicates("epoch", keep="last").sort_values("epoch")
        curve = table["val_acc"].to_numpy(float)
        row: dict[str, Any] = {"curve": path.stem, "epochs": len(curve)}
        for name, detector in named.items():
            row[name], row[f"{name} at 75 %"] = detector(curve), detector(curve[: int(0.75 * len(curve))])
        row["status"] = epochs_to_stability(curve, TOLERANCE).status
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit status: 2 where DIR holds no curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, help="folder of CSV files with epoch and val_acc")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N", help=f"noisy copies of each curve (default {REPEATS})"
    )
    options = parser.parse_args(arguments)
    if not sorted(options.dir.glob("*.csv")):
        print(f"error: {options.dir} holds no CSV file", file=sys.stderr)
        return 2
    named = detectors()
    real = published(options.dir, named)
    print("synthetic curves (about 20 s) ...", file=sys.stderr, flush=True)
    known = measure(named, options.repeats)
    with pd.option_context("display.width", 250, "display.max_columns", 30, "display.max_rows", 200):
        print(pd.DataFrame(real).to_string(index=False, na_rep="-"), "\n")
        print(pd.DataFrame(known).round(3).to_string(index=False, na_rep="-"))
    if options.json:
        options.json.write_text(json.dumps({"published": real, "synthetic": known}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
