"""Who am I: rank, size and place of this process. All reading of SLURM_, PMIX_, OMPI_ and HOROVOD_ variables is here.

`detect` asks each parser in turn whether its launcher started this process; the first that says yes builds the
`World`. Nothing here starts a process, opens a socket or imports a framework.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hvdtrain.errors import UserError

Environment = Mapping[str, str]


@dataclass(frozen=True)
class World:
    """The place of one rank. `cross_rank` counts the nodes that have this `local_rank`; `device` is "cpu" or "cuda:i"."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    node: str
    device: str
    launcher: str

    def __post_init__(self) -> None:
        for name, of in (("rank", "size"), ("local_rank", "local_size"), ("cross_rank", "cross_size")):
            value, bound = getattr(self, name), getattr(self, of)
            if not 0 <= value < bound:
                raise UserError(
                    f"{name} {value} does not lie in 0..{bound - 1} ({of} is {bound}): the launcher's variables disagree"
                )

    @property
    def nodes(self) -> int:
        """Number of nodes, as far as this rank can tell: exact when every node has this local rank."""
        return self.cross_size

    def on(self, device: str) -> World:
        """The same rank on `device`."""
        return replace(self, device=device)


def detect(environ: Environment | None = None) -> World:
    """The world that the launcher of this process describes; a world of one when nothing launched it.

    Raises:
        UserError: variables are missing, malformed or contradict each other, a SLURM allocation of several tasks was
            entered without srun, or an mpirun that is not Open MPI's started several of this process.
    """
    environ = os.environ if environ is None else environ
    for started_by, parse in PARSERS.values():
        if started_by(environ):
            return parse(environ)
    tasks = _tasks_of_allocation(environ)
    if tasks > 1 and environ.get("HVDTRAIN_LAUNCHER") != "none":
        raise UserError(
            f"this SLURM allocation has {tasks} tasks, but this process was not started by srun, so it would train alone "
            "as rank 0 of 1. Type: srun --kill-on-bad-exit=1 python -m hvdtrain.run ...   "
            "(or export HVDTRAIN_LAUNCHER=none to train alone)"
        )
    return World(0, 1, 0, 1, 0, 1, _hostname(environ), "cpu", "none")


def choose_device(visible: int, world: World) -> str:
    """The device of this rank when it sees `visible` GPUs.

    None: "cpu". One: that one (SLURM and our local starter give each rank its own). As many as local ranks: the one of
    the local rank. A world of one takes the first.

    Raises:
        UserError: any other number; says what is visible.
    """
    if visible == 0:
        return "cpu"
    if visible == 1 or (visible > 1 and world.size == 1):
        return "cuda:0"
    if visible == world.local_size:
        return f"cuda:{world.local_rank}"
    raise UserError(
        f"{world.local_size} ranks on node {world.node} see {visible} GPU{'s' if visible > 1 else ''} "
        f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}); legal are one GPU for each rank or "
        f"as many GPUs as ranks. Ask for --gpus-per-node={world.local_size}, start {visible} ranks per node, "
        "or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU"
    )


