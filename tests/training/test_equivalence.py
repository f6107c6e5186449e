"""N ranks must end where one rank ends that trains on the union of their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import equivalence_optimizers, equivalence_steps
from tests.worlds import run_world

JOB = Path(__file__).with_name("equivalence_job.py")
UNION = 12
HOROVOD_ONLY = equivalence_steps.HOROVOD_ONLY | equivalence_optimizers.HOROVOD_ONLY
#: Largest difference of any parameter from one rank's. Adam divides by small numbers; half precision has 11 bits, bfloat16 8.
TOLERANCE = {
    **dict.fromkeys(("adam", "adamw", "adamw_fused", "nadam", "rmsprop", "adagrad", "fit_adamw_step"), 1e-5),
    **dict.fromkeys(("sparse_adam", "sparse_sgd", "sparse_adagrad", "fit_sync_batch_norm"), 1e-5),
    "double": 1e-12,
    "compressed": 2e-3,
    "compressed_complex": 2e-3,
    "fit_fp16": 3e-3,
    **dict.fromkeys(("bfloat16_on_the_wire", "compressed_bfloat16", "fit_bf16"), 3e-2),
}
EXACT = 1e-6
#: Largest relative difference of any number that `fit` reports.
REPORTED = {"fit_bf16": 3e-2, "fit_fp16": 5e-3, "fit_sync_batch_norm": 1e-5}

State = dict[str, dict[str, torch.Tensor]]


def train(ranks: int, launcher: str, out: Path, strategy: str = "horovod") -> tuple[State, dict[str, Any]]:
    arguments = ("--union", UNION, "--out", out, "--strategy", strategy)
    ended = run_world(ranks, JOB, *arguments, options=["--launcher", launcher])
    assert ended.status == 0, ended.err
    return torch.load(out), json.loads(out.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[State, dict[str, Any]]:
    """Where one rank ends: what the others are held against."""
    return train(1, "none", tmp_path_factory.mktemp("one") / "state.pt")


WORLDS = [(2, "local", "horovod"), (3, "local", "horovod"), (4, "mpirun", "horovod"), (4, "local", "ddp")]


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "launcher", "strategy"), WORLDS)
def test_ranks_end_where_one_rank_on_the_union_ends(
    ranks: int,
    launcher: str,
    strategy: str,
    one_rank: tuple[State, dict[str, Any]],
    tmp_path: Path,
    record_property: Any,
) -> None:
    expected, said = one_rank
    states, told = train(ranks, launcher, tmp_path / "state.pt", strategy)
    assert told["differing"] == [], "ranks ended with different parameters"
    assert expected.keys() - states.keys() == (HOROVOD_ONLY.keys() if strategy == "ddp" else set())
    problems = []
    for name, state in states.items():
        difference = max((state[key] - expected[name][key]).abs().max().item() for key in state)
        print(f"{strategy} {launcher} {ranks} ranks  {name}: {difference:.1e}")
        record_property(name, difference)
        if not difference <= TOLERANCE.get(name, EXACT):
            problems.append(f"{name} differs by {difference:.1e}")
    assert problems == []
    # Losses, accuracies and sample counts are those of all samples, though 101 and 43 divide by no number of ranks.
    for name, history in told["histories"].items():
        assert len(history) == len(said["histories"][name]), name
        for epoch, reference in zip(history, said["histories"][name], strict=True):
            assert epoch == pytest.approx(reference, rel=REPORTED.get(name, 1e-5), abs=REPORTED.get(name, 1e-6)), name


def test_an_overflow_was_noticed(one_rank: tuple[State, dict[str, Any]]) -> None:
    """Or `overflow_on_one_rank` would compare training without one."""
    assert one_rank[0]["overflow_on_one_rank"]["scale"].item() == 8.0


def test_step_hooks_run_once(one_rank: tuple[State, dict[str, Any]]) -> None:
    assert one_rank[0]["scheduler"]["hooks"].tolist() == [8, 8]


def test_decisions_were_taken(one_rank: tuple[State, dict[str, Any]]) -> None:
    """Or a plateau and an early stop that never come would be compared."""
    history = one_rank[1]["histories"]["decisions"]
    assert len(history) < 40
    assert history[-1]["lr"] < history[0]["lr"] / 2


def test_training_moves_the_parameters(one_rank: tuple[State, dict[str, Any]]) -> None:
    """Or the comparison above would hold for ranks that do nothing."""
    states, told = one_rank
    assert all(any(tensor.abs().max() > 0.05 for tensor in state.values()) for state in states.values())
    losses = [epoch["train_loss"] for epoch in told["histories"]["fit_uneven"]]
    assert losses[0] - losses[-1] > 0.01


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "launcher"), [(2, "local"), (4, "mpirun")])
def test_what_depends_on_the_division_of_data_agrees_with_plain_torch(ranks: int, launcher: str) -> None:
    ended = run_world(ranks, Path(__file__).with_name("reference_job.py"), options=["--launcher", launcher])
    assert ended.status == 0, ended.err
    found = json.loads(ended.out.splitlines()[-1])
    print(f"{launcher} {ranks} ranks  {found}")
    assert found.keys() == {"join_iterable", "join_map", "adascale", "noise_scale", "averaged_statistics",
                            "nothing_on_other_ranks"}  # fmt: skip
    assert found["noise_scale"] <= 1e-4
    assert all(difference <= EXACT for name, difference in found.items() if name != "noise_scale")
