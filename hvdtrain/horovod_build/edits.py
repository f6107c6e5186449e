"""Every change made to Horovod's sources, each with its reason.

An edit replaces a piece of text that must be there exactly once. A different Horovod, or an edit that was made already,
is an error and never a silent no-op.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.horovod_build.errors import BuildError

TOKEN_VARIABLE = "HVDTRAIN_RENDEZVOUS_TOKEN"


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which must occur exactly once in ``path``, by ``new``. ``feature`` names what a user gains."""

    path: str
    old: str
    new: str
    why: str
    feature: str | None = None


_CONTROLLER = "horovod/common/mpi/mpi_controller.cc"
#: What the controller's thread waits in, as it stands there.
_MPI_CALLS = (
    """MPI_Allreduce(MPI_IN_PLACE, bitvector.data(), count,
                               MPI_LONG_LONG_INT, MPI_BAND, mpi_ctx_.mpi_comm);
""",
    """MPI_Allreduce(MPI_IN_PLACE, bitvector.data(), count,
                               MPI_LONG_LONG_INT, MPI_BOR, mpi_ctx_.mpi_comm);
""",
    """MPI_Gather(MPI_IN_PLACE, 1, MPI_INT, recvcounts, 1, MPI_INT, RANK_ZERO,
             mpi_ctx_.mpi_comm);
""",
    """MPI_Gatherv(nullptr, 0, MPI_BYTE, buffer, recvcounts, displcmnts, MPI_BYTE,
              RANK_ZERO, mpi_ctx_.mpi_comm);
""",
    """MPI_Bcast(&encoded_response_length, 1, MPI_INT, RANK_ZERO, mpi_ctx_.mpi_comm);
""",
    """MPI_Bcast((void*)encoded_response.c_str(), encoded_response_length, MPI_BYTE,
            RANK_ZERO, mpi_ctx_.mpi_comm);
""",
    """MPI_Gather(&encoded_message_length, 1, MPI_INT, nullptr, 1,
                            MPI_INT, RANK_ZERO, mpi_ctx_.mpi_comm);
""",
    """MPI_Gatherv((void*)encoded_message.c_str(), encoded_message_length,
                         MPI_BYTE, nullptr, nullptr, nullptr, MPI_BYTE,
                         RANK_ZERO, mpi_ctx_.mpi_comm);
""",
    """MPI_Bcast(&msg_length, 1, MPI_INT, RANK_ZERO, mpi_ctx_.mpi_comm);
""",
    """MPI_Bcast(buffer, msg_length, MPI_BYTE, RANK_ZERO, mpi_ctx_.mpi_comm);
""",
    """MPI_Barrier(comm);
""",
)

_OPERATIONS = "horovod/common/ops/mpi_operations.cc"
#: What moves data.
_MPI_DATA_CALLS = (
    """MPI_Allreduce(sendbuf, buffer_data, (int)num_elements,
                    mpi_context.GetMPIDataType(first_entry.tensor),
                    mpiOp,
                    mpi_context.GetMPICommunicator(Communicator::GLOBAL));
""",
    """MPI_Allgatherv(sendbuf != nullptr ? sendbuf : MPI_IN_PLACE,
                          (int) total_num_elements,
                          dtype,
                          buffer_data,
                          recvcounts,
                          displcmnts,
                          dtype,
                          mpi_context.GetMPICommunicator(Communicator::GLOBAL));
""",
    """MPI_Bcast(data_ptr,
                     (int) e.tensor->shape().num_elements(),
                     mpi_context.GetMPIDataType(e.tensor->dtype()),
                     e.root_rank,
                     mpi_context.GetMPICommunicator(Communicator::GLOBAL));
""",
    """MPI_Alltoallv(sendbuf, sendcounts.data(), sdispls.data(),
                         mpi_context.GetMPIDataType(e.tensor->dtype()),
                         buffer_data, recvcounts.data(), rdispls.data(),
                         mpi_context.GetMPIDataType(e.output->dtype()),
                         mpi_context.GetMPICommunicator(Communicator::GLOBAL));
""",
)


def _asleep(call: str, busy: str) -> str:
    """The same operation without blocking: MPI_Bcast(..., comm) is MPI_Ibcast(..., comm, request)."""
    name, _, arguments = call.rstrip().removesuffix(");").partition("(")
    started = f"MPI_I{name.removeprefix('MPI_').lower()}({arguments}, request)"
    return f"WaitAsleep({busy}, [&](MPI_Request* request) {{\n    return {started};\n  }});\n"


