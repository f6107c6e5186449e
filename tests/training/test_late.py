"""What Keras and PyTorch draw in without need waits until somebody looks into it, and then is what it would have been."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds import run_cold_world

OF_KERAS = """
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
def test_wrappers_and_pictures_of_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(OF_KERAS)
    ended = run_cold_world(1, "job.py", KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    told = json.loads(ended.out.splitlines()[-1])
    assert told == [[], "SKLearnRegressor", "plot_image_gallery", ["sklearn", "matplotlib"]]


COMPILES = """
import json
import sys

import torch


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()


torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for _ in range(3):
    step(model, optimizer)
optimizer.load_state_dict(optimizer.state_dict())
before = "sympy" in sys.modules
compiled = torch.compile(step, backend="eager")
for _ in range(3):
    compiled(model, optimizer)
model.add_module("more", torch.nn.Linear(1, 1))
optimizer.add_param_group({"params": list(model.more.parameters())})
import torch._dynamo.utils as told

counts = {name: told.counters["stats"][name] for name in ("calls_captured", "unique_graphs")}
untraced = torch.optim.Optimizer.add_param_group.__wrapped__.__dynamo_disable is not None
print(json.dumps([before, model.weight.tolist(), counts, sorted(told.counters["graph_break"]), untraced]))
"""


def test_the_compiler_of_torch(tmp_path: Path) -> None:
    """`python JOB` imports it at once; under `hvdtrain.run` it comes later and captures the same graphs."""
    (tmp_path / "job.py").write_text(COMPILES)
    command = [sys.executable, str(tmp_path / "job.py")]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    late = run_cold_world(1, tmp_path / "job.py")
    assert late.status == 0, late.err
    expected, found = (json.loads(out.splitlines()[-1]) for out in (plain, late.out))
    assert (expected[0], found[0]) == (True, False)
    assert found[1:] == expected[1:]
    assert found[2]["unique_graphs"] > 0


def test_a_compiler_that_is_asked_for_by_name_is_whole(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import sys, types\nimport torch\nimport torch._dynamo\nlazy = type(torch._dynamo).__name__\n"
        "torch._dynamo.graph_break()\nassert 'sympy' not in sys.modules\n"
        "from torch._dynamo import config\nassert type(torch._dynamo) is types.ModuleType\n"
        "@torch._dynamo.disable\ndef untraced(x):\n    return x\n"
        "print(lazy, config.cache_size_limit > 0, untraced(1), torch._dynamo.graph_break.__module__)\n"
    )
    ended = run_cold_world(1, tmp_path / "job.py")
    assert ended.out.splitlines()[-1] == "_Compiler True 1 torch._dynamo.decorators", ended.err
