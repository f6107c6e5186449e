"""Every change made to Horovod's sources, each with its reason.

An edit replaces a piece of text that must be there exactly once. A different Horovod, or an edit that was made already,
is an error and never a silent no-op.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hvdtrain.horovod_build.edit import Edit, apply_edit
from hvdtrain.horovod_build.meeting import MEETING
from hvdtrain.horovod_build.mpi_ring import MPI_RING
from hvdtrain.horovod_build.waits import WAITS

EDITS: tuple[Edit, ...] = (
    Edit(
        path="horovod/common/gloo/gloo_controller.cc",
        old="  global_ranks_.reserve(size_);\n",
        new="  global_ranks_.resize(size_);\n",
        why=(
            "The allgather below fills the vector through data(), but reserve() leaves its size at 0, so that the "
            "stall inspector, which loops over the ranks, never sees one: under Gloo it neither warns nor stops."
        ),
        feature="stall_inspector",
    ),
    Edit(
        path="horovod/torch/adapter_v2.h",
        old="#include <torch/extension.h>\n#include <torch/torch.h>\n",
        new="#include <torch/types.h>\n",
        why=(
            "Only tensors are used here. The two headers bring in the whole C++ front end (layers, optimizers, data "
            "loaders), two thirds of the compile time."
        ),
    ),
    Edit(
        path="horovod/torch/mpi_ops_v2.cc",
        old="#include <torch/extension.h>\n#include <torch/torch.h>\n",
        new="#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n",
        why="As above; tensors, and their conversion from and to Python.",
    ),
    Edit(
        path="horovod/common/operations.cc",
        old="""    LOG(ERROR, horovod_global.global_controller->GetRank())
        << "Horovod background loop uncaught exception: " << ex.what();
""",
        new="""    LOG(INFO, horovod_global.global_controller->GetRank())
        << "Horovod background loop uncaught exception: " << ex.what();
""",
        why=(
            "When a rank dies, every other rank wrote this line before the one that says which rank died and why. The "
            "error still reaches Python as HorovodInternalError; HOROVOD_LOG_LEVEL=info shows the line."
        ),
    ),
    *MEETING,
    *MPI_RING,
    *WAITS,
)


def apply_all(root: Path, edits: tuple[Edit, ...] = EDITS) -> None:
    """Make every edit under ``root``, in order."""
    for edit in edits:
        apply_edit(root, edit)


def features(edits: tuple[Edit, ...] = EDITS) -> list[str]:
    """What the edited Horovod can do that the released one cannot, sorted."""
    return sorted({edit.feature for edit in edits if edit.feature is not None})


def fingerprint(edits: tuple[Edit, ...] = EDITS) -> str:
    """Changes whenever the outcome of an edit may change; not when only a reason is reworded."""
    digest = hashlib.sha256()
    for edit in edits:
        digest.update(repr((edit.path, edit.old, edit.new, edit.feature)).encode())
    return digest.hexdigest()[:16]