def _mpi_waits() -> list[Edit]:
    """All or none: an operation that does not block never meets one that does."""
    why = "So that a rank that waits for the others sleeps; see WaitAsleep."
    messages = [Edit(_CONTROLLER, call, _asleep(call, "kBusyInMessages"), why) for call in _MPI_CALLS]
    data = [Edit(_OPERATIONS, call, _asleep(call, "kBusyInData"), why) for call in _MPI_DATA_CALLS]
    return [*messages, *data]


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
        path="horovod/common/gloo/http_store.h",
        old="""    url_prefix_ +=
        "http://" + server_ip + ":" + std::to_string(port) + "/" + scope + "/";
""",
        new=f"""    url_prefix_ += "http://" + server_ip + ":" + std::to_string(port) + "/";
    const char* token = std::getenv("{TOKEN_VARIABLE}");
    if (token != nullptr && *token != '\\0') {{
      url_prefix_ += std::string(token) + "/";
    }}
    url_prefix_ += scope + "/";
""",
        why=(
            "The rendezvous server answers whoever can reach its port. With a secret as the first path component, "
            "which only the ranks of one world are given, it can refuse everybody else."
        ),
        feature="rendezvous_token",
    ),
    Edit(
        path="horovod/common/gloo/http_store.h",
        old='#include "HTTPRequest.hpp"\n',
        new='#include <cstdlib>\n#include <string>\n\n#include "HTTPRequest.hpp"\n',
        why="std::getenv for the token.",
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
        path="horovod/torch/mpi_ops_v2.cc",
        old="""  while (true) {
    if (handle_manager.PollHandle(handle)) break;
    {
      py::gil_scoped_release release_python_gil;
      std::this_thread::yield();
""",
        new="""  const auto begun = std::chrono::steady_clock::now();
  while (true) {
    if (handle_manager.PollHandle(handle)) break;
    {
      py::gil_scoped_release release_python_gil;
      if (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(2)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
""",
        why=(
            "Waiting for a result, each rank keeps a core fully busy for as long as it takes, and takes it from the other "
            "ranks and from the threads that would bring the result about: with fewer cores than ranks steps took up to "
            "four times as long. Sleeping at once costs a wake-up in every short step instead. So it is busy for two "
            "milliseconds and asleep from then on (figures in docs/building-horovod.md)."
        ),
        feature="waits_asleep",
    ),
    Edit(
        path="horovod/common/mpi/mpi_context.h",
        old="#include <iostream>\n#include <memory>\n",
        new="#include <chrono>\n#include <iostream>\n#include <memory>\n#include <thread>\n",
        why="The wait below needs clocks and threads.",
    ),
    Edit(
        path="horovod/common/mpi/mpi_context.h",
        old="// Base class for managing MPI environment. Can be derived",
        new="""// Starts an operation that does not block, and waits for its end: busy at first, then asleep.
template <typename Start> int WaitAsleep(std::chrono::microseconds busy, Start start) {
  MPI_Request request;
  int code = start(&request);
  const auto begun = std::chrono::steady_clock::now();
  int done = 0;
  while (code == MPI_SUCCESS) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) break;
    if (std::chrono::steady_clock::now() - begun < busy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return code;
}
constexpr std::chrono::microseconds kBusyInMessages(100);
constexpr std::chrono::microseconds kBusyInData(2000);

// Base class for managing MPI environment. Can be derived""",
        why=(
            "MPI's blocking operations keep a core busy while they wait. Horovod's thread makes one in every cycle, and waits in "
            "it for the slowest rank: the time it burns is taken from the ranks' computing wherever cores are few, and several "
            "ranks on one core wait for one another for whole time slices."
        ),
        feature="mpi_waits_asleep",
    ),
    *_mpi_waits(),
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
)


def apply_edit(root: Path, edit: Edit) -> None:
    """Make one edit under ``root``. Raises BuildError unless the text is there exactly once."""
    path = root / edit.path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"cannot edit {edit.path}: {error.strerror}. Is this Horovod 0.28.1's source?") from error
    count = text.count(edit.old)
    if count != 1:
        first = edit.old.strip().splitlines()[0]
        raise BuildError(
            f"cannot edit {edit.path}: the text to replace is there {count} times instead of once ({first!r}). "
            "Is this the unchanged source of Horovod 0.28.1?"
        )
    path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


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
