"""A model with two networks, each with an optimizer of its own, in a `train_step` of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.worlds import Ended, run_world

SCRIPT = """
import os, signal, sys
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init(sys.argv[3] if len(sys.argv) > 3 else "horovod")
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(14, 4)).astype("float32"), rng.normal(size=(14, 1)).astype("float32")

class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        self.second = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.built = True

    def call(self, x):
        return self.first(x) + self.second(x)

    def losses_of(self, data):
        x, y = data
        square = lambda part, target: keras.losses.MeanSquaredError()(target, part(x, training=True))
        return self.optimizer.scale_loss(square(self.first, y)), self.others[0].scale_loss(square(self.second, 2 * y))

    def train_step(self, data):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf
            with tf.GradientTape(persistent=True) as tape:
                losses = self.losses_of(data)
            grads = [tape.gradient(loss, part.trainable_variables) for loss, part in zip(losses, (self.first, self.second))]
            self.update(grads)
        else:
            import torch
            self.zero_grad()
            losses = self.losses_of(data)
            (losses[0] + losses[1]).backward()
            with torch.no_grad():
                self.update([[v.value.grad for v in part.trainable_variables] for part in (self.first, self.second)])
        return {"loss": losses[0]}

    def update(self, grads):
        self.optimizer.apply(grads[0], self.first.trainable_variables)
        self.others[0].apply(grads[1], self.second.trainable_variables)

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and world.rank == world.size - 1 and len(sys.argv) == 3 and not os.path.exists(sys.argv[2]):
            open(sys.argv[2], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)

model = Two()
model.compile(hk.DistributedOptimizer(keras.optimizers.Adam(0.02), lr_rule="none"))
make = lambda: hk.DistributedOptimizer(keras.optimizers.Adam(0.01), lr_rule="none", warmup_epochs=1)
# The last one is for another training: it has no variables, and nobody asks it to weight a loss.
model.others = [make(), make()]
hk.broadcast(model.second, model.others[0])
train = hk.loader(x, y, batch_size=4 // hk.replicas(), seed=3)
model.fit(train, epochs=4, callbacks=[Stop(), *hk.callbacks()], verbose=0)
if world.rank == 0:
    np.savez(sys.argv[1], *model.get_weights(), *(keras.ops.convert_to_numpy(v) for v in model.others[0].variables))
"""


def run(ranks: int, folder: Path, name: str, *further: object, backend: str, **environ: str) -> Ended:
    (folder / "script.py").write_text(SCRIPT)
    options = ["--launcher", "local" if ranks > 1 else "none", "--run-dir", str(folder / name)]
    arguments = [folder / f"{name}.npz", *further]
    return run_world(ranks, folder / "script.py", *arguments, options=options, KERAS_BACKEND=backend, **environ)


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_both_train_as_one_rank_does_and_go_on_from_a_checkpoint(backend: str, tmp_path: Path) -> None:
    # 14 samples, 4 in a step: one sample for each of two ranks in the last; with four ranks none for two of them.
    for ranks, name in ((1, "one"), (2, "two"), (4, "four")):
        ended = run(ranks, tmp_path, name, backend=backend)
        assert ended.status == 0, ended.err
    stopped = run(2, tmp_path, "stopped", tmp_path / "mark", backend=backend)
    assert stopped.status == 75, stopped.err
    ended = run(2, tmp_path, "stopped", tmp_path / "mark", backend=backend)
    assert ended.status == 0, ended.err
    one, two, four, through = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two", "four", "stopped"))
    for name in one.files:
        assert two[name] == pytest.approx(one[name], abs=2e-6)
        assert four[name] == pytest.approx(one[name], abs=2e-6)
        assert np.array_equal(through[name], two[name])


@pytest.mark.ranks
def test_several_devices_of_one_process_train_both_as_one_does(tmp_path: Path) -> None:
    assert run(1, tmp_path, "one", backend="tensorflow").status == 0
    ended = run(1, tmp_path, "mirrored", "-", "mirrored", backend="tensorflow", HVDTRAIN_REPLICAS="2")
    assert ended.status == 0, ended.err
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "mirrored.npz") as mirrored:
        for name in one.files:
            assert mirrored[name] == pytest.approx(one[name], abs=2e-6)
