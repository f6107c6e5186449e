"""Cores and GPUs of this machine; nvidia-smi is played by a script, for machines without GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain import machine
from hvdtrain.errors import UserError
from hvdtrain.machine import check_ranks, visible_gpus
from hvdtrain.world import World
from tests.worlds import warm

TWO_GPUS = """#!/bin/sh
test "$1" = -L || exit 9
echo "GPU 0: Tesla T4 (UUID: GPU-aaaa)"
echo "GPU 1: Tesla T4 (UUID: GPU-bbbb)"
"""
NO_DRIVER = "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'\nexit 9\n"


def with_smi(folder: Path, text: str) -> str:
    """A PATH on which nvidia-smi is this script."""
    program = folder / "nvidia-smi"
    program.write_text(text)
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("chosen", "gpus"),
    [(None, ["0", "1"]), ("", []), ("-1", []), (" ", []), ("1", ["1"]), ("1,0", ["1", "0"]), ("GPU-bbbb", ["GPU-bbbb"]),
     ("0,1,2,3", ["0", "1"]), ("1,7,0", ["1"]), ("0, 1", ["0", "1"]), ("none", []), ("NoDevFiles", [])],
)  # fmt: skip
def test_gpus_are_what_is_there_less_what_is_hidden(tmp_path: Path, chosen: str | None, gpus: list[str]) -> None:
    environ = {"PATH": with_smi(tmp_path, TWO_GPUS)}
    if chosen is not None:
        environ["CUDA_VISIBLE_DEVICES"] = chosen
    assert visible_gpus(environ) == gpus


def test_no_gpus_without_a_driver(tmp_path: Path) -> None:
    assert visible_gpus({"PATH": with_smi(tmp_path, NO_DRIVER)}) == []
    assert visible_gpus({"PATH": str(tmp_path / "empty")}) == []


def test_a_driver_that_hangs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SMI_SECONDS", 0.1)
    with pytest.raises(UserError, match=r"did not answer within .* the GPU driver hangs.*CUDA_VISIBLE_DEVICES="):
        visible_gpus({"PATH": with_smi(tmp_path, "#!/bin/sh\nexec sleep 5\n")})


def test_hidden_gpus_are_not_asked_for(tmp_path: Path) -> None:
    path = with_smi(tmp_path, f"#!/bin/sh\ntouch '{tmp_path}/asked'\n")
    visible_gpus({"PATH": path, "CUDA_VISIBLE_DEVICES": ""})
    assert not (tmp_path / "asked").exists()


def test_gpus_that_the_framework_does_not_see_are_no_cpus(tmp_path: Path) -> None:
    """A job on a GPU node with a framework for CPUs ends before it trains, and says how to go on."""
    environ = {"PATH": with_smi(tmp_path, TWO_GPUS)}
    machine.refuse_unseen_gpus("torch", 2, environ)
    machine.refuse_unseen_gpus("torch", 0, {**environ, "CUDA_VISIBLE_DEVICES": ""})
    machine.refuse_unseen_gpus("torch", 0, {"PATH": str(tmp_path / "empty")})
    with pytest.raises(UserError, match=r"shows 2 GPUs.*tensorflow sees none.*pip install 'tensorflow\[and-cuda\]'"):
        machine.refuse_unseen_gpus("tensorflow", 0, environ)


def rank(local_rank: int, local_size: int) -> World:
    return World(local_rank, 4, local_rank, local_size, 0, 1, "n", "cpu", "gloo")


@pytest.mark.parametrize(
    ("shown", "local_rank", "local_size", "own"),
    [
        ("MIG-a,MIG-b", 0, 2, "MIG-a"),
        ("MIG-a, MIG-b", 1, 2, "MIG-b"),
        # One for each already, the only rank of its node, and whole GPUs, of which CUDA shows all.
        ("MIG-b", 1, 2, "MIG-b"),
        ("MIG-a,MIG-b", 0, 1, "MIG-a,MIG-b"),
        ("0,1", 1, 2, "0,1"),
        ("GPU-a,GPU-b", 1, 2, "GPU-a,GPU-b"),
    ],
)
def test_ranks_of_a_node_take_different_slices_of_gpus(shown: str, local_rank: int, local_size: int, own: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": shown}
    machine.keep_own_slice(rank(local_rank, local_size), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": own}


def test_fewer_slices_than_ranks_are_refused() -> None:
    with pytest.raises(UserError, match="4 ranks on node n see 2 GPUs"):
        machine.keep_own_slice(rank(3, 4), {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"})


def test_a_job_sees_its_own_slice_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    parts = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    place = {f"HOROVOD_{name}": number for name, number in zip(parts, "121201", strict=True)}
    environ = {**os.environ, **place, "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}
    command = [sys.executable, "-m", "hvdtrain.run", str(tmp_path / "job.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (0, "MIG-b\n"), done.stderr


@pytest.mark.ranks
def test_a_job_on_a_gpu_node_with_a_framework_for_cpus(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": with_smi(tmp_path, TWO_GPUS), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "hvdtrain.run", "digits", "--epochs", "1"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert "error: this node shows 1 GPU (nvidia-smi), but the installed torch sees none" in ended.stderr
    assert "Traceback" not in ended.stderr
    environ |= {**warm("torch"), "CUDA_VISIBLE_DEVICES": ""}
    hidden = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert hidden.returncode == 0 and "epoch 1/1" in hidden.stdout, hidden


def test_cores_are_those_that_this_process_may_use() -> None:
    one = min(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, {{{one}}}); from hvdtrain import machine; print(machine.cores())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"
    assert machine.cores() == len(os.sched_getaffinity(0))


def test_mpirun_beside_the_interpreter_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    on_path = tmp_path / "path" / "mpirun"
    on_path.parent.mkdir()
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert machine.find_mpirun() is None
    for program in (on_path, tmp_path / "venv" / "mpirun"):
        program.parent.mkdir(exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
        assert machine.find_mpirun() == str(program)


@pytest.mark.parametrize(
    ("ranks", "gpus", "cores", "notes"),
    [
        ([1, 2, 4], 4, 1, []),
        ([1, 2], 0, 2, []),
        ([2, 4], 0, 2, ["4 ranks share 2 cores: efficiency beyond 2 ranks measures the machine, not the training"]),
        ([2], 0, 1, ["2 ranks share 1 core: efficiency beyond 1 rank measures the machine, not the training"]),
    ],
)
def test_notes_on_what_a_machine_can_run(ranks: list[int], gpus: int, cores: int, notes: list[str]) -> None:
    assert check_ranks(ranks, gpus, cores) == notes


def test_more_ranks_than_gpus_are_refused_with_the_legal_part() -> None:
    with pytest.raises(UserError) as caught:
        check_ranks([1, 2, 8], 2, 64)
    for word in ("--gpus 1,2,8", "8 ranks need 8 GPUs", "shows 2", "legal are 1 to 2", "without the rest: --gpus 1,2"):
        assert word in str(caught.value)
    with pytest.raises(UserError) as caught:
        check_ranks([8], 2, 64)
    assert "without the rest" not in str(caught.value)


def _page_faults(*before: str, **environment: str) -> int:
    """Of a process that ten times fills, and then frees, eight blocks of four megabytes."""
    program = (
        "import resource, numpy as np\n"
        + "\n".join(before)
        + "\nfor _ in range(2): blocks = [np.ones(1 << 19) for _ in range(8)]; del blocks\n"
        "began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): blocks = [np.ones(1 << 19) for _ in range(8)]; del blocks\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)"
    )
    # Pages of two megabytes would hide what is counted.
    environ = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", **environment}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    return int(ended.stdout)


def test_freed_memory_is_not_given_back() -> None:
    kept = ("from hvdtrain.machine import keep_freed_memory", "keep_freed_memory()")
    returned = _page_faults()
    assert returned > 20_000
    assert _page_faults(*kept) < returned / 20
    # A user's own choice stays.
    assert _page_faults(*kept, MALLOC_TRIM_THRESHOLD_="1000000") > returned / 2
