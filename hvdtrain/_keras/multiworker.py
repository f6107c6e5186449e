"""`strategy="multiworker"`: the collectives of tf.distribute.MultiWorkerMirroredStrategy instead of Horovod's, to compare the two.

`fit` of Keras 3 fails under that strategy before the first step: it reduces batches and metrics that the strategy cannot reduce.
So everything here stays as it is with Horovod, each rank a model of its own, and the strategy does what it is compared for: in a
replica context it adds up the gradients of a step, all of them at once, as in a loop of one's own around `strategy.run`.

The ranks meet as for Horovod, tell each other where TensorFlow listens, and Horovod leaves: its thread would take time from what
it is compared with.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain import objects
from hvdtrain._keras.mirrored import TOO_LATE
from hvdtrain.errors import UserError, agreed
from hvdtrain.launch import network
from hvdtrain.launch.session import Session

#: Milliseconds without a sign of life after which TensorFlow breaks off all ranks: a day, for the watchdog of hvdtrain ends a world
#: whose ranks stand still and names them. TensorFlow's own 10 seconds may pass on a node that is busy or swaps.
_HEARTBEAT_TIMEOUT = 86_400_000


class MultiWorker:
    """Implements `tensorflow_ranks.Ranks`."""

    controller = "grpc"

    def __init__(self, session: Session) -> None:
        import horovod.tensorflow as hvd

        place = session.world
        # Not by Horovod's broadcast: with TensorFlow's first operation it would be too late to set up its collectives.
        session.start(hvd, lambda address: _mpi().bcast(address))
        host = network.own_address(place)
        members = session.exchange(f"{host}:{_free_port(host)}", lambda value: list(_mpi().allgather(value)))
        hvd.shutdown()
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": members}), task_type="worker", task_id=place.rank, rpc_layer="grpc"
        )
        self._rank, self._size = place.rank, place.size
        _leave_stalls_to_the_watchdog(place.size)
        try:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        except RuntimeError:
            raise agreed(UserError(TOO_LATE.format("multiworker"))) from None
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def _reduce(self, tensors: list[Any]) -> list[Any]:
        """Sums over all ranks, as one operation.

        Compiled once for each set of shapes, whoever asks: collectives are matched by the order in which they are compiled, and
        some ranks alone may compile a step anew.
        """
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if shapes not in self._compiled:
            self._compiled[shapes] = tf.function(
                lambda values: self._strategy.run(_add_up, args=(values,)), autograph=False, jit_compile=False
            )
        summed: list[Any] = self._compiled[shapes](tensors)
        return summed

    def sum(self, tensor: Any, name: str) -> Any:
        return self._reduce([tensor])[0]

    def average(self, grads: list[Any], names: list[str], control: Any, compression: str) -> tuple[list[Any], Any]:
        if compression != "none":
            raise UserError(
                f'compression="{compression}" needs strategy "horovod"; with "multiworker" only "none" is legal'
            )
        dense = [grad for grad in grads if not isinstance(grad, tf.IndexedSlices)]
        *summed, control = self._reduce([*dense, control])
        averages = iter(summed)
        return [
            self._average_sparse(grad) if isinstance(grad, tf.IndexedSlices) else next(averages) / self._size
            for grad in grads
        ], control

    def _average_sparse(self, grad: tf.IndexedSlices) -> tf.IndexedSlices:
        """Rows of all ranks, each divided by their number: what one rank has whose batch is the union."""
        values, indices = self._strategy.run(_collect, args=(grad.values / self._size, grad.indices))
        return tf.IndexedSlices(values, indices, grad.dense_shape)

    def add(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in self.sum(tf.constant(list(values), tf.float64), "sum").numpy()]

    def gather_objects(self, value: Any) -> list[Any]:
        own = pickle.dumps(value)
        lengths = np.zeros(self._size)
        lengths[self._rank] = len(own)
        lengths = np.asarray(self.add(lengths.tolist()), np.int64)
        parts = np.zeros((self._size, _room(int(lengths.max()))), np.uint8)
        parts[self._rank, : len(own)] = np.frombuffer(own, np.uint8)
        gathered = self._together(parts, "objects")
        return [pickle.loads(part[:length].tobytes()) for part, length in zip(gathered, lengths, strict=True)]

    def broadcast_object(self, value: Any, name: str) -> Any:
        return objects.broadcast(value, self._rank, self._of_rank_zero, name)

    def _of_rank_zero(self, array: np.ndarray, name: str) -> np.ndarray:
        given = array.view(np.uint8)
        parts = np.zeros(_room(len(given)), np.uint8)
        if self._rank == 0:
            parts[: len(given)] = given
        return self._together(parts, name)[: len(given)].view(array.dtype)

    def _together(self, parts: np.ndarray, name: str) -> np.ndarray:
        """Bytes of which each is zero on all ranks but one: sums of whole numbers, which are exact."""
        return np.asarray(self.sum(tf.constant(parts.view(np.int32)), name).numpy()).view(np.uint8)

    def broadcast(self, variables: Sequence[Any]) -> None:
        """As bytes: a sum would turn -0.0 into 0.0, and knows no strings of bits."""
        values = self.broadcast_object([variable.numpy() for variable in variables], "state")
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _room(length: int) -> int:
    """Bytes for `length` of them: whole numbers of 32 bits, and few different sizes, so that few functions are traced."""
    return max(4, 1 << (length - 1).bit_length())


def _add_up(values: list[Any]) -> Any:
    # Arguments of a graph lie on no device yet, and the strategy asks on which one the sum shall be.
    here = [tf.identity(value) for value in values]
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)


def _collect(values: Any, indices: Any) -> tuple[Any, Any]:
    context = tf.distribute.get_replica_context()
    here = tf.identity(values), tf.identity(indices)
    return context.all_gather(here[0], 0), context.all_gather(here[1], 0)


def _leave_stalls_to_the_watchdog(ranks: int) -> None:
    """What the strategy sets up if nobody has, but for its patience, which no public function of TensorFlow 2.21 changes."""
    try:
        from tensorflow.python.eager import context

        worker = context.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=ranks)
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader="/job:worker/replica:0/task:0",
            heartbeat_timeout_in_ms=_HEARTBEAT_TIMEOUT,
            coordinated_jobs=[worker],
        )
    except (ImportError, AttributeError, TypeError):
        return  # another TensorFlow: with its own patience


def _mpi() -> Any:
    """Where MPI brought the ranks together, it also tells them where to find each other."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UserError(f'strategy "multiworker" under MPI needs mpi4py ({error}): pip install mpi4py') from None
    return MPI.COMM_WORLD


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
