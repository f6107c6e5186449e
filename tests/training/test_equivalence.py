"""N ranks must end where one rank ends that trains on the union of their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worlds import run_world

JOB = Path(__file__).with_name("equivalence_job.py")
UNION = 12
#: Largest difference of any parameter from one rank's. Adam divides by small numbers; bfloat16 has 8 bits.
TOLERANCE = {"adam": 1e-5, "adamw": 1e-5, "double": 1e-12, "bfloat16_on_the_wire": 3e-2}
EXACT = 1e-6

State = dict[str, dict[str, torch.Tensor]]


def train(ranks: int, launcher: str, out: Path) -> tuple[State, dict[str, Any]]:
    ended = run_world(ranks, JOB, "--union", UNION, "--out", out, options=["--launcher", launcher])
    assert ended.status == 0, ended.err
    return torch.load(out), json.loads(out.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[State, dict[str, Any]]:
    """Where one rank ends: what the others are held against."""
    return train(1, "none", tmp_path_factory.mktemp("one") / "state.pt")


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "launcher"), [(n, launcher) for launcher in ("local", "mpirun") for n in (2, 3, 4)])
def test_ranks_end_where_one_rank_on_the_union_ends(
    ranks: int, launcher: str, one_rank: tuple[State, dict[str, Any]], tmp_path: Path, record_property: Any
) -> None:
    expected, said = one_rank
    states, told = train(ranks, launcher, tmp_path / "state.pt")
    assert told["alike"], "ranks ended with different parameters"
    assert states.keys() == expected.keys()
    for name, state in states.items():
        difference = max((state[key] - expected[name][key]).abs().max().item() for key in state)
        print(f"{launcher} {ranks} ranks  {name}: {difference:.1e}")
        record_property(name, difference)
        assert difference <= TOLERANCE.get(name, EXACT), f"{name} differs by {difference:.1e}"
    for epoch, reference in zip(told["metrics"], said["metrics"], strict=True):
        # Losses, accuracies and sample counts are those of all samples, though 101 and 43 divide by no number of ranks.
        assert epoch == pytest.approx(reference, abs=1e-6)
        assert epoch["samples"] == 101


def test_an_overflow_was_noticed(one_rank: tuple[State, dict[str, Any]]) -> None:
    """Or `overflow_on_one_rank` would compare training without one."""
    assert one_rank[0]["overflow_on_one_rank"]["scale"].item() == 8.0


@pytest.mark.ranks
@pytest.mark.parametrize(
    "between", ["nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "optimizer.zero_grad(set_to_none=False)"]
)
def test_gradients_changed_while_they_are_averaged_are_noticed(between: str, tmp_path: Path) -> None:
    script = tmp_path / "clips_too_early.py"
    script.write_text(
        "import torch\nfrom torch import nn\nimport hvdtrain.torch as ht\n"
        "ht.init()\nmodel = nn.Linear(4, 4)\n"
        "model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        f"model(torch.ones(2, 4)).sum().backward()\n{between}\noptimizer.step()\nprint('stepped')\n"
    )
    ended = run_world(2, script, options=["--run-dir", str(tmp_path / "run")])
    assert ended.status == 2
    assert "stepped" not in ended.out
    assert "Call hvdtrain.torch.synchronize(optimizer)" in ended.err


@pytest.mark.ranks
def test_two_backward_passes_for_one_step_are_told_of_no_sync(tmp_path: Path) -> None:
    script = tmp_path / "backward_twice.py"
    script.write_text(
        "import torch\nfrom torch import nn\nimport hvdtrain.torch as ht\n"
        "ht.init()\nmodel = nn.Linear(4, 4)\n"
        "model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "for _ in range(2):\n    model(torch.ones(2, 4)).sum().backward()\n"
    )
    ended = run_world(2, script, options=["--run-dir", str(tmp_path / "run")])
    assert ended.status == 2
    assert "no_sync(optimizer)" in ended.err


def test_training_moves_the_parameters(one_rank: tuple[State, dict[str, Any]]) -> None:
    """Or the comparison above would hold for ranks that do nothing."""
    states, told = one_rank
    assert all(any(tensor.abs().max() > 0.05 for tensor in state.values()) for state in states.values())
    losses = [epoch["train_loss"] for epoch in told["metrics"]]
    assert losses[0] - losses[-1] > 0.01
