"""Which launcher a job on SLURM takes, and why. Looks at nothing but Horovod's build and `srun --mpi=list`."""

from __future__ import annotations

from collections.abc import Sequence

from hvdtrain.horovod_build import check
from hvdtrain.site import commands
from hvdtrain.site.detect import mpi_types


def choose(wanted: str) -> tuple[str, str]:
    """The launcher and the reason for it; a launcher that was asked for by name is taken as it is."""
    if wanted != "auto":
        return wanted, "as asked for"
    try:
        types = mpi_types()
    except commands.SlurmError as error:
        return "gloo", f"srun --mpi=list does not answer ({str(error).splitlines()[-1].strip()})"
    build = check.installed()
    return decide(types, None if build is None else build.mpi, build is not None)


def decide(types: Sequence[str], mpi: str | None, known: bool = True) -> tuple[str, str]:
    """From what `srun --mpi=list` offers and the MPI that Horovod was built with.

    >>> decide(["none", "pmix_v4"], "Open MPI 5.0.11")[0], decide(["none", "pmi2"], "Open MPI 5.0.11")[0]
    ('pmix', 'gloo')
    """
    pmix = [name for name in types if name.startswith("pmix")]
    if not known:
        return "gloo", "no Horovod of hvdtrain is installed here to tell whether it has MPI; plain srun always works"
    if mpi is None:
        return "gloo", "Horovod was built without MPI"
    if not pmix:
        offered = ", ".join(types) or "nothing"
        return "gloo", f"Horovod has {mpi}, but srun --mpi=list offers no pmix ({offered})"
    return "pmix", f"Horovod has {mpi}, and srun --mpi=list offers {pmix[-1]}; MPI is the faster of the two"
