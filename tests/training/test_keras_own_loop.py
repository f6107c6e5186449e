"""What loops of one's own get besides averaged gradients: checkpoints, agreed stops, downloads once per node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.worlds import run_world

LOOP = """
import os, signal, sys
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init()
keras.utils.set_random_seed(1 + world.rank)
with hk.rank_zero_first():
    print(f"rank {world.rank} loads", flush=True)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(36, 4)).astype("float32"), rng.integers(0, 3, 36)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
optimizer = hk.DistributedOptimizer(keras.optimizers.Adam(0.01), lr_rule="linear")
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
checkpoints = hk.Checkpoints(model, optimizer, sys.argv[1])
train = hk.loader(x, y, batch_size=6, seed=3)
for epoch in range(checkpoints.resume() + 1, 5):
    train.start(epoch)
    for index, part in enumerate(train.batches()):
        xs, ys = train[index]
        STEP
    if epoch == 2 and world.rank == 1 and len(sys.argv) > 3 and not os.path.exists(sys.argv[3]):
        open(sys.argv[3], "w").close()
        os.kill(os.getpid(), signal.SIGTERM)
    checkpoints.save(epoch)
    checkpoints.stop_if_asked(epoch)
if world.rank == 0:
    np.savez(sys.argv[2], *model.get_weights(), *(keras.ops.convert_to_numpy(v) for v in optimizer.variables))
"""
STEPS = {
    "tensorflow": """
        import tensorflow as tf
        with tf.GradientTape() as tape:
            loss = loss_of(ys, model(xs, training=True)) * part.weight
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)""",
    "torch": """
        import torch
        model.zero_grad()
        (loss_of(torch.tensor(ys), model(torch.tensor(xs), training=True)) * part.weight).backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)""",
}


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_loop_that_was_stopped_goes_on_as_if_it_had_not_been(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP.replace("STEP", STEPS[backend].strip()))

    def train(name: str, ranks: int = 2, *mark: Path) -> tuple[int, str, str]:
        ended = run_world(ranks, script, tmp_path / name, tmp_path / f"{name}.npz", *mark, KERAS_BACKEND=backend)
        return ended.status, ended.out, ended.err

    status, out, err = train("whole")
    assert status == 0, err
    assert [line for line in out.splitlines() if line.endswith("loads")] == ["rank 0 loads", "rank 1 loads"]
    status, _, err = train("parts", 2, tmp_path / "mark")
    assert status == 75, err
    assert "all ranks stopped after epoch 2, asked by SIGTERM; checkpoint in" in err
    status, out, err = train("parts", 2, tmp_path / "mark")
    assert status == 0, err
    assert "going on after epoch 2, from" in out
    with np.load(tmp_path / "whole.npz") as expected, np.load(tmp_path / "parts.npz") as parts:
        assert [name for name in expected.files if not np.array_equal(expected[name], parts[name])] == []


THEN_A_LOOP = """
import keras, numpy as np
import hvdtrain.keras as hk
hk.init()
x = np.ones((8, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
fit = lambda: hk.fit(model, x, x[:, :1], batch_size=4, epochs=2, verbose=0)
fit()
for each in range(2):
    checkpoints = hk.Checkpoints(model, model.optimizer)
    first = checkpoints.resume()
    for epoch in range(first + 1, 4):
        checkpoints.save(epoch)
    print("loop after", first)
fit()
"""


@pytest.mark.ranks
def test_a_loop_after_a_fit_has_a_folder_of_its_own_and_finds_it_again(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(THEN_A_LOOP)
    options = ["--launcher", "none", "--run-dir", str(tmp_path / "run")]
    for first in (0, 3):
        ended = run_world(1, script, options=options, KERAS_BACKEND="torch")
        assert ended.status == 0, ended.err
        told = [line for line in ended.out.splitlines() if line.startswith("loop after")]
        assert told == [f"loop after {first}", "loop after 3"]
        folders = sorted(path.name for path in (tmp_path / "run").glob("checkpoints*"))
        assert folders == ["checkpoints", "checkpoints-2", "checkpoints-3"]


@pytest.mark.ranks
def test_a_download_that_fails_on_one_rank_ends_all_with_its_message(tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(
        "import hvdtrain.keras as hk\nworld = hk.init()\nwith hk.rank_zero_first():\n"
        "    if world.rank == 0:\n        raise OSError(28, 'No space left on device', 'mnist.npz')\nprint('went on')\n"
    )
    ended = run_world(2, script, KERAS_BACKEND="torch")
    assert ended.status == 2
    assert "rank 0 on" in ended.err and "failed in rank_zero_first()" in ended.err and "No space left" in ended.err
    assert "went on" not in ended.out


# Once it is under way little patience is left; on two cores that others use, imports and compiling may take as long as they do.
THAT_STALLS = """
import sys, time
import keras, numpy as np
import hvdtrain.keras as hk
from hvdtrain import launch
world = hk.init()
x, y = np.ones((4, 4), "float32"), np.zeros(4, "int64")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.01), lr_rule="none")
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
hk.broadcast(model, optimizer)
STEP
step()
if world.rank == 0:
    launch.active._supervisor.stall_timeout = 2
