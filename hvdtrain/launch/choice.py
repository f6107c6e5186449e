"""Which launcher a job on SLURM takes, and why. Looks at nothing but Horovod's build, `srun --mpi=list` and this host's network.

Over Ethernet both reach the limit of the link, and Gloo starts a second sooner; within a node MPI is the faster of the two
(docs/performance.md, Allreduce).
"""

from __future__ import annotations

from collections.abc import Sequence

from hvdtrain import machine
from hvdtrain.horovod_build import check
from hvdtrain.site import commands
from hvdtrain.site.detect import mpi_types


def choose(wanted: str, several_nodes: bool) -> tuple[str, str]:
    """The launcher and the reason for it; a launcher that was asked for by name is taken as it is.

    Args:
        several_nodes: ranks of one job are on more than one node.
    """
    if wanted != "auto":
        return wanted, "as asked for"
    try:
        types = mpi_types()
    except commands.SlurmError as error:
        return "gloo", f"srun --mpi=list does not answer ({str(error).splitlines()[-1].strip()})"
    build = check.installed()
    return decide(types, build, several_nodes and not machine.infiniband())


def decide(types: Sequence[str], build: check.BuildInfo | None, ethernet: bool) -> tuple[str, str]:
    """From what `srun --mpi=list` offers, Horovod's build, and whether ranks meet over nothing faster than Ethernet."""
    pmix = [name for name in types if name.startswith("pmix")]
    if build is None:
        return (
            "gloo",
            "no Horovod of hvdtrain is installed here to tell whether it has MPI; srun --mpi=none always works",
        )
    if build.mpi is None:
        return "gloo", "Horovod was built without MPI"
    if not build.mpi.startswith("Open MPI"):
        # MPICH and its relatives speak PMI of their own: without it each rank is a world of one.
        return "gloo", f"Horovod has {build.mpi}, which SLURM's PMIx may not start"
    if not pmix:
        offered = ", ".join(types) or "nothing"
        return "gloo", f"Horovod has {build.mpi}, but srun --mpi=list offers no pmix ({offered})"
    if ethernet and build.nccl is None:
        return "gloo", "ranks on several nodes without InfiniBand, where Gloo is as fast and starts sooner"
    return "pmix", f"Horovod has {build.mpi}, and srun --mpi=list offers {pmix[-1]}; MPI is the faster of the two"
