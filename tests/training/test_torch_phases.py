"""Several trainings in one script, and what a restart makes of rates and random numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hvdtrain._torch.checkpoints import _rescale_scheduler
from tests.worlds import Ended, run_world

BEGIN = """
import json, os, signal, sys
import numpy as np
import torch
from torch import nn
import hvdtrain.torch as ht
from hvdtrain import lr
world = ht.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 5))
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 5, (64,)))
loss = nn.CrossEntropyLoss()
"""
PHASES = """
train = ht.loader(data, 4, seed=3)
next(iter(train))
rates = []
for _ in range(2):
    trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup_epochs=2)
    rates.append([e.lr for e in ht.fit(trained, optimizer, loss, train, epochs=4, schedule=lr.cosine(4))])
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup_epochs=2)
rates.append([])
for _ in range(2):
    rates[2] += [e.lr for e in ht.fit(trained, optimizer, loss, train, epochs=2, schedule=lr.cosine(4))]
if world.rank == 0:
    print(json.dumps(rates))
"""
INTERRUPTED = """
class Stopping(nn.Module):
    def forward(self, x):
        if self.training and world.rank == 1 and train.epoch == 8 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
        return x

model.append(Stopping())
"""


def run(ranks: int, script: str, folder: Path, *arguments: object) -> Ended:
    path = folder / "script.py"
    path.write_text(BEGIN + script)
    launcher = "local" if ranks > 1 else "none"
    return run_world(ranks, path, *arguments, options=["--launcher", launcher, "--run-dir", str(folder / "run")])


@pytest.mark.ranks
def test_schedule_and_warm_up_count_the_epochs_of_the_optimizer(tmp_path: Path) -> None:
    ended = run(2, PHASES, tmp_path)
    assert ended.status == 0, ended.err
    first, second, apart = json.loads(ended.out.splitlines()[-1])
    assert first == second == apart
    assert len(set(first)) == 4 and first[1] > first[-1]
    recorded = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    # The batch that was looked at took an epoch's number.
    assert recorded == list(range(2, 14))


@pytest.mark.ranks
def test_a_second_training_that_was_interrupted_goes_on_with_its_own_rates(tmp_path: Path) -> None:
    stopped = run(2, INTERRUPTED + PHASES, tmp_path, tmp_path / "mark")
    assert stopped.status == 75, stopped.err
    ended = run(2, INTERRUPTED + PHASES, tmp_path, tmp_path / "mark")
    assert ended.status == 0, ended.err
    first, second, apart = json.loads(ended.out.splitlines()[-1])
    assert first == second == apart


NUMPY = """
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=np.logspace(-3, -1, 3)[1]))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / 90)))
class Own:
    def state_dict(self):
        return {"array": np.arange(3), "mean": np.float32(0.5), "path": os.path.curdir if len(sys.argv) < 2 else Own()}
    def load_state_dict(self, state):
        assert state["array"].tolist() == [0, 1, 2] and state["mean"] == 0.5
checkpoints = ht.Checkpoints(trained, optimizer, states={"scheduler": scheduler, "own": Own()}, folder="kept")
epoch = checkpoints.resume()
print("after", epoch, type(optimizer.param_groups[0]["lr"]).__name__)
trained(torch.ones(2, 8)).sum().backward()
optimizer.step(), scheduler.step()
checkpoints.save(epoch + 1)
"""


def test_numbers_of_numpy_in_a_checkpoint_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for epoch in range(2):
        ended = run(1, NUMPY, tmp_path)
        assert ended.status == 0, ended.err
        assert f"after {epoch} float64" in ended.out


def test_a_checkpoint_with_an_object_in_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(1, NUMPY, tmp_path, "object").status == 0
    ended = run(1, NUMPY, tmp_path, "object")
    assert ended.status == 2
    assert "holds more than numbers, tensors, lists and dictionaries" in ended.err
    assert "Own" in ended.err and "Traceback" not in ended.err


def test_schedulers_inside_of_others_take_the_rates_of_the_new_world() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.4)
    parts: list[Any] = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
    ]
    _rescale_scheduler(torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[5]), {id(optimizer): [2.0]})
    assert [part.base_lrs for part in parts] == [[0.8], [0.8]]


OWN_RATES = """
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
for _ in range(2):
    trained(torch.ones(2, 8)).sum().backward()
    optimizer.step(), scheduler.step(), optimizer.zero_grad()