began = time.monotonic()
for _ in range(60):
    step()
    time.sleep(0.1)
print(f"rank {world.rank} is well after {time.monotonic() - began:.0f} s", flush=True)
time.sleep(3600 * world.rank)
step()
"""
EVERY_STEP = {
    "tensorflow": """
import tensorflow as tf
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)""",
    "torch": """
import torch
def step():
    model.zero_grad()
    loss_of(torch.tensor(y), model(torch.tensor(x), training=True)).backward()
    with torch.no_grad():
        optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)""",
}


@pytest.mark.ranks
@pytest.mark.faults
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_steps_are_progress_whatever_data_they_have_until_a_rank_makes_none(backend: str, tmp_path: Path) -> None:
    """Of a compiled step Python sees nothing: it is the graph that counts."""
    script = tmp_path / "loop.py"
    script.write_text(THAT_STALLS.replace("STEP", EVERY_STEP[backend].strip()))
    ended = run_world(2, script, KERAS_BACKEND=backend)
    assert sorted(line[:14] for line in ended.out.splitlines()) == ["rank 0 is well", "rank 1 is well"], ended.err
    assert ended.status == 1
    assert "no rank has made progress for 2 s; behind: rank 1 on" in ended.err
    assert "time.sleep(3600 * world.rank)" in ended.err


THAT_TELLS = """
import keras, numpy as np
import hvdtrain.keras as hk
from hvdtrain.launch.session import Session
hk.init()
told = []
Session.progress = lambda self, activity, step=None: told.append(activity)
x = np.ones((8, 4), "float32")
for threads in (1, 2):
    for data in hk.loader(x, batch_size=4, workers=threads), hk.validation_loader(x, batch_size=2, workers=threads):
        for index in range(len(data)):
            data[index]
    print(*told)
    told.clear()
hk.record_epoch(1, samples=8, seconds=1.0)
print(*told)
"""


@pytest.mark.ranks
def test_batches_and_epochs_are_progress(tmp_path: Path) -> None:
    """Where many batches make one update, and in an evaluation, no rank waits for another and no gradient is averaged."""
    script = tmp_path / "loop.py"
    script.write_text(THAT_TELLS)
    ended = run_world(1, script, options=["--launcher", "none"], KERAS_BACKEND="torch")
    assert ended.out.splitlines() == [*["training training" + 4 * " validation"] * 2, "training"], ended.err


THAT_EVALUATES = """
import keras, numpy as np
import hvdtrain.keras as hk
from hvdtrain.launch.session import Session
hk.init()
told, seen = [], []
Session.progress = lambda self, activity, step=None: told.append(activity)
class Sees(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        seen.append(batch)
x = np.ones((8, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(loss="mse", jit_compile=False)
for own in (None, [Sees()], Sees(), keras.callbacks.CallbackList([Sees()])):
    assert list(hk.evaluate(model, x, x[:, :1], batch_size=2, verbose=0, callbacks=own)) == ["loss"]
    print(len(seen), *told)
    told.clear(), seen.clear()
"""


@pytest.mark.ranks
def test_batches_that_are_evaluated_are_progress(tmp_path: Path) -> None:
    """By `hk.evaluate` outside of `fit`, whatever data and callbacks it is given."""
    script = tmp_path / "loop.py"
    script.write_text(THAT_EVALUATES)
    ended = run_world(1, script, options=["--launcher", "none"], KERAS_BACKEND="torch")
    told = 4 * " validation"
    assert ended.out.splitlines() == [f"0{told}", *[f"4{told}"] * 3], ended.err
