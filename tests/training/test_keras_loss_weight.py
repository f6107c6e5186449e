"""Losses that divide by something else than samples: in a step, the average over ranks is the loss of the union."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import run_world

SCRIPT = """
import sys, warnings
import keras, numpy as np
import hvdtrain.keras as hk
world = hk.init()
from hvdtrain._keras import loss_weight
from hvdtrain._keras.start import sum_over_ranks

wire = hk.DistributedOptimizer(keras.optimizers.SGD(0.1)).hvdtrain.wire
mse, cross = keras.losses.MeanSquaredError, keras.losses.SparseCategoricalCrossentropy
weighted = "mean_with_sample_weight"

def data(rank, n):
    rng = np.random.default_rng(rank)
    classes = rng.integers(0, 3, (n, 5))
    lengths = rng.integers(1, 6, n)
    return {
        "y": rng.normal(size=(n, 5, 1)).astype("float32"), "classes": classes, "nothing": np.full((n, 5), 2 if rank else 1),
        "p": rng.normal(size=(n, 5, 3)).astype("float32"), "mask": np.arange(5) < lengths[:, None],
        "row": rng.random((n, 1)).astype("float32"), "each": rng.random((n, 5)).astype("float32"),
        "each1": rng.random((n, 5, 1)).astype("float32"),
    }

def value(loss, d, target, mask, weight):
    p = keras.ops.convert_to_tensor(d["p"] if target != "y" else d["p"][..., :1])
    if mask:
        p._keras_mask = keras.ops.convert_to_tensor(d["mask"])
    return float(loss(d[target], p, None if weight is None else keras.ops.convert_to_tensor(d[weight])))

# Loss, its target, whether its prediction is masked, its weights, and whether it is more than the mean over samples.
FORMS = [
    (mse(), "y", False, None, False),
    (mse(), "y", False, "each", False),
    (mse(reduction=None), "y", False, None, None),
    (mse(), "y", True, None, True),
    (mse(), "y", True, "each", True),
    (mse(reduction=weighted), "y", False, "each", True),
    (mse(reduction=weighted), "y", False, "each1", True),
    (mse(reduction=weighted), "y", True, None, True),
    (mse(reduction=weighted), "y", True, "each", True),
    (mse(reduction=weighted), "y", True, "each1", True),
    # Which Keras on PyTorch cannot multiply.
    *([(mse(reduction=weighted), "y", True, "row", True)] if keras.backend.backend() == "tensorflow" else []),
    (cross(from_logits=True, ignore_class=2), "classes", False, None, True),
    (cross(from_logits=True, ignore_class=2), "classes", True, "each", True),
    # Nothing counts on rank 1.
    (cross(from_logits=True, ignore_class=2), "nothing", False, None, True),
]
for counts in ((6, 6), (5, 3), (4, 0)):
    n = sum(counts)
    weight = 2 * counts[world.rank] / n
    # A rank without samples of its own has some all the same, which only keep it in step.
    parts = [data(rank, count) for rank, count in enumerate(counts)]
    own = parts[world.rank] if counts[world.rank] else data(1, 3)
    union = {key: np.concatenate([part[key] for part in parts]) for key in own}
    wire.start_step(weight, False, False)
    with loss_weight.UnionLosses(wire) as losses:
        for loss, target, mask, weights, differs in FORMS:
            if differs is None:
                with losses.step():
                    assert loss(own[target], own["p"][..., :1]).shape == own["y"].shape[:2]
                continue
            before = value(loss, own, target, mask, weights)
            with losses.step():
                inside = value(loss, own, target, mask, weights)
            after = value(loss, own, target, mask, weights)
            assert before == after
            assert differs or inside == before
            mean = sum_over_ranks([inside * weight])[0] / 2
            expected = value(loss, union, target, mask, weights)
            assert abs(mean - expected) < 1e-6, (counts, type(loss), loss.reduction, target, mask, weights, mean, expected)
    with losses.step():  # Keras has its own function back
        assert value(mse(), own, "y", True, None) == value(mse(), own, "y", True, None)

loss_weight._REDUCE = "gone"
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with loss_weight.UnionLosses(wire) as losses, losses.step():
        value(mse(), own, "y", True, None)
assert len(told) == 1 and "in a way that is not known here" in str(told[0].message), told
print("as the union")
"""


@pytest.mark.ranks
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_average_over_ranks_is_the_loss_of_the_union(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = run_world(2, script, KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    assert ended.out.count("as the union") == 2
