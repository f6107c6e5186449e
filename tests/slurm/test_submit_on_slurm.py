"""Submission to a real cluster: what is handed over, what the user sees, and what stays when SLURM says no."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdtrain import testcluster
from tests.slurm.lab import PLAIN_WORDS, Lab, until
from tests.yardstick import assert_within

CELLS = ["n1-t4", "n2-t4", "n8-t4"]


def wrapped_sbatch(room: Path, after: str) -> str:
    """A PATH with an sbatch that counts its calls, and does `after` when the real one has answered."""
    folder = room / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "sbatch").write_text(
        f'#!/bin/bash\necho call >>"$(dirname "$0")/calls"\n{shutil.which("sbatch")} "$@"\n{after}\n'
    )
    (folder / "sbatch").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.ranks
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("launcher", "controller", "sizes"), [("gloo", "gloo", "2,8"), ("pmix", "mpi", "2,4")], ids=["gloo", "pmix"]
)
def test_a_grid_of_sizes_and_types_from_end_to_end(lab: Lab, launcher: str, controller: str, sizes: str) -> None:
    """The sentence that everything else serves."""
    words = ["--gpus", sizes, "--gpu-type", "t4,v100", "--epochs", "1", "--launcher", launcher, "--max-parallel", "1"]
    done = lab.submit(*words, "--wait", timeout=900)
    rows = lab.status("digits")
    assert {row["status"] for row in rows.values()} == {"completed"}, done.stdout
    assert len(rows) == 2 * len(sizes.split(","))
    for cell in rows:
        result = lab.result("digits", cell)
        gpus, gpu_type = int(cell[1]), cell[3:]
        assert result["world_size"] == gpus
        assert result["controller"] == controller
        assert result["gpu_types"] == [gpu_type]
        assert result["mixed"] is False
        assert all(f"-{gpu_type}-" in host for host in result["hosts"])
        assert len(result["hosts"]) == max(1, gpus // 4)
        assert [rank["rank"] for rank in result["ranks"]] == list(range(gpus))
        assert {rank["host"] for rank in result["ranks"]} == set(result["hosts"])
        assert [epoch for epoch, _ in lab.epochs("digits", cell)] == [1]


# --- what is handed over -------------------------------------------------------------------------------------------


def test_the_same_bytes_three_times(lab: Lab) -> None:
    words = [*PLAIN_WORDS, "--gpus", "2,4", "--seeds", "2", "--gpu-type", "t4"]
    printed = lab.submit(*words, "--dry-run")
    assert not (lab.room / "runs").exists()
    lab.submit(*words, "--wait")
    texts = dict(re.findall(r"^#### (.*?): [^\n]*\n(.*?)(?=^#### |\Z)", printed.stdout, re.DOTALL | re.MULTILINE))
    for cell in ("n2-t4-s0", "n2-t4-s1", "n4-t4-s0", "n4-t4-s1"):
        assert (lab.cell("plain", cell) / "script.sh").read_text() == texts[cell]
    arrays = [text for heading, text in texts.items() if heading.startswith("array of")]
    assert len(arrays) == 2
    kept = sorted((lab.room / "runs" / "plain" / "submissions").glob("*/script.sh"))
    assert [path.read_text() for path in kept] == arrays
    jobs = [lab.status("plain")[cell]["job"].split("_")[0] for cell in ("n2-t4-s0", "n4-t4-s0")]
    for job, text in zip(jobs, arrays, strict=True):  # what SLURM itself has
        told = lab.cluster.run(["scontrol", "write", "batch_script", job, "-"], check=True).stdout
        assert told.rstrip("\n\0") + "\n" == text


@pytest.mark.parametrize("folder", [".", "back\\slash \\%a"])
def test_any_text_reaches_the_job(lab: Lab, folder: str) -> None:
    (lab.room / folder).mkdir(exist_ok=True)
    shutil.copy(lab.room / "plain.py", lab.room / folder) if folder != "." else None
    lab = Lab(lab.cluster, lab.room / folder)
    value = 'it\'s "v" $HOME `id` \\n\nnext line = #SBATCH --nodes=9 ; & é %j'
    lab.submit(*PLAIN_WORDS, "--gpus", "1", "--seeds", "2", "--env", f"VALUE={value}", "--wait", "--", "--text", value)
    seen = json.loads((lab.cell("plain", "n1-s1") / "seen.json").read_text())
    assert seen == {"argv": ["--seed", "1", "--text", value], "cwd": str(lab.room.resolve()), "value": value}
    assert lab.result("plain", "n1-s1")["status"] == "completed"
    assert "=== n1-s1: attempt 1" in lab.log("plain", "n1-s1")


def test_64_cells_are_one_call_for_each_shape(lab: Lab) -> None:
    (lab.room / "hvdtrain.toml").write_text('[site]\ndirectives = ["--hold"]\n')
    path = wrapped_sbatch(lab.room, "exit $?")
    began = time.monotonic()
    lab.submit(*PLAIN_WORDS, "--gpus", "1,2,4,8", "--seeds", "16", PATH=path)
    took = time.monotonic() - began
    assert (lab.room / "bin" / "calls").read_text().count("call") == 4
    rows = lab.status("plain")
    assert len(rows) == 64
    assert {row["status"] for row in rows.values()} == {"pending"}
    assert "JobHeldUser: you hold it" in rows["n1-s0"]["reason"]
    assert took < 60
    again = lab.submit(*PLAIN_WORDS, "--gpus", "1,2,4,8", "--seeds", "16", PATH=path)
    assert "64 cells: 0 to run, 64 in the queue already" in again.stdout
    assert (lab.room / "bin" / "calls").read_text().count("call") == 4
    assert lab("cancel", "plain").returncode == 0
    assert {row["status"] for row in lab.status("plain").values()} == {"cancelled"}


def test_larger_sizes_leave_the_launcher_of_those_before(lab: Lab) -> None:
    """Within a node it is pmix; for a grid that also has more than a node, gloo."""
    (lab.room / "hvdtrain.toml").write_text('[site]\ndirectives = ["--hold"]\n')
    words = ["--job", "plain.py", "--cpus-per-task", "1", "--gpu-type", "t4"]
    assert "note: launcher pmix: " in lab.submit(*words, "--gpus", "1,2").stdout
    printed = lab.submit(*words, "--gpus", "1,2,8", "--dry-run")
    more = lab.submit(*words, "--gpus", "1,2,8")
    said = "note: launcher pmix stays with what the study has (n1-t4, n2-t4); other cells take gloo: for pmix "
    assert said in printed.stderr
    assert said in more.stdout
    assert "3 cells: 1 to run, 2 in the queue already" in more.stdout
    launchers = {name: json.loads((lab.cell("plain", name) / "cell.json").read_text())["launcher"] for name in CELLS}
    assert launchers == {"n1-t4": "pmix", "n2-t4": "pmix", "n8-t4": "gloo"}
    for name in CELLS:
        assert (lab.cell("plain", name) / "script.sh").read_text() in printed.stdout
    named = lab("submit", *words, "--gpus", "1,8", "--launcher", "gloo")
    assert named.returncode == 2
    assert "already has a cell n1-t4 with another configuration: launcher pmix -> gloo" in named.stderr
    assert lab("cancel", "plain").returncode == 0


def test_the_nodes_are_those_of_the_partition_that_is_asked_for(lab: Lab) -> None:
    node = lab.cluster.nodes[0]
    change = ["scontrol", "update", "PartitionName=all", "Default=NO"]
    create = ["scontrol", "create", "PartitionName=few", f"Nodes={node}", "Default=YES"]
    try:
        lab.cluster.run(change, check=True)
        lab.cluster.run(create, check=True)
        refused = lab("submit", *PLAIN_WORDS, "--gpus", "16", "--dry-run")
        assert "there are 4 GPUs: 1 node with 4 each" in refused.stderr
        done = lab.submit(*PLAIN_WORDS, "--gpus", "16", "--partition", "few,all", "--dry-run")
        assert "#SBATCH --nodes=4\n" in done.stdout
    finally:
        lab.cluster.run(["scontrol", "delete", "PartitionName=few"])
        lab.cluster.run([*change[:-1], "Default=YES"])


def test_arrays_no_longer_than_the_site_allows(small: Lab) -> None:
    path = wrapped_sbatch(small.room, "exit $?")
    small.submit(*PLAIN_WORDS, "--gpus", "1", "--seeds", "6", "--study", "split", "--wait", PATH=path)
    assert (small.room / "bin" / "calls").read_text().count("call") == 2
    assert {row["status"] for row in small.status("split").values()} == {"completed"}
    jobs = {row["job"].split("_")[0] for row in small.status("split").values()}
    assert len(jobs) == 2


def test_max_parallel(lab: Lab) -> None:
    lab.submit(*PLAIN_WORDS, "--gpus", "1,2", "--seeds", "2", "--set", "sleep=1", "--max-parallel", "1", "--wait")
    spans = sorted(
        (result["slurm"]["began"], result["slurm"]["ended"])
        for result in (lab.result("plain", cell) for cell in lab.status("plain"))
    )
    assert all(second[0] >= first[1] - 1.0 for first, second in itertools.pairwise(spans)), spans


def test_from_inside_a_job(lab: Lab) -> None:
    """The outer job has another shape, another name, another log; none of it may reach the inner one."""
    command = [sys.executable, "-m", "hvdtrain", "submit", *PLAIN_WORDS, "--gpus", "2", "--gpu-type", "v100"]
    outer = ["srun", "--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=t4:3", "--time=7", *command, "--time", "9"]
    done = lab.run(outer)
    assert done.returncode == 0, done.stderr
    lab.wait("plain", "completed")
    # The batch script adds SLURM's facts when its ranks have completed.
    until(lambda: "gpu_types" in lab.result("plain", "n2-v100"))
    result = lab.result("plain", "n2-v100")
    assert result["world_size"] == 2
    assert result["gpu_types"] == ["v100"]
    assert result["slurm"]["time_limit"] == 540
    assert "WARNING" not in done.stderr


def test_untyped_over_two_types_is_marked_mixed(lab: Lab) -> None:
    done = lab.submit(*PLAIN_WORDS, "--gpus", "16", "--wait")
    assert "types t4, v100 and no --gpu-type was given" in done.stdout
    result = lab.result("plain", "n16")
    assert result["mixed"] is True
    assert result["gpu_types"] == ["t4", "v100"]
    assert "it is marked mixed and stays out of fits" in lab.log("plain", "n16")
    assert result["world_size"] == 16


BOUND = '''
"""Writes down where each rank may run."""
import os
from hvdtrain import job, record, world

job.parser(__doc__, epochs=1, batch_size=32, lr=0.1).parse_args()
place, folder = world.detect(), record.run_dir()
(folder / f"bound-{place.rank}").write_text(f"{place.node} {sorted(os.sched_getaffinity(0))}")
if place.rank == 0:
    record.begin(folder, {"world_size": place.size, "device": "cpu"})
    record.EpochLog(folder / "epochs.jsonl").append(record.Epoch(1, val_acc=0.5, seconds=0.5))
'''


def test_every_rank_is_bound_to_a_core_of_its_own(tmp_path: Path) -> None:
    options = testcluster.Options(
        name=f"b{os.getpid() % 10**7}", owner_pid=os.getpid(), settings=("TaskPlugin=task/affinity",)
    )
    lab = Lab(testcluster.up(options), tmp_path)
    try:
        (tmp_path / "bound.py").write_text(BOUND)
        words = ["--job", "bound.py", "--gpus", "4", "--gpu-type", "t4", "--gpus-per-node", "2", "--cpus-per-task", "1"]
        lab.submit(*words, "--launcher", "gloo", "--wait")
        bound = [(lab.cell("bound", "n4-t4") / f"bound-{rank}").read_text().split(" ", 1) for rank in range(4)]
        assert [node[-4:] for node, _ in bound] == ["t4-1", "t4-1", "t4-2", "t4-2"]
        assert [cores for _, cores in bound] == ["[0]", "[1]", "[0]", "[1]"]
    finally:
        testcluster.down(options)


def test_what_would_be_run_in_a_container(lab: Lab) -> None:
    """No container runtime is here: a stand-in writes down how it is called and runs what stands after the image."""
    image = "/images/it's $HOME.sif"
    folder = lab.room / "bin"
    folder.mkdir()
    (folder / "apptainer").write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" >"$HVDTRAIN_RUN_DIR/words.$SLURM_PROCID"\n'
        'while [ "$1" != "$IMAGE" ]; do shift; done\nshift; exec "$@"\n'
    )
    (folder / "apptainer").chmod(0o755)
    table = {"kind": "apptainer", "image": image, "python": sys.executable, "mounts": ["/scratch:/data"]}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in table.items()]
    (lab.room / "hvdtrain.toml").write_text(f"[site.container]\n{''.join(lines)}")
    lab.submit(*PLAIN_WORDS, "--gpus", "2", "--wait", PATH=f"{folder}:{os.environ['PATH']}", IMAGE=image)
    assert lab.result("plain", "n2")["status"] == "completed"
    for rank in (0, 1):
        words = (lab.cell("plain", "n2") / f"words.{rank}").read_text().splitlines()
        assert words[:2] == ["exec", "--nv"]
        assert ["--bind", "/scratch:/data"] in [list(pair) for pair in itertools.pairwise(words)]
        assert words[words.index(image) + 1 :][:3] == [sys.executable, "-m", "hvdtrain.run"]


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_refusal_is_quoted_and_nothing_is_left(small: Lab) -> None:
    before = small.cluster.run(["squeue", "-h"]).stdout
    done = small("submit", *PLAIN_WORDS, "--gpus", "1,2", "--account", "nobody", "--study", "refused")
    assert done.returncode == 2
    assert "Batch job submission failed: Invalid account or account/partition combination specified" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Invalid account") == 1
    assert not (small.room / "runs" / "refused").exists()
    assert small.cluster.run(["squeue", "-h"]).stdout == before


def test_all_or_nothing(lab: Lab) -> None:
    """The second of two submissions is refused: the first is taken back."""
    path = wrapped_sbatch(
        lab.room, '[ "$(wc -l <"$(dirname "$0")/calls")" = 1 ] || { echo "sbatch: error: no more" >&2; exit 1; }'
    )
    done = lab("submit", *PLAIN_WORDS, "--gpus", "1,2", "--set", "sleep=60", PATH=path)
    assert done.returncode == 2
    assert "no more" in done.stderr
    assert not (lab.room / "runs").exists()
    until(lambda: lab.cluster.run(["squeue", "-h"]).stdout == "")


def test_an_accepted_submission_without_an_answer_is_found_again(lab: Lab) -> None:
    silence = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1'
    path = wrapped_sbatch(lab.room, silence)
    done = lab.submit(*PLAIN_WORDS, "--gpus", "1", "--seeds", "3", PATH=path)
    assert "submitted job " in done.stdout
    lab.wait("plain", "completed")
    jobs = lab.cluster.run(["squeue", "-h", "--states=all", "-o", "%Z"]).stdout
    assert len({row["job"].split("_")[0] for row in lab.status("plain").values()}) == 1, jobs


def test_ctrl_c_while_slurm_is_asked_leaves_no_job_and_no_file(lab: Lab) -> None:
    path = wrapped_sbatch(lab.room, "kill -INT $PPID; sleep 5")  # it was accepted, and nobody hears the number
    done = lab("submit", *PLAIN_WORDS, "--gpus", "1,2", "--set", "sleep=60", PATH=path)
    assert done.returncode == 1
    assert done.stderr == "error: interrupted\n"
    assert (lab.room / "bin" / "calls").read_text() == "call\n"
    assert not (lab.room / "runs").exists()
    until(lambda: lab.cluster.run(["squeue", "-h"]).stdout == "")


def test_a_study_that_cannot_be_written_can_still_be_cancelled(lab: Lab) -> None:
    lab.submit(*PLAIN_WORDS, "--gpus", "1", "--set", "sleep=600")
    place = lab.room / "runs" / "plain" / "submissions"
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
    try:
        done = lab("cancel", "plain")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
    assert done.returncode == 0, done.stderr
    assert "not written down: " in done.stderr
    assert "Read-only file system" in done.stderr
    until(lambda: lab.cluster.run(["squeue", "-h"]).stdout == "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "2", "--account", ""], '--account "": give a value, or leave the option out'),
        (["--gpus", "5"], "5 ranks cannot lie evenly on at most 4 nodes with 4 GPUs each"),
        (["--gpus", "5"], "nearest that fit: 4 and 6"),
        (["--gpus", "16", "--gpu-type", "t4"], "there are 8 GPUs of type t4: 2 nodes with 4 each; nearest that fit: 8"),
        (["--gpus", "2", "--gpu-type", "T5"], 'the types here are t4, v100; did you mean "t4"?'),
        (["--gpus", "2", "--gpus-per-node", "9"], "nodes here have 4; nearest: --gpus-per-node 4"),
        (["--gpus", "8", "--gpu-type", "t4", "--cpus-per-task", "5"], "4 ranks on a node would take 20 CPUs"),
        (["--gpus", "2", "--time", "soon"], '--time "soon" is not a time such as 90 (minutes)'),
        (["--gpus", "8", "--max-gpu-hours", "4", "--time", "1:00:00"], "could use 8 GPU-hours; it fits with --time 30"),
        (["--gpus", "2", "--max-gpu-hours", "1"], "give --time too"),
        (["--gpus", "2", "--site", "no.toml"], "hvdtrain site detect --write"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_fulfilled(lab: Lab, words: list[str], message: str) -> None:
    done = lab("submit", *PLAIN_WORDS, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (lab.room / "runs").exists()


@pytest.mark.alone
def test_dry_run_in_less_than_half_a_second(lab: Lab) -> None:
    def dry_run() -> float:
        began = time.monotonic()
        lab.submit(*PLAIN_WORDS, "--gpus", "2,4,8", "--gpu-type", "t4,v100", "--dry-run")
        return time.monotonic() - began

    assert_within(0.5, dry_run)
