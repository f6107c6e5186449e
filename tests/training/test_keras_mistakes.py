"""What would train each rank by itself, or wait for ever, is refused before the first step; models stay plain Keras models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds import run_world

SCRIPT = """
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init()
x, y = np.ones((48, 4), "float32"), np.zeros(48, int)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
plain = keras.optimizers.SGD(0.1)
optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.1))
train, callbacks = hk.loader(x, y, batch_size=6), hk.callbacks()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CHANGE
model.compile(optimizer, loss)
train = train if isinstance(train, tuple) else (train,)
model.fit(*train, epochs=1, callbacks=callbacks, verbose=0)
print("trained")
"""
#: Wrong whatever the world: one process tries all of them.
CALLS = {
    "hk.DistributedOptimizer(optimizer)": "was given to DistributedOptimizer before",
    "hk.DistributedOptimizer('adam')": "takes an optimizer of Keras 3",
    "hk.DistributedOptimizer(keras.optimizers.MultiOptimizer({}))": "with a DistributedOptimizer for each part",
    "hk.DistributedOptimizer(plain, lr_rule='linaer')": 'did you mean "linear"?',
    "hk.DistributedOptimizer(plain, lr_rule='adascale')": "hvdtrain.torch has",
    "hk.DistributedOptimizer(plain, warmup_epochs=-1)": "warmup_epochs=-1 is negative",
    "hk.DistributedOptimizer(plain, compression='fp8')": "is not one of none, fp16, bf16",
    "hk.loader(x, y[:40], batch_size=6)": "different numbers of samples: [40, 48]",
    "hk.loader(x, y, batch_size=0)": "a batch has at least one sample",
    "hk.loader(x[:0], y[:0], batch_size=1)": "the data set is empty",
    "hk.loader(x, y, batch_size=64, uneven='drop')": "take a batch size of at most 48",
    "hk.loader(x, y, batch_size=6, uneven='repeat')": 'is not one of "pad", "drop"',
    "hk.loader(x, y, batch_size=6, weights=np.ones(9))": "weights has shape (9,); there is one weight for each of 48 samples",
    "hk.loader(x, y, batch_size=6, weights=np.ones(48), shuffle=False)": "need shuffle=True",
    "hk.loader(x, y, batch_size=6, worker=2)": 'did you mean "workers"?',
    "hk.loader(x, [0, 1, 2], batch_size=6)": "found int",
    "hk.validation_loader(x, y, batch_size=6, shuffle=True)": "shuffle= is none of a loader's options",
    "hk.fit(model, x, y, epoch=2)": 'did you mean "epochs"?',
    "hk.fit(model, train, y)": "x is a Loader, which gives y and sample_weight itself",
    "hk.fit(model, x, y, validation_split=1.5)": "is not a fraction",
    "hk.fit(model, x, y, validation_split=0.99)": "leaves none to train on, or none to evaluate",
    "hk.fit(model, x, y, validation_split=0.5, validation_data=(x, y))": "give one of them",
    "hk.fit(model, x, y)": "the model is not compiled: call",
    "hk.callbacks(keep=0, checkpoints='c')": "at least the newest checkpoint must stay",
}
PLAIN = "optimizer = plain"
UPSTREAM = "import horovod.tensorflow.keras as h; optimizer = h.DistributedOptimizer(plain)"
OWN_STEP = """
import tensorflow as tf
class Own(keras.Sequential):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}
model = Own(model.layers)
train = hk.loader(x[:45], y[:45], batch_size=6)
"""
NESTED = """
a, b = keras.Input((4,)), keras.Input((4,))
model = keras.Model({"a": a, "rest": [b]}, keras.layers.Dense(3)(a + b))
train = ({"a": x, "rest": [x]}, y)
"""
SYNCHRONIZED = """
norm = keras.layers.BatchNormalization(synchronized=True)
model = keras.Sequential([keras.Input((4,)), keras.Sequential([norm]), keras.layers.Dense(3)])
"""
MISTAKES = {
    PLAIN: "is a plain one: each of the 2 ranks would train by itself",
    "callbacks = []": "without callbacks=hvdtrain.keras.callbacks()",
    "train = (x, y)": "model.fit got the same 48 samples on every rank",
    NESTED: "model.fit got the same 48 samples on every rank",
    SYNCHRONIZED: 'take hvdtrain.keras.init(strategy="mirrored")',
    "n = 48 - 24 * world.rank; train = hk.loader(x[:n], y[:n], batch_size=6)": "different numbers of steps",
    "callbacks += [keras.callbacks.BackupAndRestore('b')]": "would restore rank 0 alone",
    "optimizer.apply([v.value * 0 for v in model.trainable_variables], model.trainable_variables)": "never agreed on where",
    "optimizer = type(optimizer).from_config(optimizer.get_config())": "or is a copy of one",
    "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3 + world.rank)])": "built different models",
    "loss.reduction = 'sum'": "it is 2 times smaller than in one process with all samples",
    OWN_STEP: "the train_step of Own does not call self.optimizer.scale_loss(loss)",
    "callbacks = hk.callbacks(monitor='val_f1', checkpoints='c')": 'monitor="val_f1" is not among loss',
}


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("backend", "change", "message"),
    [
        *(("tensorflow", change, message) for change, message in MISTAKES.items()),
        ("tensorflow", UPSTREAM, "averages nothing on Keras 3"),
        ("torch", PLAIN, MISTAKES[PLAIN]),
    ],
)
def test_a_mistake_is_refused_with_the_reason(backend: str, change: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "mistaken.py"
    script.write_text(SCRIPT.replace("CHANGE", change))
    ended = run_world(2, script, options=["--run-dir", str(tmp_path / "run")], KERAS_BACKEND=backend)
    assert ended.status == 2, ended.err
    assert "trained" not in ended.out
    assert message in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_wrong_call_says_what_is_legal(backend: str, tmp_path: Path) -> None:
    calls = dict(CALLS)
    if backend == "torch":
        calls["hk.DistributedOptimizer(plain, compression='bf16')"] = '"none" and "fp16" are legal'
    script = tmp_path / "calls.py"
    tries = "".join(f"try:\n    {call}\nexcept UserError as error:\n    print(error, flush=True)\n" for call in calls)
    head = SCRIPT.partition("CHANGE")[0]
    script.write_text(f"{head}from hvdtrain.errors import UserError\n{tries}")
    ended = run_world(1, script, KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    said = ended.out.splitlines()
    assert len(said) == len(calls), ended.out
    for line, message in zip(said, calls.values(), strict=True):
        assert message in line


@pytest.mark.ranks
def test_a_model_that_is_made_before_init_is_refused_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import keras\nimport hvdtrain.keras as hk\nkeras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])\nhk.init()\n"
    )
    ended = run_world(2, script, options=["--launcher", "local"], KERAS_BACKEND="tensorflow")
    assert ended.status == 2, ended.err
    assert ended.err.count("call hvdtrain.keras.init() before any tensor or model is made") == 1
    assert "Traceback" not in ended.err


def test_jax_is_refused_with_the_reason(tmp_path: Path) -> None:
    """JAX is not installed here; what Keras says of itself is all that is asked."""
    script = tmp_path / "on_jax.py"
    script.write_text(
        "import keras\nkeras.backend.backend = lambda: 'jax'\nfrom hvdtrain._keras.backends import backend\nbackend()\n"
    )
    ended = run_world(1, script)
    assert ended.status == 2
    assert "Horovod knows only TensorFlow and PyTorch: each rank would train by itself" in ended.err


SAVES = """
import keras, numpy as np, sys
import hvdtrain.keras as hk
world = hk.init()
keras.config.set_dtype_policy(sys.argv[1])
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile(hk.DistributedOptimizer(keras.optimizers.Adam(0.001)), "mse", jit_compile=False)
x = np.ones((12, 4), "float32")
model.fit(hk.loader(x, x[:, :3], batch_size=3), epochs=2, callbacks=hk.callbacks(), verbose=0)
if world.rank == 0:
    model.save(sys.argv[2] + "/m.keras")
    np.save(sys.argv[2] + "/w.npy", model.get_weights()[0])
"""
LOADS = """
import keras, numpy as np, sys
m = keras.saving.load_model("m.keras")
assert (m.get_weights()[0] == np.load("w.npy")).all()
inner = getattr(m.optimizer, "inner_optimizer", m.optimizer)
assert type(inner) is type(keras.optimizers.Adam()), type(inner)
assert int(inner.iterations) in (3, 4), inner.iterations  # mixed precision skips a step that overflows
m.fit(np.ones((4, 4), "float32"), np.ones((4, 3), "float32"), verbose=0)
assert not any(name.startswith("hvdtrain") for name in sys.modules)
print("loaded")
"""


@pytest.mark.ranks
@pytest.mark.parametrize(("backend", "policy"), [("tensorflow", "mixed_float16"), ("torch", "float32")])
def test_a_saved_model_loads_without_hvdtrain(backend: str, policy: str, tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    ended = run_world(2, script, policy, tmp_path, KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    plain = subprocess.run(
        [sys.executable, "-c", LOADS],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "loaded" in plain.stdout, plain.stderr