def launch_id(environ: Environment | None = None) -> str:
    """A name for this start of this world, the same on all its ranks and different for the next start.

    SLURM reuses job ids after a requeue, and from 1 when a cluster is made anew; hence restart count and cluster name.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get("HVDTRAIN_LAUNCH_ID"):
        return given
    parts = [environ.get(f"SLURM_{name}", "") for name in ("CLUSTER_NAME", "JOB_ID", "STEP_ID")]
    return "-".join([*parts, environ.get("SLURM_RESTART_COUNT") or "0"])


def slurm_task(environ: Environment | None = None) -> int | None:
    """The number of this task of a SLURM job; None outside of one."""
    text = (os.environ if environ is None else environ).get("SLURM_PROCID", "")
    return int(text) if text.isdigit() else None


def rank_variables(environ: Environment | None = None) -> list[str]:
    """Variables in the environment by which a launcher tells a process its rank."""
    names = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
    return [name for name in names if name in (os.environ if environ is None else environ)]


def another_node(world: World, environ: Environment | None = None) -> str | None:
    """The name of a node of this step other than ours; None when SLURM does not tell, or there is none."""
    environ = os.environ if environ is None else environ
    hosts = expand_hostlist(environ.get("SLURM_STEP_NODELIST", ""))
    return next((host for host in hosts if host and host != world.node), None)


# --- parsers: one launcher each ---------------------------------------------------------------------------------


def _horovod(environ: Environment) -> World:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    rank, size, local_rank, local_size, cross_rank, cross_size = (_number(environ, f"HOROVOD_{name}") for name in names)
    node = environ.get("HOROVOD_HOSTNAME") or _hostname(environ)
    launcher = environ.get("HVDTRAIN_LAUNCHER", "gloo")
    return World(rank, size, local_rank, local_size, cross_rank, cross_size, node, "cpu", launcher)


def _open_mpi(environ: Environment) -> World:
    rank, size = _number(environ, "OMPI_COMM_WORLD_RANK"), _number(environ, "OMPI_COMM_WORLD_SIZE")
    local_rank = _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK")
    local_size = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    # Open MPI tells neither the node's index nor the other nodes' sizes. mpirun fills nodes evenly unless told
    # otherwise; Horovod finds the exact cross communicator itself, and the join before training checks the layout.
    cross_size = -(-size // max(1, local_size))
    cross_rank = min(rank // max(1, local_size), cross_size - 1)
    return World(rank, size, local_rank, local_size, cross_rank, cross_size, _hostname(environ), "cpu", "mpirun")


def _another_mpi(environ: Environment) -> World:
    name, size = _size_by_another_mpi(environ)
    raise UserError(
        f"this process is one of {size} that were started by an mpirun that is not Open MPI's ({name}={size}): it does not tell "
        "them their places, so each would train alone and write the records of all. Start them with srun, Open MPI's mpirun, or "
        "python -m hvdtrain.launch --launcher local   (or export HVDTRAIN_LAUNCHER=none to train alone)"
    )


def _size_by_another_mpi(environ: Environment) -> tuple[str, int]:
    """The variable by which MPICH, Intel MPI or MVAPICH tells the size of a world, and that size; 0 without any."""
    for name in ("PMI_SIZE", "MV2_COMM_WORLD_SIZE"):
        if (value := environ.get(name, "")).isdecimal():
            return name, int(value)
    return "", 0


def _by_another_mpi(environ: Environment) -> bool:
    _, size = _size_by_another_mpi(environ)
    if size < 2 or environ.get("HVDTRAIN_LAUNCHER") == "none":
        return False
    # srun --mpi=pmi2 sets PMI_SIZE too. In an allocation Hydra, which alone sets MPI_LOCALNRANKS, starts one daemon on each node by
    # srun, and its ranks inherit the daemon's place.
    return not _in_slurm_step(environ) or ("MPI_LOCALNRANKS" in environ and str(size) != _tasks_of_step(environ))


def _tasks_of_step(environ: Environment) -> str:
    return environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS", "")


def _slurm(environ: Environment) -> World:
    rank = _number(environ, "SLURM_PROCID")
    size = _number(environ, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS")
    local_rank, node_index = _number(environ, "SLURM_LOCALID"), _number(environ, "SLURM_NODEID")
    counts = tasks_per_node(_text(environ, "SLURM_STEP_TASKS_PER_NODE"))
    if sum(counts) != size or node_index >= len(counts):
        raise UserError(
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']} describes {sum(counts)} tasks on "
            f"{len(counts)} nodes, but this is task {rank} of {size} on node {node_index}: were SLURM_ variables exported by hand?"
        )
    with_this_rank = [index for index, count in enumerate(counts) if count > local_rank]
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=counts[node_index],
        cross_rank=with_this_rank.index(node_index) if node_index in with_this_rank else -1,
        cross_size=len(with_this_rank),
        node=environ.get("SLURMD_NODENAME") or _hostname(environ),
        device="cpu",
        launcher="pmix" if "PMIX_RANK" in environ else "gloo",
    )


def _pmix(environ: Environment) -> World:
    raise UserError(
        f"this process was started under PMIx (PMIX_RANK={environ['PMIX_RANK']}) by something that is neither SLURM nor "
        "Open MPI, and the size of its world is not in the environment. Start it with srun --mpi=pmix or mpirun"
    )


def _in_slurm_step(environ: Environment) -> bool:
    # The batch script itself has SLURM_PROCID=0 too; only a step has its own task count.
    return "SLURM_PROCID" in environ and "SLURM_STEP_TASKS_PER_NODE" in environ and "SLURM_STEP_ID" in environ


PARSERS: Mapping[str, tuple[Callable[[Environment], bool], Callable[[Environment], World]]] = {
    # Set by our own local starter, or by hand; more particular than the allocation around it.
    "horovod": (lambda environ: "HOROVOD_RANK" in environ, _horovod),
    "open mpi": (lambda environ: "OMPI_COMM_WORLD_RANK" in environ, _open_mpi),
    "another mpi": (_by_another_mpi, _another_mpi),
    "slurm": (_in_slurm_step, _slurm),
    "pmix": (lambda environ: "PMIX_RANK" in environ, _pmix),
}


def _tasks_of_allocation(environ: Environment) -> int:
    if "SLURM_JOB_ID" not in environ or _in_slurm_step(environ):
        return 1
    return _number(environ, "SLURM_NTASKS") if environ.get("SLURM_NTASKS") else 1


# --- reading values ---------------------------------------------------------------------------------------------


def tasks_per_node(text: str) -> list[int]:
    """Expand SLURM's compressed list: "2(x3),1" is [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise UserError(f'"{text}" is not a list of tasks per node such as "4(x2),3"')
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hostlist(text: str) -> list[str]:
    """Expand SLURM's host list: "v100-[1-2,07],login" is ["v100-1", "v100-2", "v100-07", "login"]."""
    hosts: list[str] = []
    if re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]*\])*", text) is None:
        raise UserError(f'"{text}" is not a host list such as "node[1-4,7]": a bracket has no partner')
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        hosts += _expand_brackets(part.strip())
    return hosts


def _expand_brackets(pattern: str) -> Sequence[str]:
    match = re.search(r"\[([^\]]*)\]", pattern)
    if match is None:
        return [pattern]
    numbers: list[str] = []
    for item in match[1].split(","):
        first, _, last = item.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or int(last or first) < int(first):
            raise UserError(f'"{pattern}" is not a host list such as "node[1-4,7]"')
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [before + number + rest for number in numbers for rest in _expand_brackets(after)]


def _text(environ: Environment, name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise UserError(
            f"{name} is not set, though other variables of the same launcher are; start ranks through one launcher only"
        )
    return value


def _number(environ: Environment, name: str) -> int:
    value = _text(environ, name)
    if not (value.isascii() and value.isdigit()):
        raise UserError(f"{name}={value} is not a whole number")
    return int(value)


def _hostname(environ: Environment) -> str:
    return environ.get("SLURMD_NODENAME") or socket.gethostname()