"""


@pytest.mark.ranks
def test_a_scheduler_that_replaces_the_scaled_rate_is_named_once(tmp_path: Path) -> None:
    ended = run(2, OWN_RATES, tmp_path)
    assert ended.status == 0, ended.err
    assert ended.err.count("give it max_lr (and base_lr) times 2") == 1
    cyclic = OWN_RATES.replace("OneCycleLR(optimizer, max_lr=0.1, total_steps=10)", "CyclicLR(optimizer, 0.01, 0.1)")
    assert run(2, cyclic, tmp_path).err.count("give it max_lr (and base_lr) times 2") == 1
    usual = OWN_RATES.replace("OneCycleLR(optimizer, max_lr=0.1, total_steps=10)", "LinearLR(optimizer, 0.1)")
    assert "max_lr" not in run(2, usual, tmp_path).err
    assert "max_lr" not in run(1, OWN_RATES, tmp_path).err


ONE_FOLDER = """
class Stopping(nn.Module):
    def forward(self, x):
        if self.training and phase == 1 and train.epoch == int(sys.argv[3]) and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
        return x

model.append(Stopping())
histories = []
for phase, kind in enumerate((torch.optim.SGD, torch.optim.AdamW)):
    if phase == 0 or sys.argv[2] == "other":
        trained, optimizer = ht.distribute(model, kind(model.parameters(), lr=0.01))
        train = ht.loader(data, 4, seed=3 + phase)
    histories.append([[e.epoch, e.train_loss, e.lr] for e in ht.fit(trained, optimizer, loss, train, epochs=5, checkpoints="kept")])
print(json.dumps(histories))
"""


@pytest.mark.parametrize(("phase", "epoch"), [("other", 3), ("same", 8)])
def test_trainings_of_a_script_that_are_given_one_folder_keep_apart(
    phase: str, epoch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an optimizer and a loader of its own, or both the same: the second one is stopped in its third epoch."""
    ends = []
    for name, status in (("through", 0), ("parts", 75), ("parts", 0)):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        ended = run(1, ONE_FOLDER, tmp_path / name, "/" if name == "through" else tmp_path / "mark", phase, epoch)
        assert ended.status == status, ended.err
        ends.append(ended.out)
    through, parts = (json.loads(each.splitlines()[-1]) for each in (ends[0], ends[2]))
    assert [len(each) for each in through] == [5, 5]
    assert parts == through
    lines = (tmp_path / "parts" / "run" / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 11))
    assert "checkpoints go to kept-2, for another training of this process has kept" in ends[0]


THEN_A_LOOP = """
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
train = ht.loader(data, 4, seed=3)
ht.fit(trained, optimizer, loss, train, epochs=2)
for each in range(2):
    checkpoints = ht.Checkpoints(trained, optimizer, train)
    first = checkpoints.resume()
    for epoch in range(first, 3):
        checkpoints.save(epoch + 1)
    print("loop after", first, "in", checkpoints.store.folder.name)
ht.fit(trained, optimizer, loss, train, epochs=1)
"""


def test_a_loop_after_a_fit_has_a_folder_of_its_own_and_finds_it_again(tmp_path: Path) -> None:
    for first in (0, 3):
        ended = run(1, THEN_A_LOOP, tmp_path)
        assert ended.status == 0, ended.err
        told = [line for line in ended.out.splitlines() if line.startswith("loop after")]
        assert told == [f"loop after {first} in checkpoints-2", "loop after 3 in checkpoints-2"]
        folders = sorted(path.name for path in (tmp_path / "run").glob("checkpoints*"))
        assert folders == ["checkpoints", "checkpoints-2", "checkpoints-3"]


