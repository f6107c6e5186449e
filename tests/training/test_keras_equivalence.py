"""N ranks of a Keras training must end where one rank ends that trains on the union of their data."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds import run_world

JOB = Path(__file__).with_name("keras_equivalence_job.py")
UNION = 12
#: Largest difference of any weight from one rank's, where it is not EXACT: formats of 16 bits on the wire or in the layers, and
#: optimizers that divide by small numbers.
EXACT = 1e-6
TOLERANCE = {
    "adam": 1e-5,
    "adamw": 1e-5,
    "rmsprop": 1e-4,
    "nadam": 1e-5,
    "adadelta": 1e-5,
    "eager_accumulation": 1e-5,
    "sparse_adam_clipped": 1e-5,
    "gradients_none": 1e-5,
    "fp16_on_the_wire": 2e-3,
    "fp16_on_the_wire_eager": 2e-3,
    "bf16_on_the_wire": 2e-2,
    "bf16_on_the_wire_eager": 2e-2,
    "mixed_bfloat16": 3e-2,
    "mixed_float16": 3e-3,
    "mixed_float16_accumulation": 5e-3,
    "scaled_by_compile": 3e-3,
}
#: With four ranks of TensorFlow some cases: each world compiles all its graphs anew, which on two cores takes minutes.
SOME = (
    *(
        "sgd_momentum",
        "adamw",
        "global_clipnorm",
        "accumulation",
        "eager",
        "last_step_shared_out",
        "sparse_adam_clipped",
        "tokens_last_step",
    ),
    *("bf16_on_the_wire", "mixed_float16", "overflow_on_one_rank"),
)
FEWER = [("tensorflow", 4, "mpirun")]
WORLDS = [(backend, *world) for backend in ("tensorflow", "torch") for world in ((2, "local"), (4, "mpirun"))]


class Trained:
    """What one world ended with."""

    def __init__(self, backend: str, ranks: int, launcher: str, folder: Path) -> None:
        out = folder / "state.npz"
        cases = ("--cases", *SOME) if (backend, ranks, launcher) in FEWER else ()
        ended = run_world(
            ranks,
            JOB,
            "--union",
            UNION,
            "--out",
            out,
            *cases,
            options=["--launcher", launcher],
            patience=280.0,
            KERAS_BACKEND=backend,
            PYTHONWARNINGS="ignore",
        )
        assert ended.status == 0, ended.err
        with np.load(out) as arrays:
            self.arrays = dict(arrays)
        self.report: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())

    def cases(self) -> list[str]:
        return sorted({name.split("/")[0] for name in self.arrays})


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Where one rank ends on a backend: what the others are held against."""
    return cache(lambda backend: Trained(backend, 1, "none", tmp_path_factory.mktemp(backend)))


@pytest.mark.ranks
@pytest.mark.parametrize(("backend", "ranks", "launcher"), WORLDS)
def test_ranks_end_where_one_rank_on_the_union_ends(
    backend: str,
    ranks: int,
    launcher: str,
    one_rank: Callable[[str], Trained],
    tmp_path: Path,
    record_property: Any,
) -> None:
    expected = one_rank(backend)
    trained = Trained(backend, ranks, launcher, tmp_path)
    assert trained.report["unlike"] == [], "ranks ended with different weights"
    if (backend, ranks, launcher) in FEWER:
        assert trained.cases() == sorted(SOME)
    else:
        assert trained.arrays.keys() == expected.arrays.keys()
    failed = []
    for case in trained.cases():
        names = [name for name in expected.arrays if name.split("/")[0] == case]
        seen = max(float(np.abs(trained.arrays[name] - expected.arrays[name]).max()) for name in names)
        print(f"{backend} {launcher} {ranks} ranks  {case}: {seen:.1e}")
        record_property(case, seen)
        if not seen <= TOLERANCE.get(case, EXACT):
            failed.append(f"{case} differs by {seen:.1e}")
    assert not failed
    # Losses and metrics are those of all samples, though 101 and 43 divide by no number of ranks; callbacks decide alike.
    metrics, reference = trained.report["metrics"], expected.report["metrics"]
    assert metrics.keys() == reference.keys()
    for name, values in reference.items():
        assert metrics[name] == pytest.approx(values, abs=1e-5), name
    ranks_statistics = [each["statistics"] for each in trained.report["normalised"]]
    assert all(each == ranks_statistics[0] for each in ranks_statistics)
    seeds = [tuple(each["seed"]) for each in trained.report["normalised"]]
    assert len(set(seeds)) == ranks, "layers of all ranks draw the same random numbers"


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_what_the_cases_are_about_did_happen(backend: str, one_rank: Callable[[str], Trained]) -> None:
    """Or they would compare training without it."""
    trained = one_rank(backend)
    arrays, report = trained.arrays, trained.report
    assert arrays["overflow_on_one_rank/scale/0"] == 32768.0 / 4  # once in each epoch
    assert arrays["mixed_float16/scale/0"] == 32768.0
    for case in ("gradients_none", "gradients_none_eager"):
        # A layer without a gradient stays as it began, whatever the weight decay; the other one does not.
        began = {part: arrays[f"{case}/began/{part}"] for part in range(4)}
        moved = [part for part in range(4) if not np.array_equal(began[part], arrays[f"{case}/weights/{part}"])]
        assert moved in ([0, 1], [2, 3]), (case, moved)
    stopped = len(report["metrics"]["loss"])
    assert 2 < stopped < 12, "early stopping never stopped"
    assert report["metrics"]["last_rate"][0] < 0.1, "the plateau was never noticed"
