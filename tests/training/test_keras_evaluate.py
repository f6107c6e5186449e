"""An evaluation counts each sample once, whatever it is given; what `fit` and `evaluate` return, and what they do not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import Ended, run_world

HEAD = """
import json, os, signal
import keras, numpy as np
import hvdtrain.keras as hk
from hvdtrain.errors import UserError
world = hk.init()
x, y = np.ones((37, 4), "float32"), np.zeros((37, 1), "float32")
y[36] = 10  # alone in the last step of 2 ranks, one of which has none there
def model_of():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(hk.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", metrics=["mae"], jit_compile=False)
    return model
def tell(value):
    if world.rank == 0:
        print(json.dumps(value))
"""


def run(ranks: int, script: str, folder: Path, backend: str = "tensorflow") -> Ended:
    path = folder / "script.py"
    path.write_text(HEAD + script)
    return run_world(ranks, path, options=["--run-dir", str(folder / "run")], KERAS_BACKEND=backend)


def told(ended: Ended) -> Any:
    assert ended.status == 0, ended.err
    return json.loads(next(line for line in ended.out.splitlines() if line.startswith(("[", "{"))))


LOADERS = """
loaders = [hk.loader(x, y, batch_size=6 // world.size, uneven=uneven) for uneven in ("pad", "drop")]
model = model_of()
history = hk.fit(model, loaders[0], validation_data=loaders[0], steps_per_epoch=2, verbose=0).history
class Changed(np.ndarray):
    def in_epoch(self, epoch, indices):
        return np.asarray(self[indices])
changed = hk.loader(x.view(Changed), y, batch_size=4)
refused = []
for evaluate in (lambda: hk.evaluate(model, changed), lambda: hk.fit(model, x, y, validation_data=changed)):
    try:
        evaluate()
    except UserError as error:
        refused.append(str(error))
losses = [hk.evaluate(model, each, verbose=0)["loss"] for each in loaders]
tell([*losses, *history["val_loss"], refused])
"""


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_training_loader_is_evaluated_exactly_or_refused(backend: str, tmp_path: Path) -> None:
    *losses, refused = told(run(2, LOADERS, tmp_path, backend))
    assert losses == pytest.approx([100 / 37] * 3, rel=1e-5)
    assert len(refused) == 2
    assert all("hvdtrain.keras.validation_loader(x, y, batch_size=...)" in line for line in refused)


AFTER_A_RESTART = """
class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3 and not os.path.exists("FOLDER/mark"):
            open("FOLDER/mark", "w").close()
            os.kill(os.getpid(), signal.SIGUSR1)
model = model_of()
train = hk.loader(x, y, batch_size=6)
history = model.fit(train, validation_data=train, callbacks=[Stop(), *hk.callbacks()], verbose=0).history
plain = model.evaluate(train, return_dict=True, verbose=0)["loss"]
tell([*history["val_loss"], hk.evaluate(model, train, verbose=0)["loss"], plain])
"""


def test_a_training_loader_is_whole_again_after_an_epoch_that_went_on_in_its_middle(tmp_path: Path) -> None:
    script = AFTER_A_RESTART.replace("FOLDER", str(tmp_path))
    stopped = run(1, script, tmp_path)
    assert stopped.status == 75, stopped.err
    assert told(run(1, script, tmp_path)) == pytest.approx([100 / 37] * 3, rel=1e-5)


RETURNED = """
model = model_of()
data = hk.validation_loader(x, y, batch_size=8)
tell([
    hk.fit(model, x, y, batch_size=16, initial_epoch=3, epochs=6, verbose=0).epoch,
    model.fit(x, y, initial_epoch=3, epochs=6, verbose=0).epoch,
    *([*hk.evaluate(model, data, verbose=0, return_dict=each)] for each in (True, False)),
])
hk.evaluate(model, data, verbos=0)
"""


def test_fit_and_evaluate_return_what_those_of_keras_do_and_tell_a_mistyped_option(tmp_path: Path) -> None:
    ended = run(1, RETURNED, tmp_path)
    assert ended.status == 2, ended.err
    ours, of_keras, *evaluated = json.loads(next(line for line in ended.out.splitlines() if line.startswith("[")))
    assert ours == of_keras == [3, 4, 5]
    assert evaluated == [["loss", "mae"]] * 2
    assert "verbos= is none of model.evaluate's arguments" in ended.err
    assert 'did you mean "verbose"?' in ended.err and "Traceback" not in ended.err


ALONE = """
model = model_of()
train = hk.loader(x, y, batch_size=6)
history = model.fit(train, validation_data=train, steps_per_epoch=2, epochs=2, verbose=0).history
tell([*history["val_loss"], hk.evaluate(model, train, verbose=0)["loss"]])
"""


def test_one_rank_without_our_callbacks_validates_on_the_whole_of_a_training_loader_too(tmp_path: Path) -> None:
    *validated, evaluated = told(run(1, ALONE, tmp_path))
    assert validated == pytest.approx([100 / 37] * 2, rel=1e-5)
    assert evaluated == validated[-1]
