"""MPI's blocking operations keep a core busy while they wait: the same ones without blocking, and asleep in between."""

from __future__ import annotations

from hvdtrain.horovod_build.edit import Edit

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


MPI_WAITS: tuple[Edit, ...] = (
    Edit(
        path="horovod/common/mpi/mpi_context.h",
        old="#include <iostream>\n#include <memory>\n",
        new="#include <chrono>\n#include <iostream>\n#include <memory>\n#include <thread>\n",
        why="The wait below needs clocks and threads.",
    ),
    Edit(
        path="horovod/common/mpi/mpi_context.h",
        old="// Base class for managing MPI environment. Can be derived",
        new="""// Waits for the end of an operation that does not block: busy at first, then asleep.
inline int WaitAsleep(std::chrono::microseconds busy, MPI_Request* request) {
  const auto begun = std::chrono::steady_clock::now();
  int code = MPI_SUCCESS, done = 0;
  while (code == MPI_SUCCESS) {
    code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (done) break;
    if (std::chrono::steady_clock::now() - begun < busy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return code;
}

// Starts such an operation, and waits for its end.
template <typename Start> int WaitAsleep(std::chrono::microseconds busy, Start start) {
  MPI_Request request;
  const int code = start(&request);
  return code == MPI_SUCCESS ? WaitAsleep(busy, &request) : code;
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
)
