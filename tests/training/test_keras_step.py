"""The compiled step that takes the place of Keras' own on TensorFlow: the same training, and ranks that cannot exchange say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import run_world

DIFFERING = """
import keras, numpy as np, sys
import hvdtrain.keras as hk
world = hk.init()

class Sometimes(keras.Model):
    def __init__(self):
        super().__init__()
        self.always, self.at_times, self.last = (keras.layers.Dense(4) for _ in range(3))
        self.rows = keras.layers.Embedding(3, 4)

    def build(self, shape):
        self.always.build(shape), self.at_times.build(shape), self.last.build((None, 4)), self.rows.build()

    def call(self, x):
        hidden = self.always(x)
        return self.last(hidden + self.at_times(x) + self.rows(x[:, 0]) if world.rank == 1 else hidden)

keras.utils.set_random_seed(1)
model = Sometimes()
model.build((None, 4))
optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.1))
model.compile(optimizer, "mse", jit_compile=False, run_eagerly=sys.argv[1] == "eagerly")
x, before = np.ones((32, 4), "float32"), model.rows.get_weights()[0]
model.fit(hk.loader(x, x, batch_size=4), epochs=1, callbacks=hk.callbacks(checkpoints=False), verbose=0)
after = hk.gather_objects(model.get_weights())
assert all((a == b).all() for a, b in zip(*after)), after
assert (model.rows.get_weights()[0] != before).any(1).tolist() == [False, True, False]
print("trained")
"""

SAME = """
import keras, numpy as np, threading, time
import tensorflow as tf
import hvdtrain.keras as hk
from hvdtrain._keras import tensorflow_backend, tensorflow_step
world = hk.init()
x, y = np.random.default_rng(0).normal(size=(42, 4)).astype("float32"), np.arange(42) % 3

class Slow(type(hk.loader(x, y, batch_size=4))):
    threads = set()

    def __getitem__(self, step):
        Slow.threads.add(threading.current_thread() is threading.main_thread())
        time.sleep(0.002)
        return super().__getitem__(step)

def trained(how):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hk.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss, metrics=["accuracy"], jit_compile=how == "weights")
    data, options = hk.loader(x, y, batch_size=4), {}
    if how == "slow":
        data.__class__ = Slow
    if how == "weights":
        options["class_weight"] = {0: 1.0, 1: 1.0, 2: 1.0}
    if how == "dataset":
        mine = [data[step] for step in range(5)]
        whole = [np.concatenate(parts) for parts in zip(*mine)]
        data = tf.data.Dataset.from_tensor_slices(tuple(whole)).batch(4)
    used.clear(), compiled.clear()
    history = model.fit(data, epochs=1, callbacks=hk.callbacks(checkpoints=False), verbose=0, **options)
    assert not model.jit_compile, "a program of XLA's could not reach the optimizer's state in the host's memory"
    return used[:], history.history, model.get_weights()

used, compiled = [], []
made, compile = tensorflow_step.Step.__call__, tensorflow_step.Step._compile
tensorflow_step.Step.__call__ = lambda self, *given: used.append(given[1]) or made(self, *given)
tensorflow_step.Step._compile = lambda self, *given: compiled.append(compile(self, *given)) or compiled[-1]
ours, logs, weights = trained("ours")
conditions = [each for each in compiled[0].graph.get_operations() if each.type == "If"]
assert [each.get_attr("_lower_using_switch_merge") for each in conditions] == [False], "that of the norms, as one operation"
assert ours == [*range(len(hk.loader(x, y, batch_size=4)))], ours
possible, tensorflow_backend.possible = tensorflow_backend.possible, lambda *given: False
keras_own, expected_logs, expected = trained("keras")
_, dataset_logs, dataset_weights = trained("dataset")
assert keras_own == used == []
tensorflow_backend.possible = possible
assert logs == expected_logs, (logs, expected_logs)
for a, b in zip(weights, expected, strict=True):
    assert (a == b).all()
slow, slow_logs, slow_weights = trained("slow")
assert slow == ours and slow_logs == logs and all((a == b).all() for a, b in zip(slow_weights, weights))
assert Slow.threads == {True, False}, "the thread took over after three slow batches"
weighted, weighted_logs, _ = trained("weights")
assert weighted == ours, "class weights come with the batches"
assert all(np.allclose(weighted_logs[name], logs[name]) for name in logs)
own, own_logs, own_weights = trained("dataset")
assert own == [*range(5)] and own_logs == dataset_logs, (own, own_logs, dataset_logs)
assert all((a == b).all() for a, b in zip(own_weights, dataset_weights))
print("the same")
"""


@pytest.mark.ranks
@pytest.mark.parametrize("how", ["compiled", "eagerly"])
def test_ranks_with_gradients_for_different_variables(how: str, tmp_path: Path) -> None:
    """A compiled step would wait for ever for what one rank never sends; an eager one adds zeros, also to rows of a table."""
    script = tmp_path / "differing.py"
    script.write_text(DIFFERING)
    ended = run_world(2, script, how, KERAS_BACKEND="tensorflow")
    if how == "eagerly":
        assert (ended.status, ended.out.count("trained")) == (0, 2), ended.err
        return
    assert ended.status == 2, ended.err
    assert "rank 0 has no gradient for sometimes/dense_1/kernel and 2 more, which another rank has" in ended.err
    assert ended.err.count("run_eagerly=True") == 1
    assert "Traceback" not in ended.err


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_of_ours_trains_as_keras_own(ranks: int, tmp_path: Path) -> None:
    """Bit by bit: logs and weights, with batches made in place or ahead by a thread, and a last step that is not full."""
    script = tmp_path / "same.py"
    script.write_text(SAME)
    ended = run_world(ranks, script, KERAS_BACKEND="tensorflow")
    assert ended.status == 0, ended.err
    assert ended.out.count("the same") == ranks
