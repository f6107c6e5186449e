"""What the callbacks and data of one rank do to a Keras training of several: when it ends, what it writes and what it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import Ended, run_world

BEGIN = """
import json, os, signal, sys
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init()
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 8)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
def model_of(rate=0.05, norm=False, accumulated=None, **options):
    layers = [keras.layers.BatchNormalization()] if norm else []
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(rate, gradient_accumulation_steps=accumulated)
    model.compile(hk.DistributedOptimizer(optimizer, lr_rule="none"), "mse", **options)
    return model
"""
ENDS = """
class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training |= sys.argv[1] == "step" and world.rank == 1 and batch == int(sys.argv[2])
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= sys.argv[1] == "epoch" and world.rank == 1 and epoch == int(sys.argv[2])
model = model_of()
given = [End(), *hk.callbacks()]
history = model.fit(hk.loader(x, y, batch_size=4), epochs=4, callbacks=given, verbose=0)
weights = [value.tolist() for value in model.get_weights()]
assert hk.gather_objects(weights) == [weights] * world.size
if world.rank == 0:
    print("epochs", [len(history.history["loss"])] * world.size)
    print(weights, history.history)
"""


def run(ranks: int, script: str, folder: Path, *arguments: object, backend: str = "tensorflow") -> Ended:
    path = folder / "script.py"
    path.write_text(BEGIN + script)
    options = [
        "--launcher",
        "local" if ranks > 1 else "none",
        "--run-dir",
        str(folder / "run"),
        "--stall-timeout",
        "30",
    ]
    return run_world(ranks, path, *arguments, options=options, KERAS_BACKEND=backend)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "epochs.jsonl").read_text().splitlines()]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("where", "number", "samples", "backend"),
    # 64 samples are 8 steps of 8. Others learn of it with the step after; after the last one with the end of the epoch.
    [
        ("epoch", 1, [64, 64], "tensorflow"),
        ("step", 2, [32], "tensorflow"),
        ("step", 2, [32], "torch"),
        ("step", 7, [64], "torch"),
    ],
)
def test_a_callback_that_ends_the_training_of_one_rank_ends_that_of_all(
    where: str, number: int, samples: list[int], backend: str, tmp_path: Path
) -> None:
    ended = run(2, ENDS, tmp_path, where, number, backend=backend)
    assert ended.status == 0, ended.err
    assert f"epochs {[len(samples)] * 2}" in ended.out
    assert [line["samples"] for line in records(tmp_path)] == samples
    if samples == [32] and backend == "tensorflow":
        (tmp_path / "whole").mkdir()
        through = run(2, ENDS, tmp_path / "whole", "never", 0, backend=backend)
        again = run(2, ENDS, tmp_path, "never", 0, backend=backend)
        assert again.status == 0, again.err
        assert "going on with epoch 1, in its middle" in again.out
        assert [line["samples"] for line in records(tmp_path)] == [64] * 4
        # Weights, and the history of all epochs.
        assert again.out.splitlines()[-2:] == through.out.splitlines()[-2:]


AGAIN = """
class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training |= world.rank == 1 and batch == 2
model = model_of(accumulated=4)
train = hk.loader(x, y, batch_size=4)
for given in ([End()], []):
    model.fit(train, epochs=1, callbacks=[*given, *hk.callbacks()], verbose=0)
"""


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_training_that_was_ended_does_not_end_the_next_one(backend: str, tmp_path: Path) -> None:
    """Its first steps make no update, and ranks tell each other in updates."""
    ended = run(2, AGAIN, tmp_path, backend=backend)
    assert ended.status == 0, ended.err
    # The fourth step of 8 samples was the first that brought word of the third.
    assert [line["samples"] for line in records(tmp_path)] == [32, 64]


LATER = """
class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training |= world.rank == 1 and batch == 2
class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and not os.path.exists(sys.argv[1]):
            hk.sum_over_ranks([0.0])
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
model = model_of(norm=True)
train = hk.loader(x, y, batch_size=4)
first = model.fit(train, epochs=1, callbacks=[End(), *hk.callbacks()], verbose=0)
weights = hk.gather_objects([value.tolist() for value in model.get_weights()])
model.fit(train, epochs=2, callbacks=[Stop(), *hk.callbacks()], verbose=0)
if world.rank == 0:
    print(json.dumps([first.history, weights, [value.tolist() for value in model.get_weights()]]))
