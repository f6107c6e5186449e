"""Ranks of MPI that have to share cores: those that wait must let the others work."""

from __future__ import annotations

import os

from hvdtrain.world import World

#: Open MPI's own setting (`ompi_info --param mpi all --level 5`). mpirun sets it where it starts more ranks than there are
#: slots; under srun nobody does.
YIELD_VARIABLE = "OMPI_MCA_mpi_yield_when_idle"


def yield_when_idle(world: World, cores: int) -> None:
    """Before MPI_Init: waiting gives the core away when this rank has none to spare. A setting of the user's own stays.

    Horovod's thread asks MPI without a pause while it waits for other ranks. With one core it takes that from its own
    rank's computation, with fewer cores than ranks on the node from the ranks that it waits for.

    Args:
        cores: that this process may run on.
    """
    if cores < max(2, world.local_size):
        os.environ.setdefault(YIELD_VARIABLE, "1")
