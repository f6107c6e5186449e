"""Jobs that SLURM starts again: which, how often, and what becomes of those beside them."""

from __future__ import annotations

import pytest

from tests.slurm.lab import Lab, until

ONE_IS_KILLED = '''
"""One of three cells: 0 is soon done, 2 dies when it is and 1 trains, 1 waits until 2 has begun again."""
import os, pathlib, signal, time
from hvdtrain import job, record, world

seed = job.parser(__doc__, epochs=1, batch_size=32, lr=0.1).parse_args().seed
folder = record.run_dir()
record.begin(folder, {"world_size": 1, "device": "cpu"})
log = record.EpochLog(folder / "epochs.jsonl")


def wait_for(path):
    end = time.monotonic() + 120
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.2)


if seed == 2 and record.restart_count() == 0:
    wait_for(folder.parent / "n1-t4-s0" / "result.json")
    wait_for(folder.parent / "n1-t4-s1" / "running.json")
    time.sleep(3)  # the batch script of cell 0 ends
    os.kill(os.getpid(), signal.SIGKILL)
if seed == 1:
    wait_for(folder.parent / "n1-t4-s2" / "attempts" / "1" / "result.json")
log.append(record.Epoch(1, val_acc=0.5, seconds=0.5))
'''


def test_a_task_that_starts_again_leaves_the_others_of_its_array_alone(lab: Lab) -> None:
    """The last task to start has the number of the whole array, which scontrol takes for all of it."""
    (lab.room / "one.py").write_text(ONE_IS_KILLED)
    words = ["--job", "one.py", "--launcher", "gloo", "--cpus-per-task", "1", "--gpu-type", "t4", "--study", "array"]
    lab.submit(*words, "--gpus", "1", "--seeds", "3")
    cells = ["n1-t4-s0", "n1-t4-s1", "n1-t4-s2"]
    until(lambda: "=== n1-t4-s2: attempt 2" in lab.log("array", "n1-t4-s2"))
    lab.wait("array", "completed")
    assert [lab.log("array", cell).count(": attempt ") for cell in cells] == [1, 1, 2]
    assert [len(list(lab.cell("array", cell).glob("attempts/*"))) for cell in cells] == [0, 0, 1]
    until(lambda: all("slurm" in lab.result("array", cell) for cell in cells))
    results = [lab.result("array", cell)["slurm"] for cell in cells]
    assert results[2]["job_id"] == results[2]["array_job_id"]
    assert [(result["restarts"], result["gpus"]) for result in results] == [
        (0, {"t4": 1}),
        (0, {"t4": 1}),
        (1, {"t4": 1}),
    ]
    names = lab.cluster.run(["squeue", "-h", "--states=all", "-o", "%j", "-j", results[2]["job_id"]], check=True).stdout
    assert sorted(name.rpartition(".")[0] for name in names.split()) == cells


NEVER_GOES_ON = '''
"""Trains two epochs, then waits; the next start begins with the first again."""
import time
from hvdtrain import job, record

job.parser(__doc__, epochs=3, batch_size=32, lr=0.1).parse_args()
folder = record.run_dir()
record.begin(folder, {"world_size": 1, "device": "cpu"})
log = record.EpochLog(folder / "epochs.jsonl")
for epoch in (1, 2):
    log.append(record.Epoch(epoch, val_acc=0.5, seconds=0.5))
time.sleep(600)
'''


@pytest.mark.timeout(400)
def test_training_without_checkpoints_is_not_started_again_for_ever(lab: Lab) -> None:
    (lab.room / "anew.py").write_text(NEVER_GOES_ON)
    words = ["--job", "anew.py", "--launcher", "gloo", "--cpus-per-task", "1", "--study", "anew"]
    lab.submit(*words, "--gpus", "1", "--time", "1")
    until(lambda: (lab.cell("anew", "n1") / "attempts" / "1" / "result.json").exists(), 150)
    rows = lab.wait("anew", "timeout", seconds=200)
    assert "or let the job save checkpoints, then `hvdtrain resume`" in rows["n1"]["reason"]
    # Not "requeued: ", for SLURM may end the script before it has printed that.
    assert lab.log("anew", "n1").count("=== n1: attempt ") == 2
    assert lab.epochs("anew", "n1") == [(1, 0), (2, 0)]