"""


@pytest.mark.ranks
def test_a_training_that_was_ended_within_an_epoch_is_over_once_a_later_one_has_saved(tmp_path: Path) -> None:
    (tmp_path / "through").mkdir()
    through = run(2, LATER, tmp_path / "through", tmp_path)
    assert run(2, LATER, tmp_path, tmp_path / "mark").status == 75
    again = run(2, LATER, tmp_path, tmp_path / "mark")
    assert again.status == 0, again.err
    found, expected = (json.loads(ended.out.splitlines()[-1]) for ended in (again, through))
    assert found == expected
    assert len(found[0]["loss"]) == 1 and found[1][0] == found[1][1]
    parts, whole = (
        [(line["epoch"], line["samples"]) for line in records(each)] for each in (tmp_path, tmp_path / "through")
    )
    assert parts == whole == [(1, 32), (2, 64), (3, 64)]


ALONE = """
accumulated = int(sys.argv[1]) or None
if world.rank == 0:
    model_of(accumulated=accumulated).summary()
model = model_of(accumulated=accumulated)
model.fit(hk.loader(x, y, batch_size=4), epochs=1, callbacks=hk.callbacks(), verbose=0)
"""


@pytest.mark.ranks
@pytest.mark.parametrize("accumulated", [0, 4])
def test_a_rank_may_make_an_optimizer_for_itself(accumulated: int, tmp_path: Path) -> None:
    ended = run(2, ALONE, tmp_path, accumulated)
    assert ended.status == 0, ended.err


WRITES = """
class Mine(keras.callbacks.CSVLogger):
    on_all_ranks = len(sys.argv) > 2
    def on_epoch_end(self, epoch, logs=None):
        with open(sys.argv[1], "a") as file:
            file.write(f"{world.rank}\\n")
model = model_of()
ours = hk.callbacks(checkpoints=False)
model.fit(hk.loader(x, y, batch_size=4), epochs=2, callbacks=[Mine(os.devnull), *ours], verbose=0)
"""


@pytest.mark.ranks
def test_what_is_derived_from_a_callback_that_writes_does_so_on_one_rank(tmp_path: Path) -> None:
    ended = run(2, WRITES, tmp_path, tmp_path / "written")
    assert ended.status == 0, ended.err
    assert (tmp_path / "written").read_text() == "0\n0\n"
    assert ended.out.count("note: Mine, which is derived from a callback that writes files, acts on rank 0 only") == 1
    ended = run(2, WRITES, tmp_path, tmp_path / "everywhere", "all")
    assert ended.status == 0, ended.err
    assert sorted((tmp_path / "everywhere").read_text()) == sorted("0\n0\n1\n1\n")


OWN = """
class Mine(keras.callbacks.CSVLogger):
    on_all_ranks = True
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.name = f"of rank {world.rank}" if epoch == 0 else self.name
        with open(sys.argv[1], "a") as file:
            file.write(f"{world.rank} {self.name}\\n")
        if epoch == 0 and world.rank == 0 and len(open(sys.argv[1]).readlines()) <= 2:
            os.kill(os.getpid(), signal.SIGUSR1)
mine = Mine(os.devnull)
mine.name = "of nobody"
model_of().fit(hk.loader(x, y, batch_size=4), epochs=2, callbacks=[mine, *hk.callbacks()], verbose=0)
"""


@pytest.mark.ranks
def test_a_callback_that_knows_of_ranks_keeps_its_own_state_over_a_restart(tmp_path: Path) -> None:
    assert run(2, OWN, tmp_path, tmp_path / "written").status == 75
    ended = run(2, OWN, tmp_path, tmp_path / "written")
    assert ended.status == 0, ended.err
    assert sorted((tmp_path / "written").read_text().splitlines()) == ["0 of rank 0"] * 2 + ["1 of rank 1"] * 2


BY_ONESELF = """
norm = model_of(norm=True)
hk.broadcast(norm)
norm.layers[0].moving_mean.assign(np.full(8, 0.5 if world.size == 1 else world.rank))
losses = hk.gather_objects(hk.evaluate(norm, hk.validation_loader(x, y, batch_size=16))["loss"])
class Evaluates(keras.callbacks.Callback):
    seen = []
    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(hk.evaluate(self.model, others, verbose=0)["loss"])
