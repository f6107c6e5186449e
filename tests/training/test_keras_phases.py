"""Several `fit` in one script, what a restart makes of those that are over, and which checkpoint is the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import Ended, run_world

BEGIN = """
import json, os, signal, sys
from pathlib import Path
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init()
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 8)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
dense, norm = keras.layers.Dense, keras.layers.BatchNormalization
"""
PHASES = """
class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if world.rank == 1 and self.model.epoch == 3 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
    def on_epoch_begin(self, epoch, logs=None):
        self.model.epoch = epoch

frozen = dense(8)
model = keras.Sequential([keras.Input((8,)), frozen, norm(), dense(1)])
class Enough(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch >= 1

early = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e9, restore_best_weights=True)
early = Enough() if "own" in sys.argv else early
for phase, (epochs, callbacks) in enumerate([(10, [early]), (6, [Stop()])]):
    frozen.trainable = phase == 0
    model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    history = hk.fit(model, x, y, epochs=epochs, batch_size=4, callbacks=callbacks, verbose=0)
    print("phase", phase, "has", len(history.history["loss"]), "epochs")
from hvdtrain._keras.state import statistics
assert sorted(each.name for each in statistics(model)) == ["moving_mean", "moving_variance"]
weights = [value.sum(dtype="float64") for value in model.get_weights()]
assert hk.gather_objects(weights) == [weights] * world.size
"""


def run(ranks: int, script: str, folder: Path, *arguments: object, backend: str = "tensorflow") -> Ended:
    path = folder / "script.py"
    path.write_text(BEGIN + script)
    options = ["--launcher", "local" if ranks > 1 else "none", "--run-dir", str(folder / "run")]
    return run_world(ranks, path, *arguments, options=options, KERAS_BACKEND=backend)


@pytest.mark.ranks
@pytest.mark.parametrize("callback", ["keras", "own"])
def test_a_restart_leaves_a_training_that_is_over_as_it_was(callback: str, tmp_path: Path) -> None:
    stopped = run(2, PHASES, tmp_path, tmp_path / "mark", callback)
    assert stopped.status == 75, stopped.err
    before = sorted((tmp_path / "run" / "checkpoints").iterdir())
    ended = run(2, PHASES, tmp_path, tmp_path / "mark", callback)
    assert ended.status == 0, ended.err
    # The first one was stopped early, in its second epoch of ten, and a signal came in the fourth of the second one.
    assert "2 epochs were trained before" in ended.out
    assert ended.out.count("phase 0 has 2 epochs") == ended.out.count("phase 1 has 6 epochs") == 1
    assert sorted((tmp_path / "run" / "checkpoints").iterdir()) == before
    lines = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 9))
    assert [line["restart"] for line in lines] == [0] * 5 + [1] * 3


LATER_EPOCHS = """
class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 4 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)

model = keras.Sequential([keras.Input((8,)), dense(1)])
model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
for first, epochs in ((0, 3), (3, 6), (6, 7), (0, 2)):
    history = hk.fit(model, x, y, initial_epoch=first, epochs=epochs, batch_size=4, callbacks=[Stop()], verbose=0)
    print("from", first, "has", len(history.history["loss"]), "epochs")
