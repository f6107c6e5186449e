"""Parts of the torch side that need no second rank."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import hvdtrain.torch as ht
from hvdtrain import lr, record
from hvdtrain._torch.evaluate import moved
from hvdtrain._torch.loss_weight import LossWeight
from hvdtrain._torch.meter import Meter
from hvdtrain._torch.replicas import digest
from hvdtrain.errors import UserError
from hvdtrain.noise import NoiseScale
from tests.training.scenarios import Focal, perceptron, samples


@pytest.fixture(autouse=True)
def _world() -> None:
    ht.init()


class Drawing(Dataset[Any]):
    """Each sample is three random numbers."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentations_differ_between_batches_and_epochs_and_come_again_when_resumed(workers: int) -> None:
    def epochs(loader: Any, n: int) -> list[list[float]]:
        return [[float(value) for batch in loader for column in batch for value in column] for _ in range(n)]

    before = torch.get_rng_state()
    first, second = epochs(ht.loader(Drawing(), 4, seed=1, num_workers=workers), 2)
    assert len(set(first + second)) == 2 * 36
    # What the model draws does not depend on what augmentations drew.
    assert torch.equal(torch.get_rng_state(), before)
    resumed = ht.loader(Drawing(), 4, seed=1)
    resumed.load_state_dict([{"epoch": 2, "consumed": 4}], 0)
    assert len(resumed) == 3
    assert resumed.left == 2
    assert epochs(resumed, 1) == [second[12:]]
    assert epochs(ht.loader(Drawing(), 4, seed=2), 1) != [first]


def test_what_a_collate_function_draws_comes_again_when_resumed() -> None:
    """Also around a data set of tensors, from which nothing else draws: MixUp and its like."""

    def loader(**options: Any) -> Any:
        mixed = TensorDataset(torch.arange(12.0))
        return ht.loader(mixed, 4, num_workers=1, collate_fn=draws, **options)

    whole = loader()
    first, second = ([float(each) for each in whole] for _ in range(2))
    assert len({*first, *second}) == 6
    resumed = loader()
    resumed.load_state_dict([{"epoch": 2, "consumed": 0}], 0)
    assert [float(each) for each in resumed] == second
    assert [float(each) for each in loader(seed=1)] != first


def draws(batch: list[Any]) -> torch.Tensor:
    return torch.rand(())


def test_workers_ignore_signals_that_ask_ranks_to_stop() -> None:
    """Which come from elsewhere: a launcher, or SLURM."""
    batches = iter(ht.loader(Drawing(), 1, num_workers=1))
    next(batches)
    (worker,) = [each for each in psutil.Process().children() if "resource_tracker" not in " ".join(each.cmdline())]
    for name in ("TERM", "USR1", "USR2", "TERM"):
        subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
        time.sleep(0.05)
    assert len(list(batches)) == 11
    assert not _lives(worker.pid)


