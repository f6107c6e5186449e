"""What a Keras training records and does besides weights, on real ranks."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdtrain import lr
from hvdtrain.data.shard import epoch_order, shard
from hvdtrain.noise import NoiseScale
from tests.worlds import Ended, run_world

HEAD = """
import json, os, signal, sys
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init()
x, y = np.ones((44, 1), "float32"), np.zeros((44, 1), "float32")
def model_of(**options):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    # The gradient is 1 whatever the weight, so each step of SGD moves it by the rate.
    model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01), lr_rule="linear", warmup_epochs=2), **options)
    return model
def loss(y_true, y_pred):
    return y_pred
"""
RATES = (
    HEAD
    + """
class Weights(keras.callbacks.Callback):
    seen = []
    def on_train_batch_begin(self, batch, logs=None):
        if not self.seen:
            self.seen.append(float(self.model.get_weights()[0][0, 0]))
    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(self.model.get_weights()[0][0, 0]))
model = model_of(loss=loss)
model.fit(hk.loader(x, y, batch_size=4), epochs=3, callbacks=[Weights(), *hk.callbacks()], verbose=0)
if world.rank == 0:
    print(json.dumps(Weights.seen))
"""
)
SEVERAL = (
    HEAD
    + """
model = model_of(loss=loss, steps_per_execution=2)
train = hk.loader(x, y, batch_size=4, uneven="drop")
early = [keras.callbacks.EarlyStopping("loss", mode="min", patience=p) for p in (7, 9)]
model.fit(train, epochs=2, callbacks=[*early, *hk.callbacks()], verbose=0)
model.fit(train, epochs=1, callbacks=hk.callbacks(), verbose=0)
"""
)
SIZES = (
    HEAD
    + """
from hvdtrain._keras.epochs import effective_rate
way, last = sys.argv[1], int(sys.argv[2])
x, y = np.ones((64, 1), "float32"), np.zeros((64, 1), "float32")
train = hk.loader(x, y, batch_size=4)
optimizer = hk.DistributedOptimizer(
    keras.optimizers.SGD(0.01), lr_rule="linear", warmup_epochs=6, steps_per_epoch=len(train) if way == "loop" else None
)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.compile(optimizer, "mse", jit_compile=False)
if way == "loop":
    checkpoints = hk.Checkpoints(model, optimizer)
    for epoch in range(checkpoints.resume() + 1, last + 1):
        for _ in range(len(train)):
            optimizer.apply([keras.ops.zeros((1, 1))], model.trainable_variables)
        hk.record_epoch(epoch, samples=64, seconds=1.0, lr=effective_rate(optimizer))
        checkpoints.save(epoch)
else:
    for epochs in (1, last - 1) if way == "fits" else (last,):
        if epochs:
            model.fit(train, epochs=epochs, callbacks=hk.callbacks(), verbose=0)
"""
)
OTHER_LENGTHS = (
    HEAD
    + """
model = model_of(loss=loss)
for n, options in ((8, {"epochs": 1}), (16, {"epochs": 1}), (32, {"initial_epoch": 2, "epochs": 4})):
    model.fit(hk.loader(x[:n], y[:n], batch_size=4), callbacks=hk.callbacks(), verbose=0, **options)
"""
)
NO_NUMBER = (
    HEAD
    + """
x[21] = np.nan if world.rank == 1 else 1.0  # rank 1 has it in the third step
model = model_of(loss=loss)
model.fit(hk.loader(x, y, batch_size=4, shuffle=False), epochs=2, callbacks=hk.callbacks(), verbose=0)
print("trained")
"""
)

NOISE = (
    HEAD
    + """
x = np.load(sys.argv[1])
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
optimizer = keras.optimizers.SGD(1e-9, gradient_accumulation_steps=int(sys.argv[2]) if sys.argv[2] > "1" else None)
model.compile(hk.DistributedOptimizer(optimizer, lr_rule="none"), loss)
model.fit(hk.loader(x, x[:, :1], batch_size=8, seed=5), epochs=1, callbacks=hk.callbacks(), verbose=0)
"""
)
CLASSES = (
    HEAD
    + """
