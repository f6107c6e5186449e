"""A job that trains on synthetic data and goes wrong on one rank in a way that its options name."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain.torch as ht


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--mark", type=Path, help="file to write when the fault happens")
    options = parser.parse_args()
    rank = os.environ.get("HOROVOD_RANK") or os.environ.get("SLURM_PROCID")
    if options.fault == "die-before-init" and rank == str(options.rank):
        options.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if options.fault == "late-server" and rank == "0":
        time.sleep(10)
    world = ht.init()
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    train = ht.loader(data, 8)
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))
    step = 0
    while step < options.steps:
        for x, y in train:
            step += 1
            if step == options.step and world.rank == options.rank:
                if options.mark:
                    options.mark.touch()
                misbehave(options.fault)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
    print(f"rank {world.rank} finished {step} steps", flush=True)


def misbehave(fault: str) -> None:
    if fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "sleep":
        time.sleep(3600)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "raise":
        raise RuntimeError("the data of this rank are unreadable")
    elif fault == "exit":
        raise SystemExit(3)


if __name__ == "__main__":
    main()
