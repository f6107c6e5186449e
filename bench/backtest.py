"""Predicts published measurements from their smallest sizes, beside what others would predict.

    python bench/backtest.py DIR [--json FILE]

DIR holds CSV files in the analysis format. For every group with four or more sizes, the smallest m >= 3 are fitted and each
larger one up to four times the largest of them is predicted. Extra-P takes part where it is installed; it asks for NumPy 1
and runs with 2: `pip install --no-deps extrap "marshmallow<4" "pycubexr<3" tqdm`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Started as a file, only its own folder is on the path; from a checkout without installation the rest is beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from analysis.durations import parse_duration, time_unit
from analysis.epochs import EPOCH_GROUP, LAWS, fit_batches, predict_one
from analysis.fitting import FURTHEST, fit_group
from analysis.headers import PER_RANK_UNIT
from analysis.measured import COMMON_NODE, Measured, measured
from analysis.schema import COLUMNS, COUNTS, METRICS, WORDS
from bench.rivals import RIVALS, extrap
from hvdtrain.errors import UserError

FIRST = 3


@dataclass(frozen=True)
class Outcome:
    """One prediction: the logarithm of what was predicted over what was measured, and whether the interval held it."""

    table: str
    model: str
    kind: str
    log_error: float
    covered: bool | None


def load(path: Path) -> pd.DataFrame:
    """One file as the tidy table. Lenient where a user's file is not: unknown metrics and values that are none are left out, and
    counted on stderr.
    """
    raw = pd.read_csv(path, comment=None, skiprows=_comments(path), skipinitialspace=True)
    table = pd.DataFrame({name: raw.get(name, pd.Series(pd.NA, index=raw.index)) for name in COLUMNS})
    for name in ("n_gpus", "replicate", *(count for count in COUNTS if count != "n_gpus")):
        table[name] = pd.to_numeric(table[name], errors="coerce").round().astype("Int64")
    for name in WORDS:
        table[name] = table[name].astype("string")
    table.loc[table["metric"].str.startswith("epochs_to_"), "metric"] = "epochs_to_stability"
    written = zip(
        table["metric"].fillna(""), table["value"].astype("string").fillna(""), table["unit"].fillna(""), strict=True
    )
    table["value"] = [_value(*words) for words in written]
    each = table["metric"].eq("throughput") & table["unit"].str.contains(PER_RANK_UNIT).fillna(False)
    table["value"] *= table["n_gpus"].where(each, 1).astype("Float64").fillna(np.nan).astype(float)
    keep = table["metric"].isin(METRICS) & table["value"].gt(0) & np.isfinite(table["value"].astype(float))
    if not keep.all():
        print(f"{path.name}: {(~keep).sum()} of {len(keep)} rows are left out", file=sys.stderr)
    table = table[keep].copy()
    known = table["global_batch"].notna() & table["per_gpu_batch"].isna() & table["n_gpus"].notna()
    share = (table["global_batch"] / table["n_gpus"]).where(known)
    table["per_gpu_batch"] = table["per_gpu_batch"].fillna(share.where(share % 1 == 0).astype("Int64"))
    whole = table["per_gpu_batch"] * table["n_gpus"]
    table["global_batch"] = table["global_batch"].fillna(whole)
    return table.reset_index(drop=True)


def _value(metric: str, text: str, unit: str) -> float:
    """A time in s, whatever it is written in; NaN for what is no number."""
    try:
        if metric in METRICS and METRICS[metric].is_time:
            return parse_duration(text, unit if time_unit(unit) else "s")
        return float(text)
    except (ValueError, UserError):
        return float("nan")


def _comments(path: Path) -> list[int]:
    with open(path, encoding="utf-8-sig") as file:
        return [number for number, line in enumerate(file) if line.startswith("#")]


def scaling_outcomes(name: str, table: pd.DataFrame) -> Iterator[Outcome]:
    """Every prediction of every model on one table."""
    for data in measured(table[table["n_gpus"].notna()]):
        # Above the commonest size of a node several are meant, where nobody says how many.
        nodes = (
            data.nodes if data.known_nodes else np.where(data.n > COMMON_NODE, np.maximum(data.nodes, 2), data.nodes)
        )
        for m in range(FIRST, len(data.n)):
            part = _first(data, m)
            fit = fit_group(part)
            places = np.arange(m, len(data.n))
            places = places[data.n[places] <= FURTHEST * part.n[-1]]
            # Ours refuses what cannot be: nobody's prediction from it counts.
            if fit.posterior is None or not len(places):
                continue
            asked, truth = data.n[places], data.values[places]
            kinds = [_kind(float(nodes[m - 1]), float(nodes[place])) for place in places]
            middle, low, high = fit.quantiles(asked, data.nodes[places])
            held = (low <= truth) & (truth <= high)
            for kind, error, inside in zip(kinds, np.log(middle / truth), held, strict=True):
                yield Outcome(name, "hvdtrain", kind, float(error), bool(inside))
            for model, rival in RIVALS.items():
                found = rival(part.n, part.log_cost(part.values, part.n), asked)
                if found is None:
                    continue
                for kind, error in zip(kinds, np.log(part.value(found, asked) / truth), strict=True):
                    if np.isfinite(error):
                        yield Outcome(name, model, kind, float(error), None)


def _kind(last: float, asked: float) -> str:
    """Within one node, over several that were measured, or from one to several for the first time."""
    return "one_node" if asked <= 1 else "multi_node" if last > 1 else "crossing"


def _first(data: Measured, m: int) -> Measured:
    fields = {**data.__dict__}
    fields.update({name: fields[name][:m] for name in ("n", "nodes", "values", "replicates")})
    return Measured(**fields)


def epochs_outcomes(name: str, table: pd.DataFrame) -> Iterator[Outcome]:
    """Predictions of epochs at two to three times the largest batch that was fitted."""
    rows = table[table["metric"].eq("epochs_to_stability") & table["global_batch"].notna()]
    for _, own in rows.groupby([*EPOCH_GROUP, "gpu_type"], dropna=False, sort=False):
        by = own.groupby("global_batch")["value"].agg(["median", "size"]).sort_index()
        batches, epochs, counts = by.index.to_numpy(float), by["median"].to_numpy(float), by["size"].to_numpy(float)
        for m in range(FIRST, len(batches)):
            group = fit_batches(batches[:m], epochs[:m], counts[:m])
            for place in range(m, len(batches)):
                if not 2 <= batches[place] / batches[m - 1] <= 3:
                    continue
                row, truth, at = predict_one(group, int(batches[place])), epochs[place], batches[place : place + 1]
                covered = bool(row["low"] <= truth <= row["high"])
                yield Outcome(name, "hvdtrain", "epochs", float(np.log(row["value"] / truth)), covered)
                others = {law: float(group.predict_law(law, at)[0]) for law in LAWS if law != "hyperbolic"}
                others["last_point"] = float(epochs[m - 1])
                found = extrap(batches[:m], np.log(epochs[:m]), at)
                if found is not None and np.isfinite(found[0]):
                    others["extrap"] = float(np.exp(found[0]))
                for model, value in others.items():
                    yield Outcome(name, model, "epochs", float(np.log(max(value, 1e-9) / truth)), None)


def summary(outcomes: Sequence[Outcome]) -> dict[str, float | int | None]:
    """n, and in percent: median, 80th and 90th percentile of the absolute error, bias (median error); coverage as a fraction."""
    errors = 100 * np.expm1(np.array([outcome.log_error for outcome in outcomes]))
    held = [outcome.covered for outcome in outcomes if outcome.covered is not None]
    p50, p80, p90 = np.percentile(np.abs(errors), [50, 80, 90])
    return {
        "n": len(outcomes), "median": float(p50), "p80": float(p80), "p90": float(p90), "bias": float(np.median(errors)),
        "coverage": float(np.mean(held)) if held else None,
    }  # fmt: skip


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The JSON layout: scaling by model and kind, epochs by model."""
    found: dict[str, Any] = {"scaling": {}, "epochs": {}}
    for model in dict.fromkeys(outcome.model for outcome in outcomes):
        for kind in ("one_node", "multi_node", "crossing", "epochs"):
            own = [outcome for outcome in outcomes if outcome.model == model and outcome.kind == kind]
            if own and kind == "epochs":
                found["epochs"][model] = summary(own)
            elif own:
                found["scaling"].setdefault(model, {})[kind] = summary(own)
    return found


