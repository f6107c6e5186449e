"""TensorFlow's own strategies, with the same script: they end where one device on the union of the data ends, or say why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.test_keras_equivalence import EXACT, TOLERANCE, UNION
from tests.worlds import Ended, run_world

JOB = Path(__file__).with_name("keras_equivalence_job.py")
RESUME = Path(__file__).with_name("keras_resume_job.py")
BOTH = (
    "tokens",
    "tokens_last_step",
    "sgd_momentum",
    "adamw",
    "global_clipnorm",
    "weight_decay",
    "last_step_shared_out",
    "weights_of_classes",
    "sparse",
    "mixed_bfloat16",
)
CASES = {
    "multiworker": (
        *BOTH,
        "fewer_samples_than_ranks",
        "eager",
        "tokens_fewer_than_ranks",
        "sparse_adam_clipped",
        "gradients_none_eager",
        "ema",
    ),
    "mirrored": (*BOTH, "eager", "schedule"),
}


def start(
    strategy: str, devices: int, job: Path, *arguments: object, launcher: str = "local", run: Path | None = None
) -> Ended:
    """One process for each device, or one for all of them."""
    ranks = 1 if strategy in ("mirrored", "single") else devices
    options = ["--launcher", "none" if ranks == 1 else launcher, *(["--run-dir", str(run)] if run else [])]
    environment = {"KERAS_BACKEND": "tensorflow", "HVDTRAIN_REPLICAS": str(devices), "PYTHONWARNINGS": "ignore"}
    return run_world(ranks, job, "--strategy", strategy, *arguments, options=options, patience=200.0, **environment)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def train(strategy: str) -> Path:
        out = tmp_path_factory.mktemp("one") / f"{strategy}.npz"
        ended = start("single", 1, JOB, "--union", UNION, "--out", out, "--cases", *CASES[strategy])
        assert ended.status == 0, ended.err
        return out

    return cache(train)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("strategy", "devices", "launcher"),
    [("multiworker", 2, "mpirun"), ("mirrored", 2, "none")],
)
def test_devices_end_where_one_on_the_union_ends(
    strategy: str, devices: int, launcher: str, one_device: Callable[[str], Path], tmp_path: Path
) -> None:
    expected, out = one_device(strategy), tmp_path / "state.npz"
    ended = start(
        strategy, devices, JOB, "--union", UNION, "--out", out, "--cases", *CASES[strategy], launcher=launcher
    )
    assert ended.status == 0, ended.err
    report, reference = (json.loads(path.with_suffix(".json").read_text()) for path in (out, expected))
    assert report["unlike"] == [], "ranks ended with different weights"
    failed = []
    with np.load(out) as trained, np.load(expected) as one:
        assert trained.files == one.files
        for case in CASES[strategy]:
            names = [name for name in one.files if name.split("/")[0] == case]
            seen = max(float(np.abs(trained[name] - one[name]).max()) for name in names)
            print(f"{strategy} {devices} devices  {case}: {seen:.1e}")
            if not seen <= TOLERANCE.get(case, EXACT):
                failed.append(f"{case} differs by {seen:.1e}")
    assert not failed
    # 101 and 43 samples divide by no number of devices, yet the metrics are those of all of them.
    for name, values in reference["metrics"].items():
        assert report["metrics"][name] == pytest.approx(values, abs=1e-5), name


@pytest.mark.ranks
@pytest.mark.parametrize(("strategy", "rank"), [("multiworker", 1), ("mirrored", 0)])
def test_a_signal_stops_all_devices_and_the_next_start_goes_on(strategy: str, rank: int, tmp_path: Path) -> None:
    def train(name: str, *more: Any) -> Ended:
        return start(strategy, 2, RESUME, "--out", tmp_path / f"{name}.npz", *more, run=tmp_path / name)

    assert train("whole").status == 0
    options = ["--signal", "SIGUSR1", "--rank", rank, "--mark", tmp_path / "mark"]
    first = train("parts", *options)
    assert first.status == 75, first.err
    assert "stopped after step 4 of epoch 2; checkpoint in" in first.err
    second = train("parts", *options)
    assert second.status == 0, second.err
    with np.load(tmp_path / "whole.npz") as expected, np.load(tmp_path / "parts.npz") as parts:
        *state, losses, counts, steps = expected.files
        assert [name for name in (*state, counts) if not np.array_equal(expected[name], parts[name])] == []
        # A checkpoint holds the devices' sums of an unfinished epoch as one, and within the epoch Keras shows those of the first.
        assert parts[losses] == pytest.approx(expected[losses], abs=1e-6)
        assert parts[steps] == pytest.approx(expected[steps], abs=1e-6 if strategy == "multiworker" else 1e-2)
    recorded = [json.loads(line) for line in (tmp_path / "parts" / "epochs.jsonl").read_text().splitlines()]
    assert [each["epoch"] for each in recorded] == [1, 2, 3, 4]
    assert json.loads((tmp_path / "parts" / "result.json").read_text())["strategy"] == strategy


STANDS_STILL = """
import os, signal, subprocess
import hvdtrain.keras as hk