LAST_STEP = """
class Stopping(nn.Module):
    steps = 0
    def forward(self, x):
        self.steps += self.training
        if self.steps == 32 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
        return x

model.append(Stopping())
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
history = ht.fit(trained, optimizer, loss, ht.loader(data, 4, seed=3), epochs=3)
print(json.dumps([[e.epoch, e.lr, e.grad_norm, e.train_loss, e.samples] for e in history]))
"""


def test_an_epoch_that_was_left_after_its_last_step_has_its_rate_and_norm(tmp_path: Path) -> None:
    (tmp_path / "through").mkdir()
    through = run(1, LAST_STEP, tmp_path / "through", "/")
    assert through.status == 0, through.err
    stopped = run(1, LAST_STEP, tmp_path, tmp_path / "mark")
    assert stopped.status == 75, stopped.err
    assert "all ranks stopped after step 32," in stopped.err
    ended = run(1, LAST_STEP, tmp_path, tmp_path / "mark")
    assert ended.status == 0, ended.err
    history = json.loads(ended.out.splitlines()[-1])
    assert [entry[1] for entry in history] == [0.1] * 3
    assert history == json.loads(through.out.splitlines()[-1])


RESUMED = """
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
drawn = []
def drawing(output, target):
    drawn.append(float(torch.rand(1)))
    return loss(output, target)
ht.fit(trained, optimizer, drawing, ht.loader(data, 4, seed=3), epochs=int(sys.argv[1]))
drawn = ht.gather_objects(drawn[-1])
if world.rank == 0:
    print(json.dumps(drawn))
"""


@pytest.mark.ranks
def test_ranks_draw_different_numbers_after_a_resume_on_another_number_of_ranks(tmp_path: Path) -> None:
    for ranks in (2, 3):
        ended = run(ranks, RESUMED, tmp_path, ranks)
        assert ended.status == 0, ended.err
        assert len(set(json.loads(ended.out.splitlines()[-1]))) == ranks
    assert "of 2 ranks" in ended.err


ZERO_RATES = """
body, head = model[0], model[2]
groups = [{"params": body.parameters(), "lr": 0.0}, {"params": head.parameters()}]
trained, optimizer = ht.distribute(model, torch.optim.SGD(groups, lr=0.1))
judge = nn.Linear(8, 5)
judge, of_judge = ht.distribute(judge, torch.optim.Adam(judge.parameters(), lr=0.1))
scheduler = torch.optim.lr_scheduler.LambdaLR(of_judge, lambda step: 1.0)
states = {"judge": judge, "of_judge": of_judge, "scheduler": scheduler}
checkpoints = ht.Checkpoints(trained, optimizer, states=states)
epoch = checkpoints.resume()
for each, one in ((trained, optimizer), (judge, of_judge)):
    each(torch.ones(2, 8)).sum().backward()
    one.step()
scheduler.step()
checkpoints.save(epoch + 1)
if world.rank == 0:
    print(json.dumps([[g["lr"] for g in optimizer.param_groups], scheduler.base_lrs, of_judge.param_groups[0]["lr"]]))
"""


@pytest.mark.ranks
def test_rates_of_every_optimizer_and_scheduler_follow_the_number_of_ranks(tmp_path: Path) -> None:
    for ranks in (2, 2, 3):
        ended = run(ranks, ZERO_RATES, tmp_path)
        assert ended.status == 0, ended.err
        rates, base, of_judge = json.loads(ended.out.splitlines()[-1])
        # SGD's rate grows with the ranks, Adam's with their square root; a rate of 0 stays one.
        assert rates == [0.0, pytest.approx(0.1 * ranks)]
        assert base == [pytest.approx(0.1 * ranks**0.5)] and of_judge == pytest.approx(0.1 * ranks**0.5)
    assert "going on after epoch 2" in ended.err and "of 2 ranks" in ended.err


UNSEEN = """
from hvdtrain._torch.meter import Meter
add = Meter.add
def unseen(self, *given):
    add(self, *given)
    self._finite = True  # as on a GPU, where most losses are not looked at
Meter.add = unseen
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
bad = lambda output, target: loss(output, target) * (float("nan") if world.rank == 1 else 1.0)
ht.fit(trained, optimizer, bad, ht.loader(data, 32, seed=3), epochs=5)
"""