def show(outcomes: Sequence[Outcome]) -> None:
    """Print one line per kind, table and model, ours first; `all` pools the tables."""
    print(f"{'kind':<11}{'table':<34}{'model':<12}{'n':>6}{'median':>8}{'p80':>8}{'p90':>8}{'bias':>8}{'coverage':>10}")
    tables = list(dict.fromkeys(outcome.table for outcome in outcomes))
    for kind in ("one_node", "multi_node", "crossing", "epochs"):
        for table in [*tables, "all"]:
            here = [o for o in outcomes if o.kind == kind and table in ("all", o.table)]
            for model in dict.fromkeys(o.model for o in here):
                s = summary([o for o in here if o.model == model])
                coverage = "-" if s["coverage"] is None else f"{s['coverage']:.0%}"
                numbers = "".join(f"{s[name]:>7.1f}%" for name in ("median", "p80", "p90", "bias"))
                print(f"{kind:<11}{table[:32]:<34}{model:<12}{s['n']:>6}{numbers}{coverage:>10}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit status: 2 where DIR holds no table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, help="folder of CSV files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    options = parser.parse_args(arguments)
    paths = sorted(options.dir.glob("*.csv"))
    if not paths:
        print(f"error: {options.dir} holds no CSV file", file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    for path in paths:
        began = time.monotonic()
        table = load(path)
        outcomes += scaling_outcomes(path.stem, table)
        outcomes += epochs_outcomes(path.stem, table)
        print(f"{path.name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    show(outcomes)
    if options.json:
        options.json.write_text(json.dumps(report(outcomes), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