world = hk.init("multiworker")
hk.sum_over_ranks([1.0])
if world.rank == 1:
    subprocess.Popen(["sh", "-c", f"sleep 16; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
assert hk.sum_over_ranks([1.0]) == [2.0]
"""


@pytest.mark.ranks
def test_a_rank_that_stands_still_for_a_while_is_waited_for(tmp_path: Path) -> None:
    """TensorFlow itself ends all ranks when it has heard nothing of one for 10 s."""
    script = tmp_path / "stands_still.py"
    script.write_text(STANDS_STILL)
    ended = run_world(2, script, options=["--launcher", "local"], KERAS_BACKEND="tensorflow")
    assert ended.status == 0, ended.err
    assert ended.seconds > 16


TRIES = """
import os, sys
import keras
import hvdtrain.keras as hk
from hvdtrain.errors import UserError
os.environ["HVDTRAIN_REPLICAS"] = "2"
for strategy in ("mirored", "mirrored"):
    try:
        hk.init(strategy)
    except UserError as error:
        print(error)
SGD = keras.optimizers.SGD
sys.path.insert(0, os.getcwd())
import tensorflow as tf
from jobs import mnist_cnn
def own_loop(compiled):
    variable, optimizer = keras.Variable([1.0]), hk.DistributedOptimizer(SGD(0.1))
    step = lambda: optimizer.apply([tf.ones(1)], [variable])
    (tf.function(step) if compiled else step)()
def job(backend, *arguments):
    keras.config.backend, sys.argv = lambda: backend, ["mnist_cnn.py", "--loop", "custom", *arguments]
    mnist_cnn.main()
for make in (
    lambda: hk.DistributedOptimizer(SGD(0.1, gradient_accumulation_steps=2)),
    lambda: hk.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(SGD(0.1))),
    lambda: hk.DistributedOptimizer(SGD(0.1, use_ema=True, ema_overwrite_frequency=3)),
    lambda: hk.DistributedOptimizer(SGD(0.1), compression="fp16"),
    lambda: hk.loader(keras.ops.ones((1, 4)), keras.ops.ones(1), batch_size=8),
    lambda: hk.init("horovod"),
    lambda: own_loop(False),
    lambda: own_loop(True),
    lambda: job("tensorflow", "--strategy", "mirrored"),
    lambda: job("torch"),
):
    try:
        make()
    except UserError as error:
        print(str(error).strip().splitlines()[-1])  # in a compiled step TensorFlow puts before it where it was
"""


def test_what_a_strategy_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "tries.py"
    script.write_text(TRIES)
    ended = run_world(1, script, KERAS_BACKEND="tensorflow")
    assert ended.status == 0, ended.err
    said = ended.out.splitlines()
    expected = (
        'is not one of horovod, mirrored, multiworker, tpu, single; did you mean "mirrored"?',
        "gradient_accumulation_steps makes the update depend on a condition",
        "the loss scaling of mixed_float16 (mixed_bfloat16 needs none) makes the update depend",
        "ema_overwrite_frequency makes the update depend",
        'compression="fp16" needs strategy "horovod"',
        "1 samples for 2 devices: each needs at least one",
        'init(strategy="horovod") after init(strategy="mirrored")',
        *['a loop of your own needs strategy "horovod" or "multiworker"; "mirrored" and "tpu" work through fit'] * 2,
        "--strategy mirrored works through --loop fit",
        "with KERAS_BACKEND=torch take --loop fit",
    )
    assert len(said) == len(expected), ended.out
    for line, message in zip(said, expected, strict=True):
        assert message in line


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("hk.init('tpu')", 'strategy "tpu" found no TPU ('),
        ("keras.ops.ones(1); hk.init('mirrored')", "before TensorFlow is used: call hvdtrain.keras.init() before any"),
    ],
)
def test_a_strategy_that_cannot_begin_says_what_is_missing(body: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "begins.py"
    script.write_text(f"import keras\nimport hvdtrain.keras as hk\n{body}\n")
    ended = run_world(1, script, KERAS_BACKEND="tensorflow", HVDTRAIN_REPLICAS="2")
    assert ended.status == 2, ended.err
    assert message in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.ranks
def test_one_process_strategies_refuse_to_be_one_of_several(tmp_path: Path) -> None:
    script = tmp_path / "several.py"
    script.write_text("import hvdtrain.keras as hk\nhk.init('mirrored')\n")
    ended = run_world(2, script, KERAS_BACKEND="tensorflow")
    assert ended.status == 2
    assert ended.err.count('strategy "mirrored" is one process, but 2 ranks were started') == 1
    assert "Traceback" not in ended.err


def test_pytorch_has_none_of_them(tmp_path: Path) -> None:
    script = tmp_path / "on_torch.py"
    script.write_text("import hvdtrain.keras as hk\nhk.init('multiworker')\n")
    ended = run_world(1, script, KERAS_BACKEND="torch")
    assert ended.status == 2
    assert 'strategy="multiworker" is not one of horovod, single (Keras runs on torch)' in ended.err


SENDS = """
import numpy as np
import hvdtrain.keras as hk
hk.init("single")
from hvdtrain._keras.multiworker import MultiWorker

class OneOfEight(MultiWorker):
    def __init__(self):
        self._rank, self._size, self.sent = 0, 8, 0

    def sum(self, tensor, name):
        self.sent += tensor.numpy().nbytes
        return tensor

for n in (1, 5, 1 << 20):
    rank, value = OneOfEight(), np.arange(n).astype(np.uint8)
    assert rank.broadcast_object(value, "value") is value
    assert rank.sent < 2 * n + 1000, (n, rank.sent)
    assert rank._of_rank_zero(value, "bytes").tolist() == value.tolist()
    assert rank._of_rank_zero(np.array([-(2**60)]), "length").tolist() == [-(2**60)]
print("each byte once")
"""


def test_multiworker_sends_what_rank_0_has_once(tmp_path: Path) -> None:
    """Of eight ranks, of which seven add nothing; bytes are rounded up to a power of two."""
    script = tmp_path / "sends.py"
    script.write_text(SENDS)
    ended = run_world(1, script, KERAS_BACKEND="tensorflow")
    assert (ended.status, ended.out.count("each byte once")) == (0, 1), ended.err
