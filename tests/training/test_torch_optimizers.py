"""More than one optimizer: what is refused, and what a checkpoint keeps. (That they train right: `equivalence_optimizers`.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds import run_world

BEGIN = """
import sys, torch
from torch import nn
import hvdtrain.torch as ht
world = ht.init(sys.argv[1])
model = nn.Linear(4, 4)
trained, first = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""
BACKWARD = "trained(torch.ones(2, 4)).sum().backward()\n"
AGAIN = "trained, second = ht.distribute(trained, torch.optim.Adam([model.bias], lr=0.1))\n"
OUTSIDE = "ht.distribute(trained, torch.optim.Adam([nn.Parameter(torch.ones(2)), model.bias], lr=0.1))\n"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "strategy", "rest", "told"),
    [
        (2, "horovod", AGAIN + BACKWARD + "second.step()\nfirst.step()", "bias of this SGD were given to another optimizer"),
        (2, "ddp", AGAIN + BACKWARD + "first.step()", "bias of this SGD were given to another optimizer"),
        (1, "horovod", AGAIN + BACKWARD + "first.step()", "bias of this SGD were given to another optimizer"),
        (2, "horovod", BACKWARD + AGAIN, "distribute() before backward(), or after the step"),
        (2, "ddp", OUTSIDE, "1 of 2 parameters of the optimizer are not the model's"),
    ],
)  # fmt: skip
def test_optimizers_that_cannot_be_kept_in_step_are_refused(
    ranks: int, strategy: str, rest: str, told: str, tmp_path: Path
) -> None:
    script = tmp_path / "mistaken.py"
    script.write_text(f"{BEGIN}{rest}\nprint('went on')\n")
    ended = run_world(ranks, script, strategy, options=["--launcher", "local" if ranks > 1 else "none"])
    assert ended.status == 2, ended.err
    assert "went on" not in ended.out
    assert told in ended.err
    assert "Traceback" not in ended.err


KEEPS = """
import json, sys, torch
from torch import nn
import hvdtrain.torch as ht
world = ht.init(sys.argv[1])
torch.manual_seed(0)
maker, judge = nn.Linear(4, 4), nn.Linear(4, 4)
maker, of_maker = ht.distribute(maker, torch.optim.SGD(maker.parameters(), lr=0.1))
judge, of_judge = ht.distribute(judge, torch.optim.Adam(judge.parameters(), lr=0.01))
checkpoints = ht.Checkpoints(maker, of_maker, folder=sys.argv[2], states={"judge": judge, "of_judge": of_judge})
before = checkpoints.resume()
for _ in range(3 - before):
    judge(maker(torch.ones(2, 4))).sum().backward()
    of_maker.step(), of_judge.step()
    of_maker.zero_grad(), of_judge.zero_grad()
    before += 1
    checkpoints.save(before)
    if sys.argv[3] == str(before):
        break
if world.rank == 0:
    moments = of_judge.state_dict()["state"][0]
    print(json.dumps({"weights": [float(p.sum()) for p in (*maker.parameters(), *judge.parameters())],
                      "steps": float(moments["step"]), "moment": float(moments["exp_avg"].sum()),
                      "rates": [each.param_groups[0]["lr"] for each in (of_maker, of_judge)]}))
"""


@pytest.mark.ranks
@pytest.mark.parametrize(("strategy", "then"), [("horovod", 2), ("ddp", 2), ("horovod", 1)])
def test_a_checkpoint_keeps_a_second_model_and_its_optimizer(strategy: str, then: int, tmp_path: Path) -> None:
    """Stopped after two of three steps; every rank sees the same samples, so that only rates depend on their number."""
    script = tmp_path / "keeps.py"
    script.write_text(KEEPS)

    def run(ranks: int, folder: str, stop_after: int, kind: str = strategy) -> dict[str, object]:
        launcher = "local" if ranks > 1 else "none"
        ended = run_world(ranks, script, kind, tmp_path / folder, stop_after, options=["--launcher", launcher])
        assert ended.status == 0, ended.err
        found: dict[str, object] = json.loads(ended.out.splitlines()[-1])
        return found

    whole = run(2, "whole", 3)
    half = run(2, "halves", 2)
    assert half != whole
    resumed = run(then, "halves", 3)
    assert resumed["steps"] == 3
    assert resumed["rates"] == pytest.approx([0.1 * then, 0.01 * then**0.5])
    if then == 2:
        assert resumed == whole
