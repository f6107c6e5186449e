"""A small job without a framework, and the real command line around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

TOY = '''
"""Writes epochs as a real job does; what it does beside that is asked for by its options."""
import json, os, signal, subprocess, sys, time
from hvdtrain import job, record

parser = job.parser(__doc__, epochs=2, batch_size=32, lr=0.1)
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--model", choices=["small", "large"], default="small")
parser.add_argument("--text", default="")
parser.add_argument("--fast", action="store_true")
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--fail-at", type=int, default=0)
parser.add_argument("--deaf", action="store_true")
parser.add_argument("--start-helper", action="store_true")
options = parser.parse_args()
folder = record.run_dir()
record.begin(folder, {"pid": os.getpid()})
(folder / "seen.json").write_text(json.dumps(
    {"argv": sys.argv[1:], "cwd": os.getcwd(), "environment": os.environ.get("TOY_VARIABLE"), "pid": os.getpid()}
))
if options.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.start_helper:
    helper = subprocess.Popen(["sleep", "300"], start_new_session=True)
    (folder / "helper").write_text(str(helper.pid))
log = record.EpochLog(folder / "epochs.jsonl")
for epoch in range(1, options.epochs + 1):
    time.sleep(options.sleep)
    print(f"epoch {epoch} is done", flush=True)
    if epoch == options.fail_at:
        sys.exit(f"epoch {epoch} caught fire")
    log.append(record.Epoch(epoch, val_acc=1 - 0.5 / epoch, seconds=0.5, samples=1000, samples_per_second=2000.0))
'''

Submit = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*arguments: str) -> list[str]:
    """The real command line."""
    return [sys.executable, "-m", "hvdtrain.submit", *arguments]


def hvdtrain_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m hvdtrain ARGUMENTS` there."""
    return subprocess.run(
        [sys.executable, "-m", "hvdtrain", *arguments],
        cwd=folder,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def heed_signals() -> None:
    """In a child: pytest may itself run in the background, where SIGINT is ignored, and children inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def plain_environment(**more: str) -> dict[str, str]:
    """The environment without what would make ranks of this test believe they are ranks of something else."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "HOROVOD_", "OMPI_", "PMIX_", "HVDTRAIN_"))
    }
    return {**kept, "CUDA_VISIBLE_DEVICES": "", **more}
