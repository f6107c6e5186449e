"""Ranks in containers of a real runtime: Charliecloud, which needs neither root nor a registry."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from hvdtrain.testcluster import Cluster
from tests.slurm.lab import ROOT, Lab

pytestmark = pytest.mark.ranks

#: Says where its ranks are, and trains.
JOB = '''
"""Two steps, and what each rank sees around it."""
import json
import os
import socket
from pathlib import Path

import horovod.torch as hvd
import torch

import hvdtrain.torch as ht
from hvdtrain import job, record

options = job.parser(__doc__, epochs=1, batch_size=32, lr=0.1).parse_args()
world = ht.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
model, optimizer = ht.distribute(model, optimizer, lr_rule="none")
for _ in range(2):
    optimizer.zero_grad()
    model(torch.full((1, 1), float(world.rank + 1))).sum().backward()
    optimizer.step()
here = {"inside": Path("/etc/inside").read_text(), "host": socket.gethostname(), "cwd": os.getcwd()}
here |= {"hidden": not Path("/etc/hostname").exists(), "weight": model.weight.item()}
found = hvd.allgather_object(here)
if world.rank == 0:
    record.EpochLog(record.run_dir() / "epochs.jsonl").append(record.Epoch(1, val_acc=0.5, seconds=1.0))
    record.write_json(record.run_dir() / "found.json", found)
'''


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of its own root and /etc; programs and Python are this machine's, mounted."""
    assert shutil.which("ch-run"), "apt install charliecloud"
    folder = tmp_path / "image"
    places = ["bin", "dev", "etc", "home", "lib", "lib64", "mnt", "proc", "root", "run", "sys", "tmp", "usr", "var"]
    for name in [*places, *(place.lstrip("/") for place in _mounts())]:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group", "nsswitch.conf"):
        shutil.copy(f"/etc/{name}", folder / "etc")
    for name in ("hosts", "resolv.conf"):
        (folder / "etc" / name).touch()  # Charliecloud mounts the node's
    (folder / "etc" / "inside").write_text("of the image")
    return folder


def _mounts() -> list[str]:
    """What runs this test: its environment, the Python below it, and the libraries of both."""
    return list(dict.fromkeys(["/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix, str(ROOT)]))


@pytest.mark.parametrize("launcher", ["gloo", "pmix"])
def test_ranks_of_two_nodes_train_inside_containers(
    slurm_cluster: Cluster, tmp_path: Path, image: Path, launcher: str
) -> None:
    lab = Lab(slurm_cluster, tmp_path)
    (tmp_path / "inside.py").write_text(JOB)
    container = {"kind": "charliecloud", "image": str(image), "python": sys.executable, "mounts": _mounts()}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in container.items()]
    (tmp_path / "hvdtrain.toml").write_text(f"[site.container]\n{''.join(lines)}")
    words = ["--job", "inside.py", "--gpus", "2", "--gpus-per-node", "1", "--gpu-type", "t4", "--cpus-per-task", "1"]
    lab.submit(*words, "--launcher", launcher, "--wait", USER="root")
    found = json.loads((lab.cell("inside", "n2-t4") / "found.json").read_text())
    assert [each["inside"] for each in found] == ["of the image"] * 2
    assert all(each["hidden"] for each in found)
    assert len({each["host"] for each in found}) == 2
    assert {each["cwd"] for each in found} == {str(tmp_path)}
    # Two steps at a rate of 0.1 with gradients of 1 and 2, averaged.
    assert [each["weight"] for each in found] == [pytest.approx(-0.3)] * 2
    assert lab.result("inside", "n2-t4")["status"] == "completed"
