"""Sums of much data under MPI: in pieces around a ring.

What Open MPI takes for a sum in place that does not block is a tree, in which rank 0 receives all of the data, adds, and sends
all of it back: half the bandwidth of a ring with two ranks, less with more.
"""

from __future__ import annotations

from hvdtrain.horovod_build.edit import Edit

#: Of a message: what arrived is added while the next one is on its way.
SEGMENT_BYTES = 1 << 20

_OPERATIONS = "horovod/common/ops/mpi_operations.cc"
_CALL = """MPI_Allreduce(sendbuf, buffer_data, (int)num_elements,
                    mpi_context.GetMPIDataType(first_entry.tensor),
                    mpiOp,
                    mpi_context.GetMPICommunicator(Communicator::GLOBAL));
"""

MPI_RING: tuple[Edit, ...] = (
    Edit(
        path=_OPERATIONS,
        old="namespace horovod {\nnamespace common {\n",
        new="""#include <algorithm>
#include <cstring>

namespace horovod {
namespace common {

namespace {

"""
        + f"constexpr int64_t kSegment = {SEGMENT_BYTES};\n"
        + """// Bytes of a rank's piece below which fewer messages are faster than a ring.
constexpr int64_t kSmallestPiece = 32 << 10;
constexpr int kRingTag = 1;

// `op` over all ranks, with the same result on each to the last bit. In n - 1 steps each of n pieces goes around and is
// added to; in n - 1 more the complete ones go around (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002).
int RingAllreduce(const void* input, void* output, int64_t count,
                  MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  int rank, size, width;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Type_size(type, &width);
  if (size < 2 || count * width / size < kSmallestPiece) {
    return WaitAsleep(kBusyInData, [&](MPI_Request* request) {
      return MPI_Iallreduce(input, output, (int)count, type, op, comm, request);
    });
  }
  if (input != MPI_IN_PLACE) {
    std::memcpy(output, input, count * width);
  }
  char* data = static_cast<char*>(output);
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  const int64_t segment = kSegment / width;
  const auto begin = [&](int piece) { return count * piece / size; };
  // Only Horovod's own thread is here.
  static std::vector<char> arrived;
  arrived.resize((count / size + 1) * width);
  std::vector<MPI_Request> takes, gives;
  for (int step = 0; step < 2 * (size - 1); ++step) {
    const bool adds = step < size - 1;
    const int give = (rank - step + 2 * size) % size, take = (give + size - 1) % size;
    char* const mine = data + begin(take) * width;
    char* const into = adds ? arrived.data() : mine;
    const int64_t taken = begin(take + 1) - begin(take);
    const int64_t given = begin(give + 1) - begin(give);
    takes.assign((taken + segment - 1) / segment, MPI_REQUEST_NULL);
    gives.assign((given + segment - 1) / segment, MPI_REQUEST_NULL);
    int code = MPI_SUCCESS;
    for (int64_t i = 0; i < (int64_t)takes.size() && code == MPI_SUCCESS; ++i) {
      code = MPI_Irecv(into + i * segment * width, (int)std::min(segment, taken - i * segment),
                       type, left, kRingTag, comm, &takes[i]);
    }
    for (int64_t i = 0; i < (int64_t)gives.size() && code == MPI_SUCCESS; ++i) {
      code = MPI_Isend(data + (begin(give) + i * segment) * width,
                       (int)std::min(segment, given - i * segment),
                       type, right, kRingTag, comm, &gives[i]);
    }
    for (int64_t i = 0; i < (int64_t)takes.size() && code == MPI_SUCCESS; ++i) {
      code = WaitAsleep(kBusyInData, &takes[i]);
      if (adds && code == MPI_SUCCESS) {
        code = MPI_Reduce_local(into + i * segment * width, mine + i * segment * width,
                                (int)std::min(segment, taken - i * segment), type, op);
      }
    }
    for (auto& each : gives) {
      if (code == MPI_SUCCESS) {
        code = WaitAsleep(kBusyInData, &each);
      }
    }
    if (code != MPI_SUCCESS) {
      return code;
    }
  }
  return MPI_SUCCESS;
}

} // namespace
""",
        why=(
            "Each rank sends and receives 2 (n - 1) / n of the data, which is the least there is. Messages are waited for busily "
            "while data flow, and asleep when none came for 2 ms."
        ),
        feature="mpi_ring",
    ),
    Edit(
        path=_OPERATIONS,
        old=_CALL,
        new=_CALL.replace("MPI_Allreduce(", "RingAllreduce(").replace("(int)num_elements", "num_elements"),
        why="Part of the ring above; the piece is found by its number of elements, which is the same on every rank.",
    ),
)
