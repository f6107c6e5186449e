"""What TensorFlow's `model.fit` is given for our loaders: the same batches, without tf.data's self-tuning."""

from __future__ import annotations

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
print("all the same")
"""


@pytest.mark.ranks
def test_fit_is_given_the_loaders_own_batches_and_nothing_tunes_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = run_world(1, script, KERAS_BACKEND="tensorflow")
    assert ended.status == 0, ended.err
    assert "all the same" in ended.out
