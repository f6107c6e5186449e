"""The parts of `gpu.py` that hold the GPU: each is run by itself and writes what it found to `--out`."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import hvdtrain.torch as ht

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
#: Before Ampere bf16 has no units, and torch no convolution of cuDNN for it.
HALF = "fp16" if DEVICE != "cpu" and torch.cuda.get_device_capability()[0] < 8 else "bf16"
MODES = ("fp32", HALF, f"{HALF} channels-last", f"{HALF} channels-last compiled")


def device(options: argparse.Namespace) -> Any:
    """What there is."""
    from hvdtrain import gpus

    name = torch.cuda.get_device_name(0) if DEVICE != "cpu" else "cpu"
    facts = {"name": name, "torch": torch.__version__, "cuda": str(torch.version.cuda), "half": HALF}
    return {**facts, **gpus.describe(DEVICE)}


def nccl(options: argparse.Namespace) -> Any:
    """Horovod with CUDA starts, and an allreduce of one rank gives back what it was given."""
    import horovod.torch as hvd

    hvd.init()
    x = torch.arange(1 << 20, dtype=torch.float32, device=DEVICE)
    y = hvd.allreduce(x, op=hvd.Sum, name="x")
    return {"nccl": bool(hvd.nccl_built()), "cuda": bool(hvd.cuda_built()), "same": bool(torch.equal(x, y))}


def union(options: argparse.Namespace) -> Any:
    """Ten steps on the same 640 samples, by however many ranks there are."""
    world = ht.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)).to(world.device)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    data = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,)))
    train = ht.loader(data, 64 // world.size, shuffle=False)
    history = ht.fit(model, optimizer, nn.CrossEntropyLoss(), train, epochs=1, checkpoints=False)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()]).tolist() if world.rank == 0 else None
    return {"weights": weights, "device": world.device, "samples_per_s": history[0].samples_per_second}


# --- speed ---------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """Of a residual network with 50 layers (He et al. 2016, arXiv:1512.03385), stride in the 3x3 convolution."""

    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__()
        after = 4 * inner
        layers = [nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()]
        layers += [nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after))
        same = stride == 1 and before == after
        short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Identity() if same else short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000) -> nn.Module:
    """25.6 million parameters with the defaults."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = 64
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        for number in range(count):
            layers.append(Bottleneck(before, inner, 2 if number == 0 and stage > 0 else 1))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Fixed(torch.utils.data.Dataset):
    """Random images, the same few over and over, so that loading costs both alike and little."""

    def __init__(self, n: int, size: int) -> None:
        self.images, self.n = torch.randn(64, 3, size, size), n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % 64], index % 10


def speed(options: argparse.Namespace) -> Any:
    """Images/s by mode: ours, by hand, and the median ratio of neighbouring turns."""
    ht.init()
    size, batch, steps, blocks = (32, 4, 3, (1, 1)) if options.tiny else (224, 64, 20, (3, 4, 6, 3))
    data = Fixed(batch * steps, size)
    if DEVICE != "cpu":
        torch.backends.cudnn.benchmark = True
    found = {}
    for mode in MODES[:2] if options.tiny else MODES:
        epochs: dict[str, Callable[[], float]] = {
            "hvdtrain": ours(mode, data, batch, blocks),
            "by hand": by_hand(mode, data, batch, blocks),
        }
        for each in epochs.values():
            each()  # compiles, chooses algorithms
        rates: dict[str, list[float]] = {name: [] for name in epochs}
        for number in range(options.rounds):
            for name in sorted(epochs, reverse=number % 2 == 0):
                rates[name].append(len(data) / epochs[name]())
        pairs = [a / b for a, b in zip(rates["hvdtrain"], rates["by hand"], strict=True)]
        medians = {name: statistics.median(values) for name, values in rates.items()}
        found[mode] = {**medians, "ratio": statistics.median(pairs), "ratios": pairs}
        options.out.write_text(json.dumps(found))  # a mode that fails or takes too long costs the others nothing
    return found