"""


@pytest.mark.ranks
def test_epochs_that_are_numbered_on_are_recorded_under_these_numbers(tmp_path: Path) -> None:
    """Stopped in the second epoch of the second `fit`; another start finds nothing left to do."""
    for status, lines in ((75, 4), (0, 9), (0, 9)):
        ended = run(1, LATER_EPOCHS, tmp_path, tmp_path / "mark")
        assert ended.status == status, ended.err
        recorded = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in recorded] == list(range(1, lines + 1))
    assert [line["restart"] for line in recorded] == [0] * 4 + [1] * 5
    told = [line for line in ended.out.splitlines() if line.startswith("from")]
    assert told == [f"from {first} has {n} epochs" for first, n in ((0, 3), (3, 3), (6, 1), (0, 2))]


WITHOUT_NUMBER = """
class Bad(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if (self.model.epoch, batch) == (2, 5):
            self.model.trainable_variables[0].assign(np.full((8, 1), np.nan))
    def on_epoch_begin(self, epoch, logs=None):
        self.model.epoch = epoch

model = keras.Sequential([keras.Input((8,)), dense(1)])
model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
kept = model.get_weights()
try:
    hk.fit(model, x, y, epochs=5, batch_size=4, callbacks=[Bad()], verbose=0)
except hk.Diverged:
    model.set_weights(kept)
hk.fit(model, x, y, epochs=2, batch_size=4, verbose=0)
"""


@pytest.mark.ranks
def test_a_training_after_one_that_diverged_is_recorded_after_it(tmp_path: Path) -> None:
    ended = run(1, WITHOUT_NUMBER, tmp_path)
    assert ended.status == 0, ended.err
    recorded = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in recorded] == [1, 2, 3, 4]
    # In the place of the third epoch of the first one, which came to no number.
    assert None not in [line["train_loss"] for line in recorded]


KEEPS = """
model = keras.Sequential([keras.Input((8,)), dense(8), norm(), dense(1)])
model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse", jit_compile=False)
best = keras.callbacks.ModelCheckpoint("best.weights.h5", monitor="loss", save_best_only=True, save_weights_only=True)
stop = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
hk.fit(model, x, y, epochs=1, batch_size=4, callbacks=[best, stop, *hk.callbacks(checkpoints=False)], verbose=0)
ended = model.get_weights()
everywhere = hk.gather_objects(ended)
assert all(np.array_equal(a, b) for other in everywhere for a, b in zip(other, ended, strict=True))
if world.rank == 0:
    kept = keras.Sequential([keras.Input((8,)), dense(8), norm(), dense(1)])
    kept.load_weights("best.weights.h5")
    assert all(np.array_equal(a, b) for a, b in zip(kept.get_weights(), ended, strict=True))
    print("the same")
"""


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_what_callbacks_keep_holds_the_statistics_of_all_ranks(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(2, KEEPS, tmp_path, backend=backend)
    assert ended.status == 0, ended.err
    assert "the same" in ended.out


MONITORS = """
class Odd(keras.metrics.Mean):
    def __init__(self, name="odd", **options):
        super().__init__(name=name, **options)
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred)
Odd._direction = None
del Odd._direction

name, mode = sys.argv[1:]
model = keras.Sequential([keras.Input((8,)), dense(1)])
model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", metrics=["mae", "r2_score", Odd()], jit_compile=False)
train, validation = hk.loader(x, y, batch_size=8), hk.validation_loader(x, y, batch_size=8)
callbacks = hk.callbacks(monitor=name, mode=mode, keep=9)
history = model.fit(train, validation_data=validation, epochs=3, verbose=0, callbacks=callbacks).history
print(json.dumps(history[name]))
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("monitor", "mode", "sign"),
    [
        ("val_mae", "auto", -1),
        ("val_loss", "auto", -1),
        ("val_r2_score", "auto", 1),
        ("odd", "max", 1),
        ("odd", "min", -1),
    ],
)
def test_the_best_checkpoint_is_what_the_metric_says(monitor: str, mode: str, sign: int, tmp_path: Path) -> None:
    ended = run(1, MONITORS, tmp_path, monitor, mode)
    assert ended.status == 0, ended.err
    scores = [json.loads(path.read_text())["score"] for path in sorted((tmp_path / "run/checkpoints").glob("*.json"))]
    assert scores == [sign * value for value in json.loads(ended.out.splitlines()[-1])]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("monitor", "mode", "told"),
    [
        ("val_mea", "auto", 'monitor="val_mea" is not among'),
        ("odd", "auto", 'Keras does not know whether more or less of it is better; add mode="min" or "max"'),
        ("odd", "most", 'mode="most" is not one of auto, min, max'),
    ],
)
def test_what_cannot_be_monitored_is_refused(monitor: str, mode: str, told: str, tmp_path: Path) -> None:
    ended = run(1, MONITORS, tmp_path, monitor, mode)
    assert ended.status == 2, ended.err
    assert told in ended.err and "Traceback" not in ended.err


