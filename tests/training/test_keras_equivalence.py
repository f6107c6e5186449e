"""N ranks of a Keras training must end where one rank ends that trains on the union of their data."""

from __future__ import annotations

import json
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
    "bf16_on_the_wire": 2e-2,
    "bf16_on_the_wire_eager": 2e-2,
    "mixed_bfloat16": 3e-2,
    "mixed_float16": 3e-3,
    "mixed_float16_accumulation": 5e-3,
    "scaled_by_compile": 3e-3,
}
GLOO_FOUR = ("sgd_momentum", "adam", "accumulation", "last_step_shared_out", "sparse", "overflow_on_one_rank")
WORLDS = [(2, "local"), (4, "local"), (2, "mpirun"), (4, "mpirun")]
#: On PyTorch the transport is the one that tests/training/test_equivalence.py has in all its forms.
FEWER = [(4, "local"), (2, "mpirun")]


class Trained:
    """What one world ended with."""

    def __init__(self, backend: str, ranks: int, launcher: str, folder: Path) -> None:
        out = folder / "state.npz"
        # Four Gloo ranks on two cores take minutes to compile all cases; MPI runs all of them with as many ranks.
        some = ["--cases", *GLOO_FOUR] if (ranks, launcher) == (4, "local") else []
        ended = run_world(
            ranks,
            JOB,
            "--union",
            UNION,
            "--out",
            out,
            *some,
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


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def one_rank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Trained]:
    """Where one rank ends: what the others are held against."""
    return request.param, Trained(request.param, 1, "none", tmp_path_factory.mktemp("one"))


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "launcher"), WORLDS)
def test_ranks_end_where_one_rank_on_the_union_ends(
    ranks: int, launcher: str, one_rank: tuple[str, Trained], tmp_path: Path, record_property: Any
) -> None:
    backend, expected = one_rank
    if backend == "torch" and (ranks, launcher) in FEWER:
        return
    trained = Trained(backend, ranks, launcher, tmp_path)
    assert trained.report["unlike"] == [], "ranks ended with different weights"
    assert trained.cases() == (sorted(GLOO_FOUR) if (ranks, launcher) == (4, "local") else expected.cases())
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


def test_what_the_cases_are_about_did_happen(one_rank: tuple[str, Trained]) -> None:
    """Or they would compare training without it."""
    _, trained = one_rank
    arrays, report = trained.arrays, trained.report
    assert arrays["overflow_on_one_rank/scale/0"] == 32768.0 / 4  # once in each epoch
    assert arrays["mixed_float16/scale/0"] == 32768.0
    initial = arrays["gradients_none/weights/2"]
    assert np.abs(initial).max() > 0  # a layer without gradient is not decayed away, see below
    stopped = len(report["metrics"]["loss"])
    assert 2 < stopped < 12, "early stopping never stopped"
    assert report["metrics"]["last_rate"][0] < 0.1, "the plateau was never noticed"
