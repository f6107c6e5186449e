"""Twenty times: a process goes on from the newest checkpoint and saves without end, until it is killed while it saves.

The processes are forked from this one, which has imported torch already. Prints what each said, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer of a process does: two seconds for each that is forked
from torch import nn

import hvdtrain.torch as ht

KILLS = 20


def save_for_ever(folder: Path, out: int) -> None:
    ht.init()
    torch.set_num_threads(1)
    model = nn.Linear(500, 1000)
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    checkpoints = ht.Checkpoints(model, optimizer, folder=folder)
    epoch = checkpoints.resume()
    os.write(out, f"resumed {epoch} {float(model.bias.detach()[0])}\n".encode())
    while True:
        epoch += 1
        with torch.no_grad():
            model.bias.fill_(float(epoch))
        os.write(out, f"saving {epoch}\n".encode())
        checkpoints.save(epoch)
        os.write(out, f"saved {epoch}\n".encode())


def main() -> None:
    folder, generator, told = Path(sys.argv[1]), random.Random(5), []
    for _ in range(KILLS):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            save_for_ever(folder, writing)
        os.close(writing)
        lines = os.fdopen(reading)
        said = [next(lines).split()]
        last = int(said[0][1]) + generator.randint(1, 3)
        for line in lines:
            said.append(line.split())
            if said[-1] == ["saving", str(last)]:
                break
        # A save takes some 30 ms; each part of it is met.
        time.sleep(generator.uniform(0.0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += [line.split() for line in lines]
        told.append({"said": said, "left": sorted(path.name for path in folder.iterdir())})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