SELDOM = """
train, validation = hk.loader(x, y, batch_size=8), hk.validation_loader(x, y, batch_size=8)
for name in ("val_loss", None, "loss"):
    model = keras.Sequential([keras.Input((8,)), dense(1)])
    model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    callbacks = hk.callbacks(monitor=name, keep=9)
    model.fit(train, validation_data=validation, validation_freq=2, epochs=4, verbose=0, callbacks=callbacks)
"""


@pytest.mark.ranks
def test_an_epoch_without_validation_is_not_the_best_by_it(tmp_path: Path) -> None:
    ended = run(1, SELDOM, tmp_path)
    assert ended.status == 0, ended.err
    for folder, scored in (("checkpoints", [2, 4]), ("checkpoints-2", [2, 4]), ("checkpoints-3", [1, 2, 3, 4])):
        saved = [json.loads(path.read_text()) for path in sorted((tmp_path / "run" / folder).glob("*.json"))]
        assert [each["epoch"] for each in saved] == [1, 2, 3, 4]
        assert [each["epoch"] for each in saved if each["score"] is not None] == scored


SEVERAL = """
inputs = keras.Input((8,))
hidden = dense(8)(inputs)
model = keras.Model(inputs, [dense(1, name="a")(hidden), dense(1, name="b")(hidden)])
optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=3)
model.compile(hk.DistributedOptimizer(optimizer, lr_rule="none"), ["mse", "mae"], metrics=[["mae"], ["mse"]], jit_compile=False)
class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if world.rank == 1 and (self.epoch, batch) == (2, 4) and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_epoch_end(self, epoch, logs=None):
        if world.rank == 1 and (epoch, sys.argv[2]) == (1, "end") and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
history = hk.fit(model, x, [y, y + 1], batch_size=4, epochs=5, callbacks=[Stop()], verbose=0).history
ended = [history, [value.tolist() for value in model.get_weights()]]
if world.rank == 0:
    print(json.dumps(ended))
"""


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_several_outputs_and_sums_between_updates_go_on(backend: str, tmp_path: Path) -> None:
    """Eight steps an epoch and an update in every third: at the ends of epochs each rank has sums of its own."""

    def train(name: str, place: str = "-", status: int = 0) -> Any:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        ended = run(2, SEVERAL, folder, folder / "mark" if place != "-" else "/", place, backend=backend)
        assert ended.status == status, ended.err
        return json.loads(ended.out.splitlines()[-1]) if status == 0 else None

    expected = train("through")
    for place in ("middle", "end"):
        train(place, place, status=75)
        found = train(place, place)
        assert found[1] == expected[1], place
        assert found[0]["loss"] == pytest.approx(expected[0]["loss"], abs=1e-6)


DROPS = """
model = keras.Sequential([keras.Input((8,)), dense(1)])
model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if world.size == 2 and batch == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
train = hk.loader(x[:50], y[:50], batch_size=8, uneven="drop")
model.fit(train, epochs=2, callbacks=[Stop(), *hk.callbacks()], verbose=0)
"""


@pytest.mark.ranks
def test_what_is_left_of_an_epoch_may_be_less_than_a_step_of_more_ranks(tmp_path: Path) -> None:
    assert run(2, DROPS, tmp_path).status == 75
    ended = run(4, DROPS, tmp_path)
    assert ended.status == 0, ended.err
    recorded = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    # Two steps of 16, and nothing of the 18 that are left; then one step of 32.
    assert [(each["epoch"], each["samples"]) for each in recorded] == [(1, 32), (2, 32)]
    assert all(each["train_loss"] > 0 for each in recorded)
