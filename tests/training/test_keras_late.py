"""What Keras draws in without need waits until somebody looks into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds import run_world

JOB = """
import json
import sys

import keras
import numpy as np


def loaded():
    return [name for name in ("sklearn", "matplotlib") if name in sys.modules]


model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
model.save("m.keras")
after_training = loaded()
wrapped = keras.wrappers.SKLearnRegressor(model)
drawn = keras.visualization.plot_image_gallery.__name__
print(json.dumps([after_training, type(wrapped).__name__, drawn, loaded()]))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_what_a_training_does_not_use_is_imported_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    ended = run_world(1, "job.py", KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    told = json.loads(ended.out.splitlines()[-1])
    assert told == [[], "SKLearnRegressor", "plot_image_gallery", ["sklearn", "matplotlib"]]