@pytest.mark.ranks
def test_a_loss_that_nobody_looked_at_is_noticed_before_it_is_saved(tmp_path: Path) -> None:
    ended = run(2, UNSEEN, tmp_path)
    assert ended.status != 0
    assert "the training loss is no longer a number in epoch 1, at learning rate" in ended.err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "diverged"
    assert not (tmp_path / "run" / "checkpoints").exists()


AGAIN = """
early = ht.EarlyStopping(patience=0, metric="train_loss", min_delta=100.0)
for phase in range(2):
    trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train = ht.loader(data, 4 + phase, seed=3)
    print("phase", phase, len(ht.fit(trained, optimizer, loss, train, epochs=9, early_stopping=early)))
"""


@pytest.mark.ranks
def test_a_second_fit_with_its_own_loader_begins_anew_and_is_recorded_after_the_first(tmp_path: Path) -> None:
    for _ in range(2):  # trained already the second time
        ended = run(2, AGAIN, tmp_path)
        assert ended.status == 0, ended.err
        assert "phase 0 2" in ended.out and "phase 1 2" in ended.out
        lines = (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]
    assert ended.out.count("trained already: 2 epochs are on record") == 2


NORMS = """
plain = nn.BatchNorm1d(8)
synced = ht.convert_sync_batchnorm(nn.BatchNorm1d(8, track_running_stats=False))
own = data.tensors[0][: 8 if world.rank == 0 else 64]
train = ht.loader(torch.utils.data.TensorDataset(own, torch.zeros(len(own), dtype=torch.long)), 4, uneven="join", shuffle=False)
model = nn.Sequential(plain, nn.Linear(8, 5))
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.0))
ht.fit(trained, optimizer, loss, train, epochs=1, checkpoints=False)
alone = nn.BatchNorm1d(8)
for batch in own.split(4):
    alone(batch)
print("statistics", ht.gather_objects(torch.equal(alone.running_mean, plain.running_mean)), int(plain.num_batches_tracked))
# Ranks evaluate different numbers of batches, so nothing may wait for others.
synced.eval()
for _ in range(1 + 2 * world.rank):
    synced(torch.randn(4, 8))
print("evaluated", ht.gather_objects(world.rank))
"""


@pytest.mark.ranks
def test_batches_that_do_not_count_leave_no_trace_and_evaluation_waits_for_nobody(tmp_path: Path) -> None:
    ended = run(2, NORMS, tmp_path)
    assert ended.status == 0, ended.err
    assert "statistics [True, True] 16" in ended.out and "evaluated [0, 1]" in ended.out


BROKEN_OFF = """
judge = nn.BatchNorm1d(8)
judge, of_judge = ht.distribute(judge, torch.optim.SGD(judge.parameters(), lr=0.1))
trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
train = ht.loader(data, 4, seed=3)
checkpoints = ht.Checkpoints(trained, optimizer, train, states={"judge": judge})
epoch = checkpoints.resume()
means = ht.gather_objects(judge.running_mean.tolist())
first = None
for x, y in train:
    first = x[0, 0].item() if first is None else first
    judge(x + world.rank)
    if train.consumed > 20:
        break
checkpoints.save(epoch + 1)
if world.rank == 0:
    print(json.dumps([epoch, first, means, judge.running_mean.tolist()]))
"""


@pytest.mark.ranks
def test_an_epoch_that_was_broken_off_is_over_and_further_models_keep_their_statistics(tmp_path: Path) -> None:
    ends = []
    for ranks in (2, 2, 1):
        ended = run(ranks, BROKEN_OFF, tmp_path)
        assert ended.status == 0, ended.err
        ends.append(json.loads(ended.out.splitlines()[-1]))
    assert [end[0] for end in ends] == [0, 1, 2]
    # Each start begins an epoch, which has an order of its own.
    assert len({end[1] for end in ends}) == 3
    # As many ranks go on with their own statistics, one with the average.
    assert ends[1][2][0] == pytest.approx(ends[0][3]) and ends[1][2][0] != ends[1][2][1]
    assert ends[2][2][0] != pytest.approx(ends[1][3])
