"""Who am I, under every launcher: environments as SLURM 22.05, PMIx 4.2 and Open MPI 5 really set them."""

from __future__ import annotations

import socket

import pytest

from hvdtrain.errors import UserError
from hvdtrain.world import World, choose_device, detect

Variables = dict[str, str]


def slurm(procid: int, localid: int, nodeid: int, tasks: int, per_node: str, node: str) -> Variables:
    """What srun of SLURM 22.05 sets in one task, less what says nothing about its place."""
    return {
        "SLURM_CLUSTER_NAME": "hvd",
        "SLURM_JOB_ID": "13",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(procid),
        "SLURM_LOCALID": str(localid),
        "SLURM_NODEID": str(nodeid),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_STEP_NODELIST": "hvd-t4-[1-2]",
        "SLURMD_NODENAME": node,
    }


SRUN_2X2_RANK2 = slurm(2, 0, 1, 4, "2(x2)", "hvd-t4-2")
PMIX_2X2_RANK1 = slurm(1, 1, 0, 4, "2(x2)", "hvd-t4-1") | {
    "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.2.0", "PMIX_HOSTNAME": "hvd-t4-1", "SLURM_MPI_TYPE": "pmix",
}  # fmt: skip
PMI2_2X2_RANK1 = slurm(1, 1, 0, 4, "2(x2)", "hvd-t4-2") | {"PMI_RANK": "1", "PMI_SIZE": "4", "SLURM_MPI_TYPE": "pmi2"}
# sbatch --nodes=2 --ntasks-per-node=2: the script itself has a rank and a node too, and no step.
BATCH_SCRIPT = {
    "SLURM_CLUSTER_NAME": "hvd", "SLURM_JOB_ID": "13", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NODELIST": "hvd-t4-[1-2]", "SLURMD_NODENAME": "hvd-t4-1",
}  # fmt: skip
MPIRUN_RANK1 = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1", "OMPI_VERSION": "5.0.11",
    "PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-vm-12943@1", "PMIX_HOSTNAME": "vm",
}  # fmt: skip
# mpirun of MPICH 4 (Hydra, which is Intel MPI's and MVAPICH's too); and its ranks in a SLURM allocation, where it starts its
# daemons by srun, whose places they inherit.
HYDRA_RANK1 = {
    "PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1",
}  # fmt: skip
HYDRA_BY_SRUN = slurm(0, 0, 0, 1, "1", "hvd-t4-1") | HYDRA_RANK1
HERE = socket.gethostname()


def horovod(rank: int, size: int, local: int, local_size: int, cross: int, cross_size: int) -> Variables:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    values = (rank, size, local, local_size, cross, cross_size)
    return {f"HOROVOD_{name}": str(value) for name, value in zip(names, values, strict=True)}


HOROVOD_5_OF_8 = horovod(5, 8, 1, 4, 1, 2)
WITHOUT_STEP_SIZE = {name: value for name, value in SRUN_2X2_RANK2.items() if name != "SLURM_STEP_NUM_TASKS"}

