"""What TensorFlow's `model.fit` is given for our loaders: the same batches, without tf.data's self-tuning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds import run_world

SCRIPT = """
import keras, numpy as np
import hvdtrain.keras as hk
hk.init()
from hvdtrain._keras.tensorflow_feed import dataset

x = {"words": np.array(["a", "bcd", "ef", "g", "h"] * 2), "numbers": np.arange(20.0).reshape(10, 2)}
train = hk.loader(x, np.arange(10), np.linspace(0, 1, 10), batch_size=4)
for data in (train, hk.validation_loader(x, np.arange(10), batch_size=4)):
    made = dataset(data)
    assert made.options().autotune.enabled is False
    assert len(made) == len(data)
    for epoch in (1, 2):
        if data is train:
            train.start(epoch)
        for index, batch in enumerate(made):
            for given, expected in zip(keras.tree.flatten(batch), keras.tree.flatten(data[index]), strict=True):
                assert given.numpy().astype(str).tolist() == expected.astype(str).tolist()
        assert index == len(data) - 1
orders = [[*map(int, np.concatenate([batch[1] for batch in dataset(train)]))] for train.epoch in (1, 2)]
assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(10)), orders
own = np.arange(3)
assert dataset(own) is own
many = hk.loader(np.arange(8.0), batch_size=4, workers=2, use_multiprocessing=True)
assert dataset(many) is many
ahead = hk.loader(np.arange(20.0), np.arange(20) % 3, batch_size=4, workers=2)
assert len(ahead[0]) == 2
for weights in ({0: 3.0}, {0: 2.0}, None):
    ahead.train_as(3, weights)
    for index in range(len(ahead)):
        batch = ahead[index]
        assert len(batch) == (3 if weights else 2)
        assert not weights or batch[2].tolist() == [weights.get(each, 1.0) for each in batch[1]]
assert index == 2
print("all the same")
"""


@pytest.mark.ranks
def test_fit_is_given_the_loaders_own_batches_and_nothing_tunes_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = run_world(1, script, KERAS_BACKEND="tensorflow")
    assert ended.status == 0, ended.err
    assert "all the same" in ended.out


WHOLE = """
import keras, numpy as np, pandas as pd
import hvdtrain.keras as hk
world = hk.init()
rng = np.random.default_rng(0)
x, y = rng.normal(size=(60, 4)).astype("float32"), rng.integers(0, 3, 60)
weights = rng.uniform(0.1, 2, 60).astype("float32")