def _model(mode: str, blocks: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    model = resnet(blocks).to(DEVICE)
    return model.to(memory_format=torch.channels_last) if "channels-last" in mode else model


class _ChannelsLast(nn.Module):
    """What a user of `fit` writes for it: the input as the layers want it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.contiguous(memory_format=torch.channels_last))


def ours(mode: str, data: Any, batch: int, blocks: tuple[int, ...]) -> Callable[[], float]:
    """An epoch with `fit`; returns its seconds."""
    model = _model(mode, blocks)
    model = _ChannelsLast(model) if "channels-last" in mode else model
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
    trained = torch.compile(model) if "compiled" in mode else model
    pinned = DEVICE != "cpu"
    loader = ht.loader(
        data, batch, seed=0, num_workers=4 if pinned else 0, pin_memory=pinned, persistent_workers=pinned
    )
    precision = HALF if HALF in mode else "fp32"

    def epoch() -> float:
        history = ht.fit(
            trained, optimizer, nn.CrossEntropyLoss(), loader, epochs=1, precision=precision, checkpoints=False
        )
        return float(history[0].seconds)

    return epoch


def by_hand(mode: str, data: Any, batch: int, blocks: tuple[int, ...]) -> Callable[[], float]:
    """As the tuning guides have it: pinned memory, copies that do not wait, autocast, loss read once."""
    model = _model(mode, blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    trained: Any = torch.compile(model) if "compiled" in mode else model
    pinned = DEVICE != "cpu"
    loader = torch.utils.data.DataLoader(
        data, batch, shuffle=True, num_workers=4 if pinned else 0, pin_memory=pinned, persistent_workers=pinned
    )
    criterion = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(DEVICE.partition(":")[0], enabled="fp16" in mode)
    half = torch.float16 if HALF == "fp16" else torch.bfloat16

    def epoch() -> float:
        began = time.perf_counter()
        total = torch.zeros((), device=DEVICE)
        for x, y in loader:
            x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
            if "channels-last" in mode:
                x = x.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            with torch.autocast(DEVICE.partition(":")[0], half, enabled=HALF in mode):
                loss = criterion(trained(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
        float(total)
        return time.perf_counter() - began

    return epoch


# --- data and kernels -----------------------------------------------------------------------------------------------


def cache(options: argparse.Namespace) -> Any:
    """Share of an epoch that waits for data, when a network trains on the packed images."""
    from PIL import Image

    from hvdtrain.data.folders import scan
    from hvdtrain.data.packed import pack

    images, size, batch = (40, 32, 8) if options.tiny else (2000, 224, 64)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HVDTRAIN_CACHE"] = str(Path(folder) / "cache")
        tree, rng = Path(folder) / "tree", np.random.default_rng(0)
        for number in range(images):
            (tree / f"{number % 20:03d}").mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8)).resize((size, size))
            coarse.save(tree / f"{number % 20:03d}" / f"{number:05d}.jpg")
        world = ht.init()
        packed = pack(scan(tree), size, world, lambda value: [value])

        class Pixels(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return images

            def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
                return torch.from_numpy(np.array(packed.images[index])), int(packed.labels[index])

        class FromBytes(nn.Module):
            """Bytes travel to the GPU; numbers are made there."""

            def __init__(self) -> None:
                super().__init__()
                self.model = resnet((1, 1) if options.tiny else (3, 4, 6, 3), 20)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.model(x.permute(0, 3, 1, 2).float() / 255)

        model: Any = FromBytes().to(DEVICE)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
        pinned = DEVICE != "cpu"
        loader = ht.loader(
            Pixels(), batch, num_workers=4 if pinned else 0, pin_memory=pinned, persistent_workers=pinned
        )
        precision = HALF if pinned else "fp32"
        history = ht.fit(
            model, optimizer, nn.CrossEntropyLoss(), loader, epochs=3, precision=precision, checkpoints=False
        )
    last = history[-1]
    return {"images_per_s": last.samples_per_second, "data_share": (last.seconds_data or 0.0) / (last.seconds or 1.0)}


def kernels(options: argparse.Namespace) -> Any:
    """Seconds of five epochs forward and backward on 37,800 images, as the study counted them, from fewer steps."""
    from hvdtrain import engines

    rng = np.random.default_rng(0)
    hiddens, batches, steps = ([8], [8], 1) if options.tiny else ([32, 64, 128, 256], [32, 64, 128], 60)
    inputs = 16 if options.tiny else 784
    names = ["numpy", "torch", "naive", "explicit", "tiled"]
    found = {}
    for hidden, batch, name in itertools.product(hiddens, batches, names):
        x = rng.random((batch, inputs), dtype=np.float32)
        y = rng.integers(0, 10, batch)
        try:
            engine = engines.create(name, engines.Weights.random(inputs, hidden, 10, 0))
            for _ in range(0 if options.tiny else 5):
                engine.step(x, y, 0.1)
            before = engine.seconds.forward, engine.seconds.backward
            for _ in range(steps):
                engine.step(x, y, 0.1)
        except Exception as error:  # noqa: BLE001 - what numba raises on a GPU has no class in common; the others go on
            found[f"{name}, hidden {hidden}, batch {batch}"] = {"failed": f"{type(error).__name__}: {error}"}
            continue
        scale = 5 * (37_800 / batch) / steps
        forward, backward = (engine.seconds.forward - before[0]) * scale, (engine.seconds.backward - before[1]) * scale
        found[f"{name}, hidden {hidden}, batch {batch}"] = {"forward_s": forward, "backward_s": backward} | _published(
            name, hidden, batch
        )
        options.out.write_text(json.dumps(found))
    return found


def _published(name: str, hidden: int, batch: int) -> dict[str, float]:
    """The study's own seconds, where it has them."""
    import csv

    kernel = {"numpy": "serial"}.get(name, name)
    path = Path(__file__).resolve().parents[1] / "analysis" / "reference" / "mnist_mlp_kernels.csv"
    wanted = f"mnist_mlp, kernel={kernel}, hidden={hidden}"
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == wanted and row["per_gpu_batch"] == str(batch)]
    return {f"published {row['metric']}": float(row["value"]) for row in rows}


def main() -> None:
    parts = {each.__name__: each for each in (device, nccl, union, speed, cache, kernels)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    found = parts[options.part](options)
    if os.environ.get("HOROVOD_RANK", "0") == "0":
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
