"""Models without a `call`, whose `train_step` trains their parts, and layers that draw without a seed of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import run_world

SCRIPT = """
import json, os, signal, sys
import keras, numpy as np, tensorflow as tf
import hvdtrain.keras as hk
world = hk.init()
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")

class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        self.decoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        (x,) = data
        with tf.GradientTape() as tape:
            code = self.encoder(x)
            code += keras.random.normal(tf.shape(code))
            loss = self.optimizer.scale_loss(tf.reduce_mean(tf.square(x - self.decoder(code))))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, [each.value for each in variables]), variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations == 7 and not os.path.exists(sys.argv[1]):
            hk.sum_over_ranks([0.0])
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)

model = Autoencoder()
model.compile(hk.DistributedOptimizer(keras.optimizers.Adam(0.01), lr_rule="none"), jit_compile=False)
model.fit(hk.loader(x, batch_size=4), epochs=2, callbacks=[Stop(), *hk.callbacks()], verbose=0)
drawn = hk.gather_objects(float(keras.random.normal(())))
if world.rank == 0:
    print(json.dumps([[value.tolist() for value in model.get_weights()], drawn]))
"""


@pytest.mark.ranks
def test_a_model_without_a_call_draws_on_each_rank_for_itself_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def train(name: str, mark: Path, status: int = 0) -> Any:
        options = ["--launcher", "local", "--run-dir", str(tmp_path / name)]
        ended = run_world(2, script, mark, options=options, KERAS_BACKEND="tensorflow")
        assert ended.status == status, ended.err
        return json.loads(ended.out.splitlines()[-1]) if status == 0 else None

    whole = train("whole", tmp_path)
    train("parts", tmp_path / "mark", status=75)
    assert train("parts", tmp_path / "mark") == whole
    assert len(set(whole[1])) == 2


ALONE = """
import os, pathlib, random, signal, sys
import keras, numpy as np, tensorflow as tf
import hvdtrain.keras as hk
from hvdtrain._keras import state
from hvdtrain._keras.checkpoints import Checkpoints
hk.init("single")
x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
folder = pathlib.Path(sys.argv[1])

def made():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dropout(0.1)])
    model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    return model

keras.utils.set_random_seed(1)
model = made()
hk.broadcast(model)
before = random.getstate()
own = state.own_state(model)
assert random.getstate() == before, "Keras' generator of its own takes a number from Python's when it is made"
own["seeds"].append(own["seeds"][0])
state.restore_own(model, own)  # of one device, to several of one process

class Breaks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 1
    def on_epoch_end(self, epoch, logs=None):
        raise OSError("broken off")

ours = hk.callbacks(checkpoints=folder / "broken")
try:
    model.fit(hk.loader(x, x, batch_size=4), callbacks=[Breaks(), *ours], verbose=0)
except OSError as error:
    print(error)
second = made()
second.fit(hk.loader(x, x, batch_size=4), callbacks=ours, verbose=0)
(kept,) = [each for each in folder.glob("broken*") if any(each.iterdir())]
content = Checkpoints(kept, 2).load()
assert (content["epoch"], content["consumed"]) == (1, 0)
assert all((a == b).all() for a, b in zip(content["weights"], second.get_weights()))

class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if not (folder / "mark").exists() and self.model.optimizer.iterations == 6:
            (folder / "mark").touch()
            os.kill(os.getpid(), signal.SIGUSR1)

lower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate)
data = tf.data.Dataset.from_tensor_slices((x, x)).batch(4)
third = made()
given = [Stop(), lower, *hk.callbacks(checkpoints=folder / "rates")]
history = third.fit(data, epochs=3, callbacks=given, verbose=0).history
np.testing.assert_allclose(history["learning_rate"], [0.1 * 0.9**epoch for epoch in (1, 2, 3)], rtol=1e-6)
print("all three")
"""


def test_one_process_draws_breaks_off_and_begins_epochs_anew(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALONE)
    stopped, ended = (run_world(1, script, tmp_path / "kept", KERAS_BACKEND="tensorflow") for _ in range(2))
    assert stopped.status == 75, stopped.err
    assert (ended.status, ended.out.count("all three")) == (0, 1), ended.err


SEEDED_AGAIN = """
import json
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init()
ones = np.ones((16, 64), "float32")
seen = []
for seed in (1, 2, 2, None, None):
    if seed is not None:
        keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(hk.loader(ones, ones[:, :1], batch_size=4), callbacks=hk.callbacks(), verbose=0)
    drawn = keras.ops.convert_to_numpy(model.layers[0](ones[:1], training=True))[0]
    seen.append(hk.gather_objects((drawn > 0).astype(int).tolist()))
if world.rank == 0:
    print(json.dumps(seen))
"""


@pytest.mark.ranks
def test_ranks_of_pytorch_that_a_script_seeds_again_draw_each_for_itself_in_a_later_fit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SEEDED_AGAIN)
    ended = run_world(2, script, options=["--launcher", "local"], KERAS_BACKEND="torch")
    assert ended.status == 0, ended.err
    first, second, again, on, further = json.loads(ended.out.splitlines()[-1])
    for mine, other in (first, second, again, on, further):
        assert mine != other, "ranks drop the same units"
    assert on not in (again, further)  # not seeded, it goes on with the numbers of the one before