rng = np.random.default_rng(0)
x, y = rng.normal(size=(45, 4)).astype("float32"), np.eye(3, dtype="float32")[rng.integers(0, 3, 45)]
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.1), lr_rule="none")
model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy", keras.metrics.F1Score()], jit_compile=False)
train, validation = hk.loader(x, y, batch_size=8 // world.size), hk.validation_loader(x, y, batch_size=8)
callbacks = hk.callbacks(monitor=sys.argv[1] if sys.argv[1:] else None)
history = model.fit(train, validation_data=validation, epochs=2, callbacks=callbacks, verbose=0).history
if world.rank == 0:
    print(json.dumps(history))
"""
)


def run(script: str, folder: Path, backend: str, *arguments: object, ranks: int = 2) -> Ended:
    (folder / "script.py").write_text(script)
    options = ["--run-dir", str(folder / "run")]
    return run_world(ranks, folder / "script.py", *arguments, options=options, KERAS_BACKEND=backend)


def epochs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "epochs.jsonl").read_text().splitlines()]


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_each_step_has_the_rate_of_the_warm_up(backend: str, tmp_path: Path) -> None:
    ended = run(RATES, tmp_path, backend)
    assert ended.status == 0, ended.err
    weights = json.loads(ended.out.splitlines()[-1])
    steps = 6  # 44 samples, 8 at a time
    moved = [before - after for before, after in itertools.pairwise(weights)]
    expected = [0.02 * lr.warmup_factor(step / steps, 2.0, 2.0) for step in range(3 * steps)]
    assert moved == pytest.approx(expected, abs=1e-6)
    assert expected[0] == pytest.approx(0.01)
    # What is recorded is the rate of the epoch's last step.
    assert [epoch["lr"] for epoch in epochs(tmp_path)] == pytest.approx([expected[5], expected[11], expected[17]])
    assert "learning rate (0.01 for one rank, rule linear, 2 ranks)" in ended.out


@pytest.mark.ranks
@pytest.mark.parametrize(("way", "backend"), [("fits", "tensorflow"), ("loop", "torch")])
def test_the_warm_up_goes_on_whatever_the_number_of_ranks(way: str, backend: str, tmp_path: Path) -> None:
    """Also after a second start on as many ranks, which must know of the one before on others."""
    expected = []
    for epoch, ranks in enumerate((2, 4, 4, 1), start=1):
        ended = run(SIZES, tmp_path, backend, way, epoch, ranks=ranks)
        assert ended.status == 0, ended.err
        # What is recorded is the rate of the last of an epoch's steps.
        reached = epoch - 4 * ranks / 64
        expected.append(lr.rate(0.01, "linear", ranks, epoch=reached, warmup_epochs=6))
    assert [epoch["lr"] for epoch in epochs(tmp_path)] == pytest.approx(expected)


@pytest.mark.ranks
def test_the_warm_up_of_a_later_fit_goes_on_at_the_epoch_reached_in_epochs_of_its_own(tmp_path: Path) -> None:
    ended = run(OTHER_LENGTHS, tmp_path, "tensorflow")
    assert ended.status == 0, ended.err
    # What is recorded is the rate of the last step of 1, 2, 4 and 4; the warm-up has two epochs.
    expected = [lr.rate(0.01, "linear", 2, epoch=epoch, warmup_epochs=2) for epoch in (0.0, 1.5, 2.75, 3.75)]
    assert [epoch["lr"] for epoch in epochs(tmp_path)] == pytest.approx(expected)
    told = [line.removeprefix("hvdtrain:").split() for line in ended.out.splitlines() if ":   epoch" in line]
    first, second = ["epoch", "1", "0.01", "->", "0.015"], ["epoch", "1", "0.015", "->", "0.02"]
    assert told == [first, second, ["epochs", "1-2", "0.01", "->", "0.02"], ["epochs", "3-4", "0.02"]]


@pytest.mark.ranks
def test_several_steps_per_call_and_several_fits_are_recorded_in_full(tmp_path: Path) -> None:
    ended = run(SEVERAL, tmp_path, "tensorflow")
    assert ended.status == 0, ended.err
    recorded = [(epoch["epoch"], epoch["samples"]) for epoch in epochs(tmp_path)]
    assert recorded == [(1, 40), (2, 40), (3, 40)]
    assert (tmp_path / "run" / "checkpoints-2").is_dir()


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_loss_that_is_no_number_on_one_rank_ends_all_in_that_step(backend: str, tmp_path: Path) -> None:
    ended = run(NO_NUMBER, tmp_path, backend)
    assert ended.status == 1, ended.err
    assert "trained" not in ended.out
    assert ended.err.count("the training loss is nan in epoch 1") == 1
    assert "Traceback" not in ended.err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "diverged"
    (entry,) = epochs(tmp_path)
    assert (entry["epoch"], entry["train_loss"], entry["samples"]) == (1, None, 24)


@pytest.mark.ranks
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_noise_scale_and_norm_are_those_of_the_measured_step(backend: str, accumulated: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(0.5, 1.0, (960 * accumulated, 4)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    ended = run(NOISE, tmp_path, backend, tmp_path / "x.npy", accumulated)
    assert ended.status == 0, ended.err
    # The gradient is the mean of the inputs; of 60 updates the 50th is measured.
    order = epoch_order(len(x), 5, 1)
    of_update = slice(49 * accumulated, 50 * accumulated)
    steps = [list(shard(order, 8, rank, 2))[of_update] for rank in range(2)]
    parts = [np.concatenate([step.indices for step in own]) for own in steps]
    small = float(np.mean([np.square(x[part].mean(0)).sum() for part in parts]))
    big = float(np.square(x[np.concatenate(parts)].mean(0)).sum())
    estimate = NoiseScale()
    estimate.add(small, big, 8 * accumulated, 16 * accumulated)
    (entry,) = epochs(tmp_path)
    assert entry["noise_scale"] == pytest.approx(estimate.value(), rel=1e-3)
    assert entry["grad_norm"] == pytest.approx(big**0.5, rel=1e-5)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["accumulate"] == accumulated


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_metric_may_have_one_value_for_each_class(backend: str, tmp_path: Path) -> None:
    histories = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        ended = run(CLASSES, folder, backend, ranks=ranks)
        assert ended.status == 0, ended.err
        histories.append(json.loads(ended.out.splitlines()[-1]))
        assert [epoch["val_acc"] for epoch in epochs(folder)] == histories[-1]["val_accuracy"]
    one, two = histories
    assert np.shape(one["f1_score"]) == np.shape(one["val_f1_score"]) == (2, 3)
    assert two.keys() == one.keys()
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, atol=1e-5)


def test_what_has_one_value_for_each_class_is_not_monitored(tmp_path: Path) -> None:
    ended = run(CLASSES, tmp_path, "tensorflow", "val_f1_score", ranks=1)
    assert ended.status == 2, ended.err
    assert 'monitor="val_f1_score" has 3 values, one for each class' in ended.err
    assert "Traceback" not in ended.err
