"""How Horovod and Gloo wait: asleep, so that a rank that waits leaves its cores to those it waits for."""

from __future__ import annotations

from hvdtrain.horovod_build.edit import Edit
from hvdtrain.horovod_build.mpi_waits import MPI_WAITS


def _halving(operation: str) -> Edit:
    """How Gloo's ranks agree on what to send."""
    before = "  opts.setOutput(bitvector.data(), count);\n"
    after = f"  void (*func)(void*, const void*, const void*, size_t) = &Bit{operation}<long long>;\n"
    return Edit(
        path="horovod/common/gloo/gloo_controller.cc",
        old=before + after,
        new=before + "  opts.setAlgorithm(gloo::AllreduceOptions::Algorithm::BCUBE);\n" + after,
        why="A few words to all ranks: halving and doubling takes 2 log2(n) messages one after the other, a ring 2 (n - 1).",
    )


WAITS: tuple[Edit, ...] = (
    Edit(
        path="horovod/torch/mpi_ops_v2.cc",
        old="""  while (true) {
    if (handle_manager.PollHandle(handle)) break;
    {
      py::gil_scoped_release release_python_gil;
      std::this_thread::yield();
    }
  }
""",
        new="""  {
    py::gil_scoped_release release_python_gil;
    handle_manager.Wait(handle);
  }
""",
        why=(
            "Waiting for a result, each rank keeps a core fully busy for as long as it takes, and takes it from the other "
            "ranks and from the threads that would bring the result about: with fewer cores than ranks steps took up to "
            "four times as long. Now the thread that brings the result wakes the one that waits for it."
        ),
        feature="waits_asleep",
    ),
    Edit(
        path="horovod/torch/handle_manager.h",
        old="  bool PollHandle(int handle);\n",
        new="  bool PollHandle(int handle);\n  void Wait(int handle);\n",
        why="Part of the wait for a result above.",
    ),
    Edit(
        path="horovod/torch/handle_manager.h",
        old="  std::mutex mutex_;\n",
        new="  std::mutex mutex_;\n  std::condition_variable done_;\n",
        why="Part of the wait for a result above.",
    ),
    Edit(
        path="horovod/torch/handle_manager.h",
        old="#include <memory>\n#include <mutex>\n",
        new="#include <condition_variable>\n#include <memory>\n#include <mutex>\n",
        why="Part of the wait for a result above.",
    ),
    Edit(
        path="horovod/torch/handle_manager.cc",
        old="""  results_[handle] = std::make_shared<Status>(status);
}
""",
        new="""  results_[handle] = std::make_shared<Status>(status);
  done_.notify_all();
}

void HandleManager::Wait(int handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] {
    auto found = results_.find(handle);
    if (found == results_.end()) {
      throw std::invalid_argument("Handle " + std::to_string(handle) +
                                  " was not created or has been cleared.");
    }
    return found->second != nullptr;
  });
}
""",
        why="Part of the wait for a result above.",
    ),
    Edit(
        path="horovod/common/tensor_queue.h",
        old="  void RemoveJoinTensor();\n",
        new="  void RemoveJoinTensor();\n\n  void WaitForTensor(std::chrono::steady_clock::time_point until);\n",
        why="Part of the wait for work below.",
    ),
    Edit(
        path="horovod/common/tensor_queue.h",
        old="  mutable std::mutex mutex_;\n",
        new="  mutable std::mutex mutex_;\n\n  std::condition_variable added_;\n",
        why="Part of the wait for work below.",
    ),
    Edit(
        path="horovod/common/tensor_queue.h",
        old="#include <mutex>\n#include <queue>\n",
        new="#include <chrono>\n#include <condition_variable>\n#include <mutex>\n#include <queue>\n",
        why="Part of the wait for work below.",
    ),
    Edit(
        path="horovod/common/tensor_queue.cc",
        old="""  message_queue_.push(std::move(message));
  return Status::OK();
}

Status TensorQueue::AddToTensorQueueMulti(""",
        new="""  message_queue_.push(std::move(message));
  added_.notify_one();
  return Status::OK();
}

void TensorQueue::WaitForTensor(std::chrono::steady_clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  added_.wait_until(lock, until, [&] { return !tensor_table_.empty(); });
}

Status TensorQueue::AddToTensorQueueMulti(""",
        why="Part of the wait for work below.",
    ),
    Edit(
        path="horovod/common/tensor_queue.cc",
        old="""    message_queue_.push(std::move(messages[i]));
  }
  return Status::OK();
""",
        new="""    message_queue_.push(std::move(messages[i]));
  }
  added_.notify_one();
  return Status::OK();
""",
        why="Part of the wait for work below.",
    ),
    Edit(
        path="horovod/common/operations.cc",
        old="""    std::this_thread::sleep_for(sleep_duration);
  }
  state.last_cycle_start = std::chrono::steady_clock::now();
""",
        new="""    std::this_thread::sleep_for(sleep_duration);
  }
  if (!state.dynamic_process_sets && state.process_set_table.Ids().size() == 1) {
    state.process_set_table.Get(0).tensor_queue.WaitForTensor(
        state.last_cycle_start + std::chrono::milliseconds(5));
  }
  state.last_cycle_start = std::chrono::steady_clock::now();
""",
        why=(
            "In every cycle, a thousand times a second, all ranks exchange a message, also while they only compute and none has "
            "anything to send. With nothing on its way from this rank a cycle now begins when there is something, and after "
            "five milliseconds at the latest, since another rank may shut down or wait to be told of an error."
        ),
        feature="idle_cycles",
    ),
    Edit(
        path="third_party/gloo/gloo/transport/tcp/pair.cc",
        old="""  if (!lock) {
    return;
  }

  // State must be <= CONNECTED.
""",
        new="""  if (!lock) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    return;
  }

  // State must be <= CONNECTED.
""",
        why=(
            "A thread that sends holds the lock of its pair while the kernel copies. Meanwhile the thread that receives asked "
            "without end whether there is something to receive (there is) and whether it may (it may not): on one core it used "
            "up its time slice before the sender could go on, a third of all time."
        ),
        feature="gloo_waits_asleep",
    ),
    Edit(
        path="third_party/gloo/gloo/transport/tcp/pair.cc",
        old="#include <array>\n#include <algorithm>\n",
        new="#include <array>\n#include <algorithm>\n#include <chrono>\n#include <thread>\n",
        why="What the sleep above needs.",
    ),
    *(_halving(operation) for operation in ("And", "Or")),
    *MPI_WAITS,
)
