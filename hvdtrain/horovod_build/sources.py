"""Which of Horovod's and Gloo's files are compiled, and which of them together."""

from __future__ import annotations


def _names(text: str) -> list[str]:
    return text.split()


# Files are compiled in groups, as if they were one: most of a file's time goes into the same headers (Eigen and boost
# through global_state.h, the frameworks' own), so that twenty files together take little longer than five apart.
# Two groups of about the same length for the core, so that two cores finish together.
CORE = _names("""
operations process_set message parameter_manager response_cache stall_inspector tensor_queue controller
utils/env_parser common
""")
OPERATIONS = _names("""
ops/collective_operations ops/operation_manager ops/gloo_operations gloo/gloo_context gloo/gloo_controller
gloo/http_store gloo/memory_store fusion_buffer_manager group_table half logging thread_pool timeline
""")
MPI = _names("mpi/mpi_context mpi/mpi_controller ops/mpi_operations ops/adasum/adasum_mpi ops/adasum_mpi_operations")
TUNER = _names("optim/bayesian_optimization optim/gaussian_process")
CUDA = _names("ops/cuda_operations ops/gpu_operations nvtx_op_range")
CUDA_MPI = _names("ops/mpi_gpu_operations")
NCCL = _names("ops/nccl_operations")
NCCL_MPI = _names("ops/adasum_gpu_operations")
# Only what Horovod calls; Gloo's other collectives, stores and transports are left out.
GLOO = _names("""
algorithm allgather allgatherv alltoall alltoallv barrier broadcast context gather gatherv types
common/logging common/linux rendezvous/context rendezvous/prefix_store rendezvous/store
transport/address transport/buffer transport/device transport/context transport/unbound_buffer transport/pair
transport/tcp/address transport/tcp/buffer transport/tcp/context transport/tcp/device transport/tcp/error
transport/tcp/loop transport/tcp/socket transport/tcp/unbound_buffer transport/tcp/pair
""")
GLOO_MPI = _names("mpi/context")
GLOO_ALONE = _names("allreduce")  # names a type like one in the headers of the others
TORCH = _names("mpi_ops_v2 adapter_v2 cuda_util handle_manager ready_event")
BOOST = _names("""
assert config core detail iterator lockfree mpl parameter predef preprocessor static_assert type_traits utility
""")


def tables() -> dict[str, list[str]]:
    """All tables by name, for the recipe's fingerprint."""
    return {name: value for name, value in sorted(globals().items()) if name.isupper()}