KEEPS_WORKERS = """
import torch, hvdtrain.torch as ht
from hvdtrain import stop
stop.install()
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return float(index)
if __name__ == "__main__":
    ht.init()
    loader = ht.loader(Numbers(), 4, num_workers=2, persistent_workers=True, multiprocessing_context=METHOD)
    print(sum(float(batch.sum()) for batch in loader))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_rank_that_kept_its_workers_ends(method: str, tmp_path: Path) -> None:
    script = tmp_path / "keeps.py"
    script.write_text(KEEPS_WORKERS.replace("METHOD", repr(method)))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "28.0\n", "")


def test_workers_end_with_their_rank(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        batches = iter(ht.loader(Drawing(), 1, num_workers=2))
        next(batches)
        (tmp_path / "workers").write_text(" ".join(str(child.pid) for child in psutil.Process().children()))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    workers = [int(word) for word in (tmp_path / "workers").read_text().split()]
    assert len(workers) >= 2
    deadline = time.monotonic() + 2.0
    while any(map(_lives, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_lives, workers))


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(samples(10, 1))


def test_an_iterable_is_for_join() -> None:
    with pytest.raises(UserError, match='take uneven="join"'):
        ht.loader(Stream(), 4)
    loader = ht.loader(Stream(), 4, uneven="join")
    assert [len(x) for x, _ in loader] == [4, 4, 2]
    loader.load_state_dict([{"epoch": 2, "batches": 1, "consumed": 4, "total": 10}], 0)
    assert [len(x) for x, _ in loader] == [4, 2]
    with pytest.raises(UserError, match="no sample at all"):
        ht.loader(samples(0, 1), 4, uneven="join")


def test_a_digest_shows_any_change() -> None:
    value = torch.arange(1000.0)
    seen = {tuple(digest(value).tolist())}
    for other in (value[:-1], value.flip(0), -value, value.clone().index_fill_(0, torch.tensor([3]), 3.0000002)):
        seen.add(tuple(digest(other).tolist()))
    assert len(seen) == 5
    assert tuple(digest(value.clone()).tolist()) in seen
    # Also where memory is not aligned, and for the last odd bytes.
    assert torch.equal(digest(torch.arange(-1.0, 1000.0)[1:]), digest(value))
    assert not torch.equal(digest(torch.tensor([1, 2, 3], dtype=torch.uint8)), digest(torch.tensor([1, 2, 4]).byte()))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_hits_are_those_of_torch(kind: torch.dtype) -> None:
    """Of equals the first counts, and no number is larger than any."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randint(0, 5, (200, 7), generator=generator).to(kind)
    output[3, 4] = output[9, 0] = output[9, 5] = float("nan")
    target = torch.randint(0, 7, (200,), generator=generator)
    target[3], target[9] = 4, 0
    meter = Meter()
    meter.add(torch.tensor(0.5), 200)
    meter.count_hits(output.requires_grad_(), target, 200)
    assert meter.over_ranks() == (0.5, int((output.argmax(dim=1) == target).sum()) / 200, 200)
    meter.add(torch.tensor(0.5), 0)
    meter.count_hits(output[:0], target[:0], 0)
    meter.add(torch.tensor(1.0), 3)
    meter.count_hits(torch.zeros(3, 2), torch.zeros(3), 3)
    assert meter.over_ranks()[1:] == (None, 203), "targets that are no classes"