others = hk.validation_loader(x[:20], y[:20], batch_size=4)
histories = []
for given in ([], [Evaluates()]):
    keras.utils.set_random_seed(1)
    train = hk.loader(x[:40], y[:40], batch_size=8 // world.size)
    given += hk.callbacks(checkpoints=False)
    history = model_of().fit(train, validation_data=others, epochs=3, callbacks=given, verbose=0).history
    histories.append(hk.gather_objects(history))
keras.utils.set_random_seed(1)
model = model_of()
model.fit(hk.loader(x[:9], y[:9], batch_size=8 // world.size), callbacks=hk.callbacks(checkpoints=False), verbose=0)
mine = slice(9 + world.rank, 17, world.size)
model.train_on_batch(x[mine], y[mine])
weights = np.concatenate([np.ravel(value) for value in model.get_weights()]).tolist()
if world.rank == 0:
    print(json.dumps([losses, histories, Evaluates.seen, weights]))
"""


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def by_oneself(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, Any]]:
    """What calls besides `fit` give on one rank and on two: losses, histories, losses in between, weights."""
    found = []
    for ranks in (1, 2):
        ended = run(ranks, BY_ONESELF, tmp_path_factory.mktemp("calls"), backend=request.param)
        assert ended.status == 0, ended.err
        found.append(json.loads(next(line for line in ended.out.splitlines() if line.startswith("["))))
    return list(zip(*found, strict=True))


@pytest.mark.ranks
def test_an_evaluation_of_ones_own_is_that_of_the_mean_of_all_statistics(by_oneself: list[tuple[Any, Any]]) -> None:
    ((expected,), losses), *_ = by_oneself
    assert losses == pytest.approx([expected] * 2, rel=1e-6)


@pytest.mark.ranks
def test_an_evaluation_within_a_fit_leaves_its_logs_those_of_all_ranks(by_oneself: list[tuple[Any, Any]]) -> None:
    _, (one, two), (expected, seen), _ = by_oneself
    (alone,), _ = one
    assert two == [[two[0][0]] * 2] * 2
    assert two[0][0] == {name: pytest.approx(values, rel=1e-5) for name, values in alone.items()}
    assert seen == pytest.approx(expected, rel=1e-5)
    assert seen == pytest.approx(alone["val_loss"], rel=1e-5)


@pytest.mark.ranks
def test_a_step_after_a_fit_is_not_weighted_as_its_last_one(by_oneself: list[tuple[Any, Any]]) -> None:
    *_, (expected, weights) = by_oneself
    assert weights == pytest.approx(expected, rel=1e-5)


PARTS = """
class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if world.size == 2 and batch == 5:
            os.kill(os.getpid(), signal.SIGUSR1)
model = model_of(rate=0.0, metrics=["mae"])
history = model.fit(hk.loader(x, y, batch_size=4), epochs=1, callbacks=[Stop(), *hk.callbacks()], verbose=0)
whole = model.evaluate(x, y, return_dict=True, verbose=0)
print(json.dumps([history.history, whole]))
"""


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "backend"), [(1, "tensorflow"), (4, "tensorflow"), (4, "torch")])
def test_an_epoch_that_goes_on_at_another_size_reports_all_its_samples(
    ranks: int, backend: str, tmp_path: Path
) -> None:
    assert run(2, PARTS, tmp_path, backend=backend).status == 75
    ended = run(ranks, PARTS, tmp_path, backend=backend)
    assert ended.status == 0, ended.err
    history, whole = json.loads(next(line for line in ended.out.splitlines() if line.startswith("[")))
    # The rate is 0, so the model is the same all the time.
    assert history == {name: pytest.approx([value], rel=1e-5) for name, value in whole.items()}
    (entry,) = records(tmp_path)
    assert (entry["samples"], entry["train_loss"]) == (64, pytest.approx(whole["loss"], rel=1e-5))


CLOCK = """
class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 6 and not os.path.exists(sys.argv[1]):
            hk.sum_over_ranks([0.0])
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
import tensorflow as tf
parts = lambda: ((x[i : i + 4], y[i : i + 4]) for i in range(4 * world.rank, 64, 8))
shape = (tf.TensorSpec((None, 8), "float32"), tf.TensorSpec((None, 1), "float32"))
train = tf.data.Dataset.from_generator(parts, output_signature=shape) if sys.argv[2] == "unknown" else hk.loader(x, y, batch_size=4)
model_of().fit(train, epochs=2, callbacks=[Stop(), *hk.callbacks()], verbose=0)
"""


@pytest.mark.ranks
@pytest.mark.parametrize("length", ["known", "unknown"])
def test_steps_that_keras_begins_and_does_not_make_take_no_time(length: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    if length == "unknown":
        mark.touch()
    else:
        assert run(2, CLOCK, tmp_path, mark, length).status == 75
    ended = run(2, CLOCK, tmp_path, mark, length)
    assert ended.status == 0, ended.err
    assert [line["epoch"] for line in records(tmp_path)] == [1, 2]
    for line in records(tmp_path):
        assert 0.0 <= line["seconds_data"] <= line["seconds"]
