"""The commands that start ranks, by name. Each turns the command of one rank into the command of a world."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.machine import find_mpirun

Command = list[str]


@dataclass(frozen=True)
class Request:
    """What to start: `ranks` times `command`, each with `cpus` cores.

    `nodes` is None inside an allocation that fixes it already (a batch script). `options` are further words for srun, and `pmix` is
    how SLURM calls its PMIx plugin.
    """

    ranks: int
    command: Sequence[str]
    cpus: int = 1
    nodes: int | None = None
    options: Sequence[str] = ()
    pmix: str = "pmix"


class Launcher(ABC):
    """Base of all launchers. `name` is what --launcher takes and what World.launcher says.

    `stop` is the signal that it passes on and that makes ranks write a checkpoint; None: any that asks it to end has this effect.
    Where it is SIGUSR1, SIGTERM ends the ranks at once.
    """

    name: str
    about: str
    stop: signal.Signals | None = None

    @abstractmethod
    def command(self, request: Request) -> Command:
        """The argument vector that starts the world."""


class Alone(Launcher):
    """One rank, no launcher."""

    name, about, stop = "none", "one rank, without Horovod", signal.SIGTERM

    def command(self, request: Request) -> Command:
        return list(request.command)


class Local(Launcher):
    """Our own starter: ranks on this machine under Gloo."""

    name, about = "local", "ranks on this machine, Gloo"

    def command(self, request: Request) -> Command:
        starter = [sys.executable, "-m", "hvdtrain.launch.local", "-n", str(request.ranks), "--cpus", str(request.cpus)]
        return [*starter, "--", *request.command]


class Mpirun(Launcher):
    """Open MPI's mpirun: ranks on this machine, or on the nodes of an allocation that it knows."""

    name, about = "mpirun", "Open MPI's mpirun"
    # At SIGTERM, SIGINT and SIGHUP it kills its ranks, after a moment at most.
    stop = signal.SIGUSR1

    def command(self, request: Request) -> Command:
        mpirun = [find_mpirun() or "mpirun"]
        if os.geteuid() == 0:
            mpirun.append("--allow-run-as-root")
        # More ranks than cores is the user's decision, said by submit; binding would put several on one core.
        options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        return [*mpirun, "-n", str(request.ranks), *options, *request.command]


#: Where mpirun is told of nodes besides by SLURM: by PBS, LSF and Grid Engine, and by whoever set it up.
_HOST_FILES = (
    "PBS_NODEFILE",
    "LSB_DJOB_HOSTFILE",
    "PE_HOSTFILE",
    "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_orte_default_hostfile",
)


def knows_other_nodes(environ: Mapping[str, str]) -> bool:
    """Whether mpirun, started with `environ`, may put ranks on other nodes than this one."""
    if environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        return True
    for name in _HOST_FILES:
        if path := environ.get(name):
            try:
                lines = Path(path).read_text(encoding="utf-8").splitlines()
            except OSError:
                return True  # mpirun may know better where it is
            if len({line.split()[0] for line in lines if line.strip()}) > 1:
                return True
    return False


class Gloo(Launcher):
    """srun without MPI, whatever SLURM has by default: ranks that find PMIx take themselves for MPI's. Rank 0 hosts."""

    name, about = "gloo", "srun --mpi=none, our rendezvous on rank 0"
    # At SIGTERM srun ends its ranks; at the first SIGINT it only says how to abort.
    stop = signal.SIGUSR1

    def command(self, request: Request) -> Command:
        return [*_srun(request), "--mpi=none", *request.command]


class Pmix(Launcher):
    """srun with PMIx; Horovod uses MPI."""

    name, about, stop = "pmix", "srun --mpi=pmix, Horovod with MPI", signal.SIGUSR1

    def command(self, request: Request) -> Command:
        return [*_srun(request), f"--mpi={request.pmix}", *request.command]


def _srun(request: Request) -> Command:
    # What sbatch was told to export (--export=NONE, SBATCH_EXPORT of a site) goes on to srun, whose ranks would not know their run
    # folder and record nothing. The script's own environment is what they need.
    # --cpus-per-task given to sbatch is not inherited by srun since Slurm 22.05.
    options = ["--export=ALL", "--kill-on-bad-exit=1", f"--cpus-per-task={request.cpus}"]
    if request.nodes is None:
        options.append(f"--ntasks={request.ranks}")
    else:
        if request.ranks % request.nodes:
            raise UserError(f"{request.ranks} ranks do not divide evenly over {request.nodes} nodes")
        # Only this pair fixes the layout: --ntasks alone may put 3 + 1 on two nodes.
        options += [f"--nodes={request.nodes}", f"--ntasks-per-node={request.ranks // request.nodes}"]
    return ["srun", *options, *request.options]


REGISTRY: Mapping[str, Launcher] = {each.name: each for each in (Alone(), Local(), Mpirun(), Gloo(), Pmix())}
