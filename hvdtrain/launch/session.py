"""One rank's part in one world: the checks before Horovod starts, the watchdog while it runs, the goodbye at the end.

Used by the framework faces, in this order:

    session = Session(world, framework="torch")
    session.prepare()                      # every check, in Python; sets HOROVOD_* for Gloo
    session.start(hvd)                     # from here on a failure of Gloo would be an abort that nothing can catch
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from hvdtrain import record, stop
from hvdtrain.errors import UserError, without_traceback
from hvdtrain.launch import network
from hvdtrain.launch.control import GONE_SECONDS, Supervisor
from hvdtrain.launch.preflight import (
    DEFAULT_STALL_TIMEOUT,
    FUSION_BYTES,
    OPEN_MPI,
    STALL_TIMEOUT_VARIABLE,
    LaunchError,
    connect_timeout,
    gloo_variables,
    interface_towards,
    meet,
    meeting_file,
    own_problem,
    publish,
    seconds_from,
)
from hvdtrain.launch.rendezvous import Address, Client, Server, exchange
from hvdtrain.launch.watchdog import INTERVAL_SECONDS, Watchdog, leave, say, wait_until
from hvdtrain.world import World, another_node

#: How long the others wait for rank 0 to say why all end. It may be the slowest; one that is gone keeps nobody.
_SPEAK_SECONDS = 10.0


class Session:
    """This rank's connection to its world. A world of one needs none: every method then does nothing.

    Args:
        world: from `world.detect()`.
        framework: "torch" or "tensorflow", whose Horovod is about to be imported.
        strategy: what averages gradients.
    """

    def __init__(self, world: World, framework: str, strategy: str = "horovod") -> None:
        self.world = world
        self._framework = framework
        self._strategy = strategy
        self._connect_timeout = connect_timeout()
        self._stall_timeout = seconds_from(STALL_TIMEOUT_VARIABLE, DEFAULT_STALL_TIMEOUT)
        self._supervisor: Supervisor | None = None
        self._server: Server | None = None
        self._client: Client | None = None
        self._watchdog: Watchdog | None = None
        self._file: Path | None = None

    # --- before hvd.init() ---

    def prepare(self) -> None:
        """Check everything that would make Horovod abort, and agree on it with every rank.

        Raises:
            LaunchError: what is wrong and what to do.
        """
        if self.world.size == 1:
            stop.install()
            sys.excepthook = without_traceback(sys.excepthook)
            return
        # Horovod's hierarchical operations hang or abort under Gloo, whoever asked for them.
        for name in [name for name in os.environ if name.startswith("HOROVOD_HIERARCHICAL_")]:
            del os.environ[name]
        # In whole seconds; 0 would end Gloo at once.
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(1, math.ceil(self._connect_timeout))))
        if self.world.launcher in ("local", "gloo"):
            if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
                self._prepare_gloo()
                return
        else:
            os.environ.update(HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="mpi")
            for name, value in OPEN_MPI.items():
                os.environ.setdefault(name, value)
        if problem := own_problem(self.world, self._framework, self._strategy):
            raise LaunchError(problem, agreed=True)

    def _prepare_gloo(self) -> None:
        problem, host = own_problem(self.world, self._framework, self._strategy), "127.0.0.1"
        self._file = meeting_file()
        if self.world.rank == 0:
            unreachable = ""
            try:
                host = interface_towards(self._peer_address()).address
            except UserError as error:
                unreachable = str(error)
            self._serve(host)
            assert self._server is not None
            # Without a usable address the others cannot ask rank 0: the file itself tells them.
            address = Address(host, 0, "", unreachable) if unreachable else self._server.address
            publish(address, self._file, self.world.node)
            if unreachable:
                raise LaunchError(unreachable, agreed=True)
        self._client = meet(self.world, self._framework, self._file, problem, self._connect_timeout)
        address = self._client.address
        os.environ.update(gloo_variables(self.world, address, interface_towards(address.host).name))
        self._watch(address)

    def _serve(self, host: str) -> None:
        self._supervisor = Supervisor(self.world.size, self._stall_timeout)
        self._server = Server(host, self._supervisor.answer, self._supervisor.gone)

    def _peer_address(self) -> str | None:
        """Where some other node is, or None when every rank is on this one."""
        peer = another_node(self.world) if self.world.nodes > 1 else None
        return network.resolve(peer) if peer else None

    # --- hvd.init() ---

    def start(self, hvd: Any, broadcast: Callable[[Address | None], Address] | None = None) -> None:
        """Start Horovod: is it the world that was launched?

        Args:
            hvd: "horovod.torch" or "horovod.tensorflow".
            broadcast: gives every rank what rank 0 passed, used where no file led to rank 0 (MPI); Horovod's own if None.

        Raises:
            LaunchError: the sizes or ranks differ.
        """
        if not hvd.nccl_built() and not os.environ.get("HOROVOD_AUTOTUNE"):
            os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(FUSION_BYTES))
        hvd.init()
        size, rank = hvd.size(), hvd.rank()
        if self.world.size == 1:
            return
        if (size, rank) != (self.world.size, self.world.rank):
            # Rank 0 first: srun ends the others as soon as it leaves, and one message is enough.
            time.sleep(0.0 if self.world.rank == 0 else 2.0)
            raise LaunchError(
                f"the launcher ({self.world.launcher}) started rank {self.world.rank} of {self.world.size}, but Horovod says "
                f"rank {rank} of {size}: training would go on unsynchronised. Type: srun --mpi=pmix ... if Horovod was "
                "built with MPI (srun --mpi=list shows what SLURM has), or srun --mpi=none for Gloo"
            )
        if self._watchdog is None:
            address = self._open_control() if rank == 0 else None
            self._watch(broadcast(address) if broadcast else hvd.broadcast_object(address, 0, name="control"))
        # Before, a signal ends this process as it always did: a launcher that was refused hurries its ranks with one.
        stop.install(self._on_stop)
        atexit.register(self.close)
        sys.excepthook = self._on_exception

    def _open_control(self) -> Address:
        """Start the control channel when MPI, not we, brought the ranks together."""
        self._serve(network.own_address(self.world))
        assert self._supervisor is not None and self._server is not None
        self._supervisor.start()
        return self._server.address

    def _watch(self, address: Address) -> None:
        self._client = self._client or Client(address, self.world.rank)
        self._watchdog = Watchdog(self.world.rank, self.world.node, self._client, self._stall_timeout, self._supervisor)

    def exchange(self, value: str, allgather: Callable[[str], list[str]]) -> list[str]:
        """`value` of every rank, in order of ranks, without any framework. Once, between `hvd.init()` and its shutdown.

        Args:
            allgather: gives it where no file led to rank 0 (MPI).

        Raises:
            LaunchError: a rank does not answer.
        """
        if self._file is None or self._client is None:
            return allgather(value)
        try:
            address = self._client.address
            return exchange(address, self.world.rank, self.world.size, value, self._connect_timeout)
        except OSError as error:
            raise LaunchError(f"the ranks could not tell each other where they listen: {error}") from error

    # --- while training ---

    def progress(self, activity: str, step: int | None = None) -> None:
        """Something was done: the world is alive. Costs two attribute writes."""
        if (watchdog := self._watchdog) is not None:
            watchdog.beats += 1
            watchdog.activity = activity
            if step is not None:
                watchdog.step = step

    def count(self, steps: Callable[[], int]) -> None:
        """For steps that no Python sees, as those of a compiled loop: the watchdog's thread asks how many there were by now."""
        if (watchdog := self._watchdog) is not None:
            watchdog.counters.append(steps)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around every wait for other ranks: whoever is not waiting is the one that the others wait for."""
        if (watchdog := self._watchdog) is None:
            yield
            return
        watchdog.waiting = True
        try:
            yield
        finally:
            watchdog.waiting = False

    # --- the end ---

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.fail(error, 2 if isinstance(error, UserError) else 1)

    def _on_stop(self, request: stop.Stopped) -> None:
        """A signal came outside of training: there is nothing to agree on step by step, so the other ranks end too."""
        if request.number == signal.SIGTERM:
            # mpirun and srun send it to those whose peer has died, too. If so, the watchdog ends this process meanwhile.
            time.sleep(GONE_SECONDS + 2 * INTERVAL_SECONDS)
        self.fail(request, stop.RESTART)

    def fail(self, error: BaseException, status: int = 1) -> NoReturn:
        """Tell the world that this rank failed, show why, and end this process with `status`.

        An error that only says that peers vanished waits for the reason, which another rank gives.
        """
        stop.leaving()
        consequence = _is_consequence(error)
        plain = isinstance(error, (UserError, stop.Stopped))
        reason = str(error) if plain else "".join(traceback.format_exception_only(error)).strip()
        restart = isinstance(error, stop.Stopped)
        if not consequence:
            say(str(error) if plain else "".join(traceback.format_exception(error)))
            what = "was asked to stop" if restart else "failed"
            reason_on_record = f"rank {self.world.rank} on {self.world.node} {what}: {_last_line(reason)}"
            with contextlib.suppress(*record.UNWRITTEN):
                record.note(reason=reason_on_record)
                if restart and self.world.rank == 0 and (folder := record.run_dir()) is not None:
                    record.finish(folder, "preempted", status, reason_on_record)
        if self._client is None:
            leave(status)
        self._tell_failure(reason, consequence, status)
        if consequence:
            # The watchdog ends this process as soon as it hears who began it.
            time.sleep(6.0)
            say(
                f"rank {self.world.rank} on {self.world.node}: Horovod failed and no other rank gave a reason\n{reason}"
            )
            self._tell_failure(reason, consequence=False, status=status)
        if self._supervisor:
            wait_until(self._supervisor.all_left, seconds=3.0)
        leave(status)

    def _tell_failure(self, reason: str, consequence: bool, status: int) -> None:
        if self._watchdog is not None and not consequence:
            self._watchdog.stop()
        try:
            assert self._client is not None
            told = {"reason": _last_line(reason), "consequence": consequence, "status": status}
            self._client.send("fail", node=self.world.node, **told)
        except ConnectionError:
            if not consequence:
                say(f"rank {self.world.rank} could not tell rank 0, which is gone")

    def close(self, after_rank_0: bool = False) -> None:
        """Leave in good order: nobody takes our silence for death, and rank 0's server outlasts the others' goodbye.

        Args:
            after_rank_0: rank 0 has something to say first. mpirun and srun end all ranks when one leaves with a status, and what
                rank 0 says after that is lost.
        """
        stop.leaving()
        if self._watchdog is None or self._client is None:
            return
        client = self._client
        if after_rank_0 and self._supervisor is None:
            with contextlib.suppress(ConnectionError):  # it is gone
                wait_until(lambda: bool(client.send("closing")["closing"]), seconds=_SPEAK_SECONDS)
        if self._supervisor and self._server:
            self._supervisor.closing = True
            wait_until(self._supervisor.all_left, seconds=6 * INTERVAL_SECONDS)
        self._watchdog.stop()
        with contextlib.suppress(ConnectionError):  # rank 0 may have left first; there is nobody to tell then
            client.send("bye")
        client.close()
        if self._server:
            self._server.close()
        if self._file is not None and self.world.rank == 0:
            with contextlib.suppress(OSError):  # it leads nowhere any more
                self._file.unlink(missing_ok=True)
        self._watchdog = None


def _is_consequence(error: BaseException) -> bool:
    """Whether it only says that other ranks are gone. TensorFlow has no type for it: its operations raise what Horovod says."""
    if type(error).__name__ == "HorovodInternalError":
        return True
    return type(error).__module__.startswith("tensorflow.") and "horovod" in str(error).lower()


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason given"