#: name -> variables, then rank, size, local_rank, local_size, cross_rank, cross_size, node, launcher.
WORLDS: dict[str, tuple[Variables, World]] = {
    "nothing": ({}, World(0, 1, 0, 1, 0, 1, HERE, "cpu", "none")),
    "srun 2x2": (SRUN_2X2_RANK2, World(2, 4, 0, 2, 1, 2, "hvd-t4-2", "cpu", "gloo")),
    "srun 2x2 without step size": (WITHOUT_STEP_SIZE, World(2, 4, 0, 2, 1, 2, "hvd-t4-2", "cpu", "gloo")),
    "srun --mpi=pmix": (PMIX_2X2_RANK1, World(1, 4, 1, 2, 0, 2, "hvd-t4-1", "cpu", "pmix")),
    "srun --mpi=pmi2": (PMI2_2X2_RANK1, World(1, 4, 1, 2, 0, 2, "hvd-t4-2", "cpu", "gloo")),
    # Ranks of an mpirun may start a world of their own.
    "srun by a rank of mpirun": (
        SRUN_2X2_RANK2 | {"PMI_RANK": "1", "PMI_SIZE": "2"},
        World(2, 4, 0, 2, 1, 2, "hvd-t4-2", "cpu", "gloo"),
    ),
    "local starter by a rank of mpirun": (
        HYDRA_RANK1 | horovod(0, 2, 0, 2, 0, 1),
        World(0, 2, 0, 2, 0, 1, HERE, "cpu", "gloo"),
    ),
    "mpirun of MPICH, one rank": (
        HYDRA_RANK1 | {"PMI_RANK": "0", "PMI_SIZE": "1"},
        World(0, 1, 0, 1, 0, 1, HERE, "cpu", "none"),
    ),
    "mpirun of MPICH, alone on purpose": (
        HYDRA_RANK1 | {"HVDTRAIN_LAUNCHER": "none"},
        World(0, 1, 0, 1, 0, 1, HERE, "cpu", "none"),
    ),
    "srun in a batch script": (
        BATCH_SCRIPT | slurm(1, 1, 0, 4, "2(x2)", "hvd-t4-1"),
        World(1, 4, 1, 2, 0, 2, "hvd-t4-1", "cpu", "gloo"),
    ),
    # A step smaller than its allocation: the step's numbers are the world's.
    "srun -N1 -n2 in a batch script of 4": (
        BATCH_SCRIPT | slurm(1, 1, 0, 2, "2", "hvd-t4-1") | {"SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"},
        World(1, 2, 1, 2, 0, 1, "hvd-t4-1", "cpu", "gloo"),
    ),
    # Only the first node has a local rank 1, so its world across nodes is one node.
    "srun -N2 -n3, rank 1": (slurm(1, 1, 0, 3, "2,1", "hvd-t4-1"), World(1, 3, 1, 2, 0, 1, "hvd-t4-1", "cpu", "gloo")),
    "srun -N2 -n3, rank 2": (slurm(2, 0, 1, 3, "2,1", "hvd-t4-2"), World(2, 3, 0, 1, 1, 2, "hvd-t4-2", "cpu", "gloo")),
    "cyclic, rank 1": (slurm(1, 0, 1, 3, "2,1", "hvd-t4-2"), World(1, 3, 0, 1, 1, 2, "hvd-t4-2", "cpu", "gloo")),
    "cyclic, rank 2": (slurm(2, 1, 0, 3, "2,1", "hvd-t4-1"), World(2, 3, 1, 2, 0, 1, "hvd-t4-1", "cpu", "gloo")),
    # Local rank 1 exists on the first and third node: the third is the second of them.
    "a gap between nodes": (slurm(4, 1, 2, 5, "2,1,2", "n3"), World(4, 5, 1, 2, 1, 2, "n3", "cpu", "gloo")),
    "mpirun": (MPIRUN_RANK1, World(1, 2, 1, 2, 0, 1, HERE, "cpu", "mpirun")),
    "mpirun on 2 nodes": (
        MPIRUN_RANK1 | {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        World(3, 4, 1, 2, 1, 2, HERE, "cpu", "mpirun"),
    ),
    "horovod": (HOROVOD_5_OF_8, World(5, 8, 1, 4, 1, 2, HERE, "cpu", "gloo")),
    "horovod with names": (
        HOROVOD_5_OF_8 | {"HOROVOD_HOSTNAME": "nodeb", "HVDTRAIN_LAUNCHER": "local"},
        World(5, 8, 1, 4, 1, 2, "nodeb", "cpu", "local"),
    ),
    "horovod before open mpi": (MPIRUN_RANK1 | horovod(0, 1, 0, 1, 0, 1), World(0, 1, 0, 1, 0, 1, HERE, "cpu", "gloo")),
    "horovod before slurm": (
        SRUN_2X2_RANK2 | horovod(1, 2, 1, 2, 0, 1),
        World(1, 2, 1, 2, 0, 1, "hvd-t4-2", "cpu", "gloo"),
    ),
    "open mpi before slurm": (
        SRUN_2X2_RANK2 | MPIRUN_RANK1,
        World(1, 2, 1, 2, 0, 1, "hvd-t4-2", "cpu", "mpirun"),
    ),
    "allocation of one task": (
        BATCH_SCRIPT | {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"},
        World(0, 1, 0, 1, 0, 1, "hvd-t4-1", "cpu", "none"),
    ),
    "allocation that counts no tasks": (
        {name: value for name, value in BATCH_SCRIPT.items() if "TASKS" not in name},
        World(0, 1, 0, 1, 0, 1, "hvd-t4-1", "cpu", "none"),
    ),
    "alone on purpose": (
        BATCH_SCRIPT | {"HVDTRAIN_LAUNCHER": "none"},
        World(0, 1, 0, 1, 0, 1, "hvd-t4-1", "cpu", "none"),
    ),
    # Exported by hand, for sbatch to read: without a job there is no allocation.
    "task count without a job": ({"SLURM_NTASKS": "4"}, World(0, 1, 0, 1, 0, 1, HERE, "cpu", "none")),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_launcher_places_its_ranks(name: str) -> None:
    variables, expected = WORLDS[name]
    assert detect(variables) == expected


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOROVOD_5_OF_8:
        monkeypatch.setenv(name, HOROVOD_5_OF_8[name])
    assert detect().rank == 5


def test_an_uneven_layout_numbers_nodes_consistently() -> None:
    """Horovod needs (local_rank, cross_rank) to be different for all ranks, and cross ranks without gaps."""
    layout = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]  # node, local rank; tasks per node 2,1,3
    worlds = [detect(slurm(rank, local, node, 6, "2,1,3", f"n{node}")) for rank, (node, local) in enumerate(layout)]
    for local in range(3):
        same = [each for each in worlds if each.local_rank == local]
        assert [each.cross_rank for each in same] == list(range(len(same)))
        assert {each.cross_size for each in same} == {len(same)}
    assert worlds[0].nodes == 3


MISTAKES: dict[str, tuple[Variables, list[str]]] = {
    "batch script without srun": (
        BATCH_SCRIPT,
        [
            "4 tasks",
            "not started by srun",
            "srun --kill-on-bad-exit=1 python -m hvdtrain.run",
            "HVDTRAIN_LAUNCHER=none",
        ],
    ),
    "no local rank": (
        {name: value for name, value in SRUN_2X2_RANK2.items() if name != "SLURM_LOCALID"},
        ["SLURM_LOCALID is not set", "one launcher only"],
    ),
    "empty node id": (SRUN_2X2_RANK2 | {"SLURM_NODEID": ""}, ["SLURM_NODEID is not set"]),
    "garbled rank": (SRUN_2X2_RANK2 | {"SLURM_PROCID": "two"}, ["SLURM_PROCID=two is not a whole number"]),
    "negative rank": (SRUN_2X2_RANK2 | {"SLURM_PROCID": "-1"}, ["SLURM_PROCID=-1 is not a whole number"]),
    "garbled layout": (SRUN_2X2_RANK2 | {"SLURM_STEP_TASKS_PER_NODE": "2(2)"}, ['"2(2)"', '"4(x2),3"']),
    "layout of another size": (
        SRUN_2X2_RANK2 | {"SLURM_STEP_TASKS_PER_NODE": "3(x2)"},
        ["SLURM_STEP_TASKS_PER_NODE=3(x2)", "6 tasks on 2 nodes", "task 2 of 4 on node 1", "by hand"],
    ),
    "node outside the layout": (SRUN_2X2_RANK2 | {"SLURM_NODEID": "2"}, ["4 tasks on 2 nodes", "on node 2"]),
    "rank outside the world": (
        slurm(4, 1, 1, 4, "2(x2)", "n"),
        ["rank 4 does not lie in 0..3 (size is 4)", "variables disagree"],
    ),
    "local rank outside the node": (slurm(3, 2, 1, 4, "2(x2)", "n"), ["local_rank 2 does not lie in 0..1"]),
    "mpirun without size": (
        {name: value for name, value in MPIRUN_RANK1.items() if name != "OMPI_COMM_WORLD_SIZE"},
        ["OMPI_COMM_WORLD_SIZE is not set"],
    ),
    "mpirun rank too large": (MPIRUN_RANK1 | {"OMPI_COMM_WORLD_RANK": "2"}, ["rank 2 does not lie in 0..1"]),
    "horovod without local rank": (
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"},
        ["HOROVOD_LOCAL_RANK is not set"],
    ),
    "horovod garbled": (HOROVOD_5_OF_8 | {"HOROVOD_SIZE": "8.0"}, ["HOROVOD_SIZE=8.0 is not a whole number"]),
    "horovod cross rank": (HOROVOD_5_OF_8 | {"HOROVOD_CROSS_RANK": "2"}, ["cross_rank 2 does not lie in 0..1"]),
    "mpirun of MPICH": (
        HYDRA_RANK1,
        ["PMI_SIZE=4", "not Open MPI's", "srun", "python -m hvdtrain.launch --launcher local"],
    ),
    "mpirun of MPICH in a batch script": (BATCH_SCRIPT | HYDRA_RANK1, ["PMI_SIZE=4", "not Open MPI's"]),
    "mpirun of MPICH by srun": (HYDRA_BY_SRUN, ["PMI_SIZE=4", "not Open MPI's"]),
    "mpirun_rsh of MVAPICH": (
        {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1"},
        ["MV2_COMM_WORLD_SIZE=2", "not Open MPI's"],
    ),
    "PMIx of something else": ({"PMIX_RANK": "3"}, ["PMIX_RANK=3", "srun --mpi=pmix or mpirun"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_what_was_set_and_what_is_legal(name: str) -> None:
    variables, words = MISTAKES[name]
    with pytest.raises(UserError) as caught:
        detect(variables)
    assert [word for word in words if word not in str(caught.value)] == []


def place(local_rank: int, local_size: int) -> World:
    return World(local_rank, local_size, local_rank, local_size, 0, 1, "node7", "cpu", "gloo")


@pytest.mark.parametrize(
    ("visible", "local_rank", "local_size", "device"),
    [
        (0, 0, 1, "cpu"),
        (0, 3, 4, "cpu"),
        (1, 0, 1, "cuda:0"),
        (1, 3, 4, "cuda:0"),  # each rank was given its own
        (2, 0, 2, "cuda:0"),
        (4, 3, 4, "cuda:3"),
    ],
)
def test_device_of_a_rank(visible: int, local_rank: int, local_size: int, device: str) -> None:
    world = place(local_rank, local_size)
    assert choose_device(visible, world) == device
    assert world.on(device).device == device and world.device == "cpu"


@pytest.mark.parametrize(("visible", "local_size"), [(2, 4), (4, 2), (3, 2)])
def test_gpus_that_cannot_be_divided_are_refused(
    visible: int, local_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,7")
    with pytest.raises(UserError) as caught:
        choose_device(visible, place(0, local_size))
    for word in (f"{local_size} ranks on node node7 see {visible} GPUs", "CUDA_VISIBLE_DEVICES=0,1,7",
                 f"--gpus-per-node={local_size}", f"start {visible} ranks per node"):  # fmt: skip
        assert word in str(caught.value)