def trained(*arrays, rule="none", **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.1), lr_rule=rule)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], weighted_metrics=["accuracy"], jit_compile=False)
    history = hk.fit(model, *arrays, batch_size=20 // world.size, epochs=2, verbose=0, **options).history
    return np.concatenate([*history.values(), *(weight.ravel() for weight in model.get_weights())])

split = trained(x, y, sample_weight=weights, validation_split=0.25, validation_batch_size=7)
given = trained(x[:45], y[:45], sample_weight=weights[:45], validation_data=(x[45:], y[45:], weights[45:]))
np.testing.assert_allclose(split, given, atol=1e-6)
assert abs(split - trained(x, y, validation_split=0.25)).max() > 1e-3, "weights must count"

shuffled = pd.DataFrame(x).sample(frac=1, random_state=1)
labels = pd.Series(y)[shuffled.index]
arrays = trained(shuffled.to_numpy(), labels.to_numpy())
np.testing.assert_array_equal(trained(shuffled, labels), arrays)
tensors = [keras.ops.convert_to_tensor(each.to_numpy()) for each in (shuffled, labels)]
np.testing.assert_array_equal(trained(*tensors), arrays)
assert abs(trained(x, y, shuffle=False) - trained(x, y)).max() > 1e-4
batches = ((x[begin : begin + 10], y[begin : begin + 10]) for begin in 2 * [0, 10, 20])
assert np.isfinite(trained(batches, steps_per_epoch=3)).all()
absolute = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
weights_of = slice(-15, None)  # the logs hold the rate too
by_callback = trained(x, y, rule="linear", callbacks=[absolute])
np.testing.assert_array_equal(by_callback[weights_of], trained(x, y)[weights_of])
by_class = {0: 3.0, 2: 0.5}
given = np.array([by_class.get(each, 1.0) for each in y], "float32")
np.testing.assert_array_equal(trained(x, y, class_weight=by_class), trained(x, y, sample_weight=given))
whole = hk.loader(x, y, batch_size=20 // world.size)
trained(whole, class_weight=by_class, steps_per_epoch=1)
assert (len(whole), len(whole[0])) == (3, 2), "as it was, once the training is over"
print("ended", *trained(x, y).round(5))
"""


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_fit_takes_what_keras_takes(backend: str, tmp_path: Path) -> None:
    """Splits, weights, frames of pandas whose rows were shuffled, tensors, generators; the same with one rank and with two."""
    script = tmp_path / "script.py"
    script.write_text(WHOLE)
    ended = []
    for ranks in (1, 2):
        world = run_world(ranks, script, KERAS_BACKEND=backend)
        assert world.status == 0, world.err
        assert world.out.count("note: a callback has set the learning rate to 0.1, that for one rank") == ranks - 1
        line = next(line for line in world.out.splitlines() if line.startswith("ended"))
        ended.append([float(number) for number in line.split()[1:]])
    assert ended[1] == pytest.approx(ended[0], abs=2e-5)


FLAGS = """
import torch
import hvdtrain.keras as hk
hk.init()
from hvdtrain._keras import torch_backend

class Horovod:
    Average = "average"

    def grouped_allreduce(self, tensors, **options):
        assert len({each.device for each in tensors}) == 1, "Horovod takes a group on one device only"
        return [*tensors[:-1], torch.zeros(3)]

class Two:
    size = 2

torch_backend._horovod, torch_backend.world = Horovod, Two
torch_backend.TorchWire("none").average([torch.zeros(3, device="meta")], ["a"])
print("on one device")
"""


def test_on_pytorch_flags_travel_on_the_device_of_the_gradients(tmp_path: Path) -> None:
    """A device without memory stands in for a GPU."""
    script = tmp_path / "script.py"
    script.write_text(FLAGS)
    ended = run_world(1, script, KERAS_BACKEND="torch")
    assert (ended.status, ended.out.count("on one device")) == (0, 1), ended.err


EPOCHS = """
import json
import keras, numpy as np
import hvdtrain.keras as hk
hk.init()
seen = []
class Changed(np.ndarray):
    def in_epoch(self, epoch, indices):
        seen.append((epoch, *indices.tolist()))
        return np.asarray(self[indices])
x = np.ones((16, 4), "float32").view(Changed)
told = []
for given in ([], hk.callbacks(checkpoints=False)):
    for options in ({}, {"steps_per_epoch": 1}):
        train = hk.loader(x, np.ones((16, 1)), batch_size=8)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
        seen.clear()
        model.fit(train, initial_epoch=1, epochs=4, callbacks=given, verbose=0, **options)
        told.append(sorted(set(seen)))
print(json.dumps(told))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_one_rank_without_our_callbacks_has_a_new_order_in_each_epoch_too(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(EPOCHS)
    ended = run_world(1, script, KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    plain, plain_steps, ours, ours_steps = json.loads(ended.out.splitlines()[-1])
    for batches, steps in ((plain, 2), (plain_steps, 1), (ours, 2), (ours_steps, 1)):
        # Keras may look at a batch of the first epoch before that one begins, to build the model.
        assert [batch[0] for batch in batches if batch[0] > 1] == [epoch for epoch in (2, 3, 4) for _ in range(steps)]
    for mine, other in ((plain, ours), (plain_steps, ours_steps)):
        assert [batch for batch in mine if batch[0] > 1] == [batch for batch in other if batch[0] > 1]
