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
