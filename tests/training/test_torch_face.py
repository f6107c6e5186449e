"""What `hvdtrain.torch` promises to one process: messages, learning rates, loaders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht
from hvdtrain import record
from hvdtrain._torch.checkpoints import _rescale_scheduler
from hvdtrain.errors import UserError
from hvdtrain.launch.session import Session


@pytest.fixture(autouse=True)
def world() -> None:
    assert ht.init().size == 1
    assert ht.init() is ht.world()


def model_and_optimizer() -> tuple[nn.Module, torch.optim.SGD]:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data(n: int = 10) -> TensorDataset:
    return TensorDataset(torch.randn(n, 2), torch.zeros(n, dtype=torch.long))


def test_the_objects_stay_the_same() -> None:
    model, optimizer = model_and_optimizer()
    same_model, same_optimizer = ht.distribute(model, optimizer)
    assert same_model is model
    assert same_optimizer is optimizer
    assert type(optimizer) is torch.optim.SGD


def refused(match: str, model: nn.Module, optimizer: torch.optim.Optimizer, **options: object) -> None:
    with pytest.raises(UserError, match=match):
        ht.distribute(model, optimizer, **options)


def test_what_cannot_be_synchronised_is_refused() -> None:
    model, optimizer = model_and_optimizer()
    refused("LBFGS", model, torch.optim.LBFGS(model.parameters()))
    refused('"none", "linear", "sqrt"|none, linear, sqrt', model, optimizer, lr_rule="cubic")
    refused("negative", model, optimizer, warmup_epochs=-1)
    refused("plain model", nn.DataParallel(model), optimizer)
    ht.distribute(model, optimizer)
    refused("given to distribute", model, optimizer)
    other, scheduled = model_and_optimizer()
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    refused("after distribute", other, scheduled)


def test_upstreams_wrapper_is_refused() -> None:
    import horovod.torch as hvd

    hvd.init()
    model, optimizer = model_and_optimizer()
    refused("plain one", model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()))


def test_a_closure_is_refused() -> None:
    model, optimizer = model_and_optimizer()
    ht.distribute(model, optimizer)
    with pytest.raises(UserError, match="closure"):
        optimizer.step(lambda: 0.0)


def test_a_warm_up_of_ones_own_loop_needs_the_steps_of_an_epoch() -> None:
    model, optimizer = model_and_optimizer()
    ht.distribute(model, optimizer, warmup_epochs=1)
    optimizer.hvdtrain.pace.scaling = 4.0
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(UserError, match="steps_per_epoch=len"):
        optimizer.step()


def test_the_rate_warms_up_from_one_ranks_to_the_scaled_one_beneath_a_scheduler() -> None:
    model, optimizer = model_and_optimizer()
    ht.distribute(model, optimizer, warmup_epochs=1, steps_per_epoch=4)
    optimizer.hvdtrain.pace.scaling = 4.0  # as with four ranks
    optimizer.param_groups[0]["lr"] = 0.4
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=6, gamma=0.5)
    used = []
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        used.append(optimizer.hvdtrain.pace.last_rate)
        scheduler.step()
    assert used == pytest.approx([0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.2, 0.2])


def test_fit_wants_the_distributed_optimizer_and_samples() -> None:
    model, optimizer = model_and_optimizer()
    with pytest.raises(UserError, match="distribute"):
        ht.fit(model, optimizer, nn.CrossEntropyLoss(), ht.loader(data(), 5), epochs=1)
    with pytest.raises(UserError, match="data set is empty"):
        ht.loader(data(0), 5)
    with pytest.raises(UserError, match="at least one sample"):
        ht.loader(data(), 0)
    with pytest.raises(UserError, match='"pad", "drop", "join"'):
        ht.loader(data(), 5, uneven="share")
    with pytest.raises(UserError, match="batch size of at most 10"):
        ht.loader(data(10), 11, uneven="drop")


def test_each_epoch_has_a_new_order_that_a_resumed_one_repeats() -> None:
    numbers = TensorDataset(torch.arange(20))
    loader = ht.loader(numbers, 6, seed=1)
    first, second = ([int(i) for (batch,) in loader for i in batch] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    again = ht.loader(numbers, 6, seed=1)
    again.epoch = 2
    assert [int(i) for (batch,) in again for i in batch] == second


class TwoHeads(nn.Module):
    """The second one's output is returned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"other": self.other(x), "main": self.main(x)}