def test_weights_decide_how_often_samples_come() -> None:
    data = TensorDataset(torch.arange(1000))
    loader = ht.loader(data, 50, seed=1, weights=np.repeat([0.0, 1.0, 3.0], [500, 250, 250]))
    epochs = [torch.cat([x for (x,) in loader]).tolist() for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [1000] * 4
    assert epochs[0] != epochs[1]
    seen = np.concatenate(epochs)
    assert seen.min() == 500
    assert (seen >= 750).mean() == pytest.approx(0.75, abs=0.03)  # four standard errors
    again = ht.loader(data, 50, seed=1, weights=np.repeat([0.0, 1.0, 3.0], [500, 250, 250]))
    assert torch.cat([x for (x,) in again]).tolist() == epochs[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"weights": [1.0] * 9}, r"weights has shape \(9,\); there is one weight for each of 10 samples"),
        ({"weights": [0.0] * 10}, "not all 0"),
        ({"weights": [1.0] * 9 + [float("nan")]}, "numbers of 0 or more"),
        ({"weights": [1.0] * 10, "shuffle": False}, "need shuffle=True"),
        ({"weights": [1.0] * 10, "uneven": "join"}, "data that all ranks share"),
        ({"sampler": [1, 2]}, "sampler= is not for this loader: .* take weights="),
        ({"drop_last": True}, 'take uneven="drop"'),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None: take a whole number"),
        ({"seed": -1, "uneven": "join"}, "seed=-1"),
        ({"num_worker": 2}, 'num_worker= is none of .* did you mean "num_workers"'),
    ],
)
def test_options_that_a_loader_cannot_have_are_explained(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        ht.loader(Tasks(), 4, **options)


def test_a_validation_loader_says_what_it_cannot_share_out() -> None:
    with pytest.raises(UserError, match=r"Stream is an IterableDataset: .* list"):
        ht.validation_loader(Stream(), 4)
    with pytest.raises(UserError, match="at least one sample, not 0"):
        ht.validation_loader(samples(10, 1), 0)


class Pair(NamedTuple):
    left: torch.Tensor
    right: int


def test_batches_of_any_depth_move_to_the_device() -> None:
    """To one without memory: here is no GPU."""
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    batch = (
        {"ids": torch.ones(2), "parts": [torch.ones(3), (torch.ones(1), "name")]},
        (Pair(torch.ones(4), 7), packed),
    )
    input, (pair, sequence) = moved(batch, "meta")
    assert input["ids"].is_meta
    assert input["parts"][0].is_meta
    assert input["parts"][1][0].is_meta
    assert input["parts"][1][1] == "name"
    assert pair.left.is_meta
    assert pair == Pair(pair.left, 7)
    assert sequence.data.is_meta


class Tasks(Dataset[Any]):
    """Two targets for each sample, by name."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, float]]:
        return torch.ones(1), {"half": index / 2, "square": float(index**2)}


def test_means_are_over_samples_however_targets_are_packed() -> None:
    """Batches of four, four and two samples: means of means would differ."""

    def loss(output: torch.Tensor, target: dict[str, torch.Tensor]) -> torch.Tensor:
        return (target["half"] + target["square"]).mean() + 0 * output.sum()

    found, accuracy = ht.evaluate(nn.Linear(1, 1), loss, ht.validation_loader(Tasks(), 4))
    assert found == pytest.approx(sum(index / 2 + index**2 for index in range(10)) / 10)
    assert accuracy is None


def test_the_noise_scale_of_gradients_that_are_known() -> None:
    """Per-sample gradients from a normal distribution with |G|^2 = 4 and tr(S) = 200: B_simple is 50 samples."""
    generator = np.random.default_rng(0)
    noise, small, ranks = NoiseScale(), 8, 4
    for _ in range(4000):
        each = 2 / np.sqrt(100) + generator.normal(0, np.sqrt(2 / small), (ranks, 100))
        noise.add(float((each**2).sum(1).mean()), float((each.mean(0) ** 2).sum()), small, small * ranks)
    assert noise.value() == pytest.approx(50, rel=0.1)
    assert NoiseScale().value() is None


def test_one_rank_measures_noise_only_when_it_accumulates() -> None:
    def noise(**options: Any) -> float | None:
        torch.manual_seed(0)
        model = perceptron()
        model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))
        n = torch.arange(256) % 5
        data = TensorDataset(torch.nn.functional.one_hot(n, 8).float() + 0.1 * torch.randn(256, 8), n)
        loader = ht.loader(data, 16)
        return ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=1, **options)[0].noise_scale

    assert noise() is None
    found = noise(accumulate=4)
    assert found is not None
    assert found > 0


def test_a_wrong_argument_of_fit_says_what_is_legal() -> None:
    model = perceptron()
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = ht.loader(samples(10, 1), 4)

    def refused(match: str, **options: Any) -> None:
        given = {"loss": nn.CrossEntropyLoss(), "train": loader, "epochs": 1, **options}
        with pytest.raises(UserError, match=match):
            ht.fit(model, optimizer, **given)
        assert optimizer.hvdtrain.pace.steps == 0

    data = samples(10, 1)
    batches = torch.utils.data.DataLoader(data, 4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    refused("epochs=0", epochs=0)
    refused('precision="fp8" is not one of fp32, bf16, fp16', precision="fp8")
    refused("accumulate=0", accumulate=0)
    refused("clip_norm=-1", clip_norm=-1.0)
    refused("val_loss, which this training does not have", early_stopping=2)
    refused("checkpoints=True", checkpoints=True)
    refused("train is a DataLoader: .* ht.loader", train=batches)
    refused("train is a ValidationLoader: .* ht.loader", train=ht.validation_loader(data, 4))
    refused("validation is a Loader, .* ht.validation_loader", validation=loader)
    refused("schedule is a StepLR, .* loop of your own", schedule=scheduler)
    refused("higher_is_better", schedule=lr.Plateau(higher_is_better=True))
    refused(r"a loss for each of .*shape \(4,\).* Take the mean", loss=nn.CrossEntropyLoss(reduction="none"))
    refused("the loss gave a float", loss=lambda output, target: 0.5)
    three = TensorDataset(*data.tensors, torch.ones(10))
    refused(r"\(input, target\), not a list of 3: .*\(\(a, b\), target\)", train=ht.loader(three, 4))
    refused(r"\(input, target\), not a Tensor", train=ht.loader(data.tensors[0], 2))
    with pytest.raises(UserError, match="a loss for each"):
        ht.evaluate(model, nn.CrossEntropyLoss(reduction="none"), ht.validation_loader(data, 4))
    with pytest.raises(UserError, match=r"\(input, target\), not a list of 3"):
        ht.evaluate(model, nn.CrossEntropyLoss(), ht.validation_loader(three, 4))
    with pytest.raises(UserError, match=r"validation is a JoinLoader, .* ht.validation_loader"):
        ht.evaluate(model, nn.CrossEntropyLoss(), ht.loader(data, 4, uneven="join"))
    with pytest.raises(UserError, match='metric="loss" is not one of val_loss'):
        ht.EarlyStopping(metric="loss")


def test_wrong_options_of_distribute_say_what_is_legal() -> None:
    def refused(match: str, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> None:
        model = perceptron()
        with pytest.raises(UserError, match=match):
            ht.distribute(model, optimizer(model.parameters(), lr=0.01), **options)  # type: ignore[call-arg]

    refused("give one of the two", warmup_epochs=1, warmup_steps=5)
    refused("warmup_steps=-1", warmup_steps=-1)
    refused("Horovod cannot add numbers in bfloat16", compression="bf16")
    refused('compression="fp8" is not one of none, fp16', compression="fp8")
    refused("adascale.* is for SGD", torch.optim.AdamW, lr_rule="adascale")
    refused("check_replicas_every=-1", check_replicas_every=-1)
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(
        UserError, match=r"0\.weight has no shape yet .* pass one batch through the model before distribute"
    ):
        ht.distribute(lazy, torch.optim.SGD(lazy.parameters(), lr=0.1))
    with pytest.raises(UserError, match='strategy="dpp" is not one of horovod, ddp, single; did you mean "ddp"'):
        ht.init("dpp")
    with pytest.raises(UserError, match="a process has one world"):
        ht.init("ddp")


def test_rules_of_their_own_and_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = perceptron()
    _, optimizer = ht.distribute(model, torch.optim.Adam(model.parameters(), lr=0.8))
    assert optimizer.hvdtrain.pace.rule == "sqrt"
    assert "warning: Adam with a learning rate of 0.8 will most likely diverge" in capsys.readouterr().err


def test_the_table_of_rates_is_printed_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HVDTRAIN_RUN_DIR", str(tmp_path))
    record.begin(tmp_path, {})
    model = perceptron()
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = ht.loader(samples(16, 1), 4)
    options: dict[str, Any] = {"epochs": 3, "schedule": lr.step(2, 0.5), "checkpoints": tmp_path / "kept"}
    history = ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, **options)
    assert "rule linear, 1 ranks):\n  epochs 1-2     0.1\n  epoch 3        0.05\n" in capsys.readouterr().out
    noted = record.read_json(tmp_path / "running.json")
    assert noted is not None
    assert noted["lr_table"] == [[1, 0.1, 0.1], [2, 0.1, 0.1], [3, 0.05, 0.05]]
    assert [entry.lr for entry in history] == pytest.approx([0.1, 0.1, 0.05])
    # A second training of a script has a folder of its own.
    ht.fit(model, optimizer, nn.CrossEntropyLoss(), loader, epochs=1)
    assert any(path.name.startswith("checkpoints-") for path in tmp_path.iterdir())


def test_a_batch_weighs_what_its_mean_loss_was_divided_by() -> None:
    torch.manual_seed(0)
    output, target = torch.randn(40, 5, 3), torch.randint(0, 5, (40, 3))
    target[::3, 1:] = -100
    weight, functional = torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0]), nn.functional
    options: list[dict[str, Any]] = [
        {},
        {"weight": weight},
        {"ignore_index": 2},
        {"weight": weight, "ignore_index": 0, "label_smoothing": 0.2},
    ]
    for given in options:
        labels = target.where(target >= 0, given["ignore_index"]) if "ignore_index" in given else target
        total = nn.CrossEntropyLoss(**given, reduction="sum")(output, labels)
        loss = nn.CrossEntropyLoss(**given)
        for known in (loss, functools.partial(functional.cross_entropy, **given)):
            found = LossWeight(known)(labels, 40)
            assert found == pytest.approx(float(total / loss(output, labels)), rel=1e-5), given
    plain = target.clamp(min=0)
    assert LossWeight(functional.nll_loss)(plain, 40) == LossWeight(nn.NLLLoss())(plain, 40) == 120
    assert LossWeight(nn.CrossEntropyLoss())(target, 0) == 0
    for other in (nn.CrossEntropyLoss(reduction="sum"), nn.MSELoss(), lambda output, target: output.sum()):
        assert LossWeight(other)(plain, 40) is None
    assert LossWeight(nn.CrossEntropyLoss())(output.softmax(1), 40) is None, "probabilities are a mean over samples"


class OverTokens(nn.CrossEntropyLoss):
    """Only reshapes: what divides is its parent."""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(input.flatten(0, 1), target.flatten())


def test_a_loss_that_only_descends_from_one_that_is_known_must_say_what_it_divides_by_where_that_may_differ() -> None:
    """Neither by samples nor by what its parent divides is right for all such."""
    for loss in (Focal(weight=torch.ones(5)), OverTokens(ignore_index=0), OverTokens(ignore_index=-1)):
        with pytest.raises(UserError, match=f"{type(loss).__name__} has a forward of its own.* loss_weight=len"):
            LossWeight(loss)
        assert LossWeight(loss, lambda target: 3.0)(torch.ones(4), 4) == 3
    padded, full = torch.tensor([[1, 2, -100], [1, -100, -100]]), torch.ones(2, 3, dtype=torch.long)
    for weigh in (LossWeight(OverTokens()), LossWeight(Focal())):
        assert weigh(full, 2) is None
        assert weigh(torch.full((2, 3), -100.0), 2) is None, "probabilities are not ignored"
        with pytest.raises(UserError, match=r"-100, which .* loss_weight=len"):
            weigh(padded, 2)


def test_a_loss_of_several_batches_that_is_told_what_it_divides_by_is_the_mean_over_all() -> None:
    torch.manual_seed(0)
    model, data = perceptron(), samples(40, 1)
    x, y = data.tensors
    loss = Focal(weight=torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0]))
    found = [ht.evaluate(model, loss, ht.validation_loader(data, size), loss_weight=len)[0] for size in (7, 40)]
    assert found == pytest.approx([loss(model(x), y).item()] * 2)


def test_class_weights_may_change_while_training_goes_on() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    weigh, target = LossWeight(loss), torch.tensor([0, 1, 1])
    assert weigh(target, 3) == 3
    loss.weight[1] = 4.0
    assert weigh(target, 3) == 9
    loss.weight = torch.tensor([2.0, 2.0, 2.0])
    assert weigh(target, 3) == 6


@pytest.mark.parametrize("given", [float("nan"), -1, "many", None])
def test_a_loss_weight_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(UserError, match="it must be a number of 0 or more"):
        LossWeight(nn.MSELoss(), lambda target: given)(torch.ones(3), 3)  # type: ignore[arg-type,return-value]
