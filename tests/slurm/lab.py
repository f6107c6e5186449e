"""A user at a cluster: the `hvdtrain` command, and what is found in a study afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.testcluster import Cluster

ROOT = Path(__file__).resolve().parents[2]

#: A job of any number of ranks without a framework: rank 0 records, all wait as long as they are told to.
PLAIN = '''
"""Records epochs; needs nothing."""
import json, os, sys, time
from hvdtrain import job, record, world

parser = job.parser(__doc__, epochs=1, batch_size=32, lr=0.1)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--fail-at", type=int, default=0)
parser.add_argument("--text", default="")
options = parser.parse_args()
place = world.detect()
folder = record.run_dir()
if place.rank == 0:
    record.begin(folder, {"world_size": place.size, "device": "cpu"})
    seen = {"argv": sys.argv[1:], "cwd": os.getcwd(), "value": os.environ.get("VALUE")}
    (folder / "seen.json").write_text(json.dumps(seen))
    log = record.EpochLog(folder / "epochs.jsonl")
for epoch in range(1, options.epochs + 1):
    time.sleep(options.sleep)
    if epoch == options.fail_at:
        sys.exit(f"epoch {epoch} caught fire")
    if place.rank == 0:
        log.append(record.Epoch(epoch, val_acc=0.5, seconds=0.5, samples=1000, samples_per_second=2000.0))
'''
#: Arguments of a submission of it.
PLAIN_WORDS = ["--job", "plain.py", "--launcher", "gloo", "--cpus-per-task", "1"]


@dataclass(frozen=True)
class Lab:
    """A cluster and a folder to work in."""

    cluster: Cluster
    room: Path

    def __call__(self, *words: str, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        """`hvdtrain WORDS` in the room."""
        return self.run([sys.executable, "-m", "hvdtrain", *words], timeout=timeout, **environment)

    def run(self, command: list[str], timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        """Any command, with this project importable."""
        settings = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(self.room / ".config"), **environment}
        words = ["env", "--default-signal=INT", *(f"{name}={value}" for name, value in settings.items()), *command]
        return self.cluster.run(words, cwd=self.room, timeout=timeout)

    def submit(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """`hvdtrain submit WORDS`, which must be accepted."""
        done = self("submit", *words, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def status(self, study: str) -> dict[str, dict[str, Any]]:
        """What `status --json` says, by cell."""
        done = self("status", study, "--json")
        assert done.returncode == 0, done.stderr
        return {row["cell"]: row for row in json.loads(done.stdout)}

    def wait(self, study: str, *statuses: str, seconds: float = 240) -> dict[str, dict[str, Any]]:
        """Wait until every cell has one of these statuses."""
        end = time.monotonic() + seconds
        while True:
            rows = self.status(study)
            if {row["status"] for row in rows.values()} <= set(statuses):
                return rows
            assert time.monotonic() < end, rows
            time.sleep(1.0)

    def cell(self, study: str, name: str) -> Path:
        """A cell's folder."""
        return self.room / "runs" / study / name

    def result(self, study: str, name: str) -> dict[str, Any]:
        """A cell's result."""
        return dict(json.loads((self.cell(study, name) / "result.json").read_text()))

    def epochs(self, study: str, name: str) -> list[tuple[int, int]]:
        """(epoch, restart) as they stand in the file, not as a reader would mend them."""
        path = self.cell(study, name) / "epochs.jsonl"
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [(line["epoch"], line["restart"]) for line in lines]

    def log(self, study: str, name: str) -> str:
        """A cell's log; empty until its job has begun."""
        path = self.cell(study, name) / "log" / "job.log"
        return path.read_text() if path.exists() else ""


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Return when it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def rank_process(folder: Path, rank: int) -> int:
    """The process of one rank of the run in `folder`."""
    wanted = {f"HVDTRAIN_RUN_DIR={folder}".encode(), f"SLURM_PROCID={rank}".encode()}
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and b"hvdtrain.run" in Path(f"/proc/{entry}/cmdline").read_bytes():
                variables = set(Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"))
                if wanted <= variables and b"SLURM_STEP_ID=0" in variables:
                    return int(entry)
        except OSError:
            continue
    raise AssertionError(f"no process of rank {rank} in {folder}")