@pytest.mark.parametrize(("precision", "constant"), [("fp32", False), ("fp16", False), ("fp32", True)])
def test_a_batch_that_weighs_nothing_changes_nothing(precision: str, constant: bool) -> None:
    """As the first one, which a loss scaler has to stand; and a head that the loss does not use has no gradient."""
    model = TwoHeads()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5))
    weights = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0]))
    nothing = ht.loader(TensorDataset(torch.randn(4, 2), torch.zeros(4, dtype=torch.long)), 4)

    def loss(output: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        return output["main"].new_zeros(()) if constant else weights(output["main"], target)

    ht.fit(trained, optimizer, loss, nothing, epochs=1, precision=precision, loss_weight=lambda target: target.sum())
    after = model.state_dict()
    assert all(bool(torch.isfinite(value).all()) for value in after.values())
    # Weight decay acts on what has a gradient; whether a constant has one of the other head, nobody can tell.
    assert constant or torch.equal(after["other.weight"], before["other.weight"])


def test_evaluating_leaves_frozen_parts_frozen() -> None:
    """A batch-norm in evaluation mode among layers that train."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[0].eval()
    ht.evaluate(model, nn.CrossEntropyLoss(), ht.validation_loader(data(), 5))
    assert [module.training for module in model.modules()] == [True, False, True]


class Frozen(nn.Sequential):
    """Keeps its first layer as it is."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[0].eval()
        return self


def test_fit_asks_a_model_that_keeps_parts_frozen() -> None:
    model = Frozen(nn.BatchNorm1d(2), nn.Linear(2, 2))
    trained, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    validation = ht.validation_loader(data(), 5)
    ht.fit(trained, optimizer, nn.CrossEntropyLoss(), ht.loader(data(), 5), validation, epochs=2)
    assert not model[0].running_mean.any() and model[1].training


def test_fit_trains_a_model_that_was_evaluated_before() -> None:
    model, optimizer = model_and_optimizer()
    model.eval()
    trained, optimizer = ht.distribute(model, optimizer)
    ht.fit(trained, optimizer, nn.CrossEntropyLoss(), ht.loader(data(), 5), epochs=1)
    assert model.training


def test_each_batch_of_a_long_step_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a world whose steps take minutes would count as stalled."""
    told: list[str] = []
    monkeypatch.setattr(Session, "progress", lambda self, activity, step=None: told.append(activity))
    model, optimizer = ht.distribute(*model_and_optimizer())
    ht.fit(model, optimizer, nn.CrossEntropyLoss(), ht.loader(data(12), 2), epochs=1, accumulate=3)
    assert told == ["training"] * 6


def test_an_empty_validation_set_is_refused_before_training() -> None:
    with pytest.raises(UserError, match="validation set is empty: leave it out"):
        ht.validation_loader(data(0), 4)


def test_rates_of_schedulers_own_follow_the_number_of_ranks() -> None:
    """A training with two ranks goes on with one: what OneCycleLR and CyclicLR keep was for two."""
    model, optimizer = model_and_optimizer()
    _, optimizer = ht.distribute(model, optimizer)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=10)
    cyclic = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.02, max_lr=0.4)
    saved = {**optimizer.hvdtrain.state_dict(), "scaling": 2.0}
    factors = optimizer.hvdtrain.resume(saved)
    group = optimizer.param_groups[0]
    assert factors == [0.5]
    assert (group["max_lr"], group["initial_lr"]) == pytest.approx((0.1, 0.004))
    _rescale_scheduler(cyclic, {id(optimizer): factors})
    assert (cyclic.base_lrs, cyclic.max_lrs) == ([pytest.approx(0.01)], [pytest.approx(0.2)])


def test_regression_has_no_accuracy() -> None:
    model = nn.Linear(2, 1)
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    samples = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
    history = ht.fit(model, optimizer, nn.MSELoss(), ht.loader(samples, 4), ht.validation_loader(samples, 4), epochs=1)
    assert history[0].train_acc is None
    assert history[0].val_acc is None
    assert history[0].val_loss is not None


def test_one_logit_for_two_classes_has_no_accuracy() -> None:
    """The largest of one column is always the first class."""
    model = nn.Linear(2, 1)
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    samples = TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
    history = ht.fit(
        model,
        optimizer,
        lambda output, target: nn.functional.binary_cross_entropy_with_logits(output[:, 0], target.float()),
        ht.loader(samples, 4),
        ht.validation_loader(samples, 4),
        epochs=1,
    )
    assert (history[0].train_acc, history[0].val_acc) == (None, None)
    assert history[0].val_loss is not None


def test_a_loop_of_ones_own_records_its_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ht.record_epoch(1, samples=10, seconds=1.0)  # without a run folder: nothing happens
    monkeypatch.setenv("HVDTRAIN_RUN_DIR", str(tmp_path))
    ht.record_epoch(1, samples=100, seconds=3.0, seconds_val=1.0, val_acc=0.5)
    ht.record_epoch(2, samples=100, seconds=2.0, val_acc=0.75)
    first, second = record.read_epochs(tmp_path / "epochs.jsonl")
    assert (first.samples_per_second, first.val_acc, second.samples_per_second) == (50.0, 0.5, 50.0)
    with pytest.raises(UserError, match="epoch 2 is already recorded"):
        ht.record_epoch(2, samples=100, seconds=2.0)
