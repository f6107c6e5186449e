"""One rank's part in one world: the checks before Horovod starts, the watchdog while it runs, the goodbye at the end.

session = Session(world, framework="torch")
session.prepare()                      # every check, in Python; sets HOROVOD_* for Gloo
hvd.init()                             # from here on a failure of Gloo would be an abort that nothing can catch
session.started(hvd.size(), hvd.rank(), broadcast)
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import hvdtrain
from hvdtrain import record
from hvdtrain.errors import UserError
from hvdtrain.horovod_build import check
from hvdtrain.launch import network
from hvdtrain.launch.control import Message, Supervisor
from hvdtrain.launch.rendezvous import Address, Client, Server, await_address
from hvdtrain.launch.watchdog import INTERVAL_SECONDS, Watchdog, leave, say, wait_until
from hvdtrain.world import World, another_node, launch_id

CONNECT_TIMEOUT_VARIABLE = "HVDTRAIN_CONNECT_TIMEOUT"
STALL_TIMEOUT_VARIABLE = "HVDTRAIN_STALL_TIMEOUT"
RENDEZVOUS_DIR_VARIABLE = "HVDTRAIN_RENDEZVOUS_DIR"
DEFAULT_CONNECT_TIMEOUT = 300.0
DEFAULT_STALL_TIMEOUT = 300.0


class LaunchError(UserError):
    """The world cannot start."""

    def __init__(self, message: str, agreed: bool = False) -> None:
        super().__init__(message)
        self.agreed = agreed


class Session:
    """This rank's connection to its world. A world of one needs none: every method then does nothing.

    Args:
        world: from `world.detect()`.
        framework: "torch" or "tensorflow", whose Horovod is about to be imported.
    """

    def __init__(self, world: World, framework: str) -> None:
        self.world = world
        self._framework = framework
        self._connect_timeout = seconds_from(CONNECT_TIMEOUT_VARIABLE, DEFAULT_CONNECT_TIMEOUT)
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
            return
        # Horovod's hierarchical operations hang or abort under Gloo, whoever asked for them.
        for name in [name for name in os.environ if name.startswith("HOROVOD_HIERARCHICAL_")]:
            del os.environ[name]
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(int(self._connect_timeout)))
        if self.world.launcher in ("local", "gloo"):
            if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
                self._prepare_gloo()
                return
        else:
            os.environ.update(HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="mpi")
        problem = self._problem()
        if problem:
            raise LaunchError(problem, agreed=True)

    def _prepare_gloo(self) -> None:
        problem, interface = self._problem(), None
        self._file = meeting_file()
        if self.world.rank == 0:
            try:
                interface = network.choose(os.environ.get("HOROVOD_GLOO_IFACE"), self._peer_address())
            except UserError as error:
                problem = problem or str(error)
            host = interface.address if interface else "127.0.0.1"
            self._serve(host)
            assert self._server is not None
            # When rank 0 has no usable address the others cannot ask it: the file itself tells them.
            unreachable = problem if interface is None else ""
            (Address(host, 0, "", unreachable) if unreachable else self._server.address).publish(self._file)
            if unreachable:
                raise LaunchError(unreachable, agreed=True)
        self._join(self._file, problem)
        address = self._client.address if self._client else Address("", 0, "")
        local = interface or network.choose(os.environ.get("HOROVOD_GLOO_IFACE"), self._beyond(address.host))
        os.environ.update(self._gloo_variables(address, local.name))
        self._watch(address)

    def _serve(self, host: str) -> None:
        self._supervisor = Supervisor(self.world.size, self._stall_timeout)
        self._server = Server(host, self._supervisor.answer, self._supervisor.gone)

    def _peer_address(self) -> str | None:
        """Where some other node is, or None when every rank is on this one."""
        peer = another_node(self.world) if self.world.nodes > 1 else None
        return network.resolve(peer) if peer else None

    def _beyond(self, address: str) -> str | None:
        return None if address.startswith("127.") else address

    def _join(self, file: Path, problem: str) -> None:
        """Meet the other ranks: returns when all are there and agree.

        Raises:
            LaunchError: a rank has a problem, is missing, or contradicts another.
        """
        deadline = time.monotonic() + self._connect_timeout
        # Rank 0 gives the verdict on who is missing, so the others wait a little longer than it does.
        patience = deadline + (0.0 if self.world.rank == 0 else 10.0)
        say_at = time.monotonic() + 15.0

        def attempt(address: Address) -> Message | None:
            client = Client(address, self.world.rank)
            try:
                answer = client.send("join", **self._introduction(address, problem, time.monotonic() > deadline))
            except ConnectionError:
                client.close()
                return None
            self._client = client
            return answer

        try:
            answer = await_address(file, attempt, patience)
            while answer["state"] == "waiting":
                if time.monotonic() > patience:
                    raise LaunchError("rank 0 gave no verdict in time", agreed=False)
                if self.world.rank == 0 and time.monotonic() > say_at:
                    say(f"waiting for all {self.world.size} ranks (up to {self._connect_timeout:g} s)")
                    say_at = float("inf")
                time.sleep(0.1)
                assert self._client is not None
                answer = attempt(self._client.address) or answer
        except TimeoutError as error:
            raise LaunchError(
                f"rank {self.world.rank} on {self.world.node}: {error} within {self._connect_timeout:g} s "
                f"({CONNECT_TIMEOUT_VARIABLE} sets how long)"
            ) from None
        if answer["state"] == "refused":
            # The others ask every tenth of a second: let them hear it from a server that is still there.
            time.sleep(2.0 if self.world.rank == 0 else 0.0)
            raise LaunchError(answer["problem"], agreed=True)

    def _introduction(self, address: Address, problem: str, last_call: bool) -> Message:
        try:
            network.choose(os.environ.get("HOROVOD_GLOO_IFACE"), self._beyond(address.host))
        except UserError as error:
            problem = problem or str(error)
        packages = ("horovod", self._framework)
        versions = {"hvdtrain": hvdtrain.__version__, "python": platform.python_version()}
        versions |= {name: _version(name) for name in packages}
        return {
            "place": asdict(self.world),
            "pid": os.getpid(),
            "problem": problem,
            "versions": versions,
            "last_call": last_call,
        }

    def _problem(self) -> str:
        """What this rank alone can see to be wrong; empty when nothing is."""
        if found := check.problem([self._framework]):
            return found
        build = check.installed()
        if self.world.launcher in ("pmix", "mpirun") and build is not None and not build.mpi:
            return (
                f"ranks were started by {self.world.launcher}, but Horovod was built without MPI. Type: hvdtrain build-horovod "
                "--mpi on   or start them with plain srun, which uses Gloo"
            )
        # Six full meshes of sockets (global, local, cross, each twice), and room for files and data loaders.
        needed = 6 * 2 * self.world.size + 256
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < needed:
            if hard != resource.RLIM_INFINITY and hard < needed:
                return f"{self.world.size} ranks need {needed} open files, but the limit is {hard}; raise it (ulimit -n {needed})"
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return ""

    def _gloo_variables(self, address: Address, interface: str) -> dict[str, str]:
        # A proxy between nodes of one cluster is never wanted, and Horovod's Python client would use it.
        no_proxy = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), address.host]))
        place = {
            name.upper(): str(getattr(self.world, name))
            for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        }
        return {
            **{f"HOROVOD_{name}": value for name, value in place.items()},
            "HOROVOD_HOSTNAME": self.world.node,
            # Both: either alone leaves the other at MPI when the build has it.
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address.host,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(address.port),
            "HVDTRAIN_RENDEZVOUS_TOKEN": address.secret,
            "no_proxy": no_proxy,
            "NO_PROXY": no_proxy,
        }

    # --- after hvd.init() ---

    def started(self, size: int, rank: int, broadcast: Callable[[Address | None], Address]) -> None:
        """Horovod has started: is it the world that was launched?

        Args:
            size: what Horovod says.
            rank: what Horovod says.
            broadcast: gives every rank what rank 0 passed; used where no file led to rank 0 (MPI).

        Raises:
            LaunchError: the sizes or ranks differ.
        """
        if self.world.size == 1:
            return
        if (size, rank) != (self.world.size, self.world.rank):
            raise LaunchError(
                f"the launcher ({self.world.launcher}) started rank {self.world.rank} of {self.world.size}, but Horovod says rank "
                f"{rank} of {size}; training would go on unsynchronised. Type: srun --mpi=pmix ... if Horovod was built with "
                "MPI (srun --mpi=list shows what SLURM has), or plain srun for Gloo",
                agreed=rank == 0 and size == self.world.size,
            )
        if self._watchdog is None:
            self._watch(broadcast(self._open_control() if rank == 0 else None))
        atexit.register(self.close)
        sys.excepthook = self._on_exception

    def _open_control(self) -> Address:
        """Start the control channel when MPI, not we, brought the ranks together."""
        peer = self._peer_address()
        interface = network.choose(None, peer)
        # mpirun does not tell other nodes' names; the address of our own name is the one they know.
        several = self.world.local_size < self.world.size
        self._serve(network.resolve(socket.gethostname()) if several and peer is None else interface.address)
        assert self._supervisor is not None and self._server is not None
        self._supervisor.start()
        return self._server.address

    def _watch(self, address: Address) -> None:
        self._client = self._client or Client(address, self.world.rank)
        self._watchdog = Watchdog(self.world.rank, self.world.node, self._client, self._stall_timeout, self._supervisor)

    # --- while training ---

    def progress(self, activity: str, step: int | None = None) -> None:
        """Something was done: the world is alive. Costs two attribute writes."""
        if (watchdog := self._watchdog) is not None:
            watchdog.beats += 1
            watchdog.activity = activity
            if step is not None:
                watchdog.step = step

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

    def fail(self, error: BaseException, status: int = 1) -> NoReturn:
        """Tell the world that this rank failed, show why, and end this process with `status`.

        An error that only says that peers vanished waits for the reason, which another rank gives.
        """
        consequence = type(error).__name__ == "HorovodInternalError"
        reason = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception_only(error)).strip()
        if not consequence:
            say(str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error)))
            record.note(reason=f"rank {self.world.rank} on {self.world.node} failed: {_last_line(reason)}")
        if self._client is None:
            leave(status)
        self._tell_failure(reason, consequence)
        if consequence:
            # The watchdog ends this process as soon as it hears who began it.
            time.sleep(6.0)
            say(
                f"rank {self.world.rank} on {self.world.node}: Horovod failed and no other rank gave a reason\n{reason}"
            )
            self._tell_failure(reason, consequence=False)
        if self._supervisor:
            wait_until(self._supervisor.all_left, seconds=3.0)
        leave(status)

    def _tell_failure(self, reason: str, consequence: bool) -> None:
        if self._watchdog is not None and not consequence:
            self._watchdog.stop()
        try:
            assert self._client is not None
            self._client.send("fail", node=self.world.node, reason=_last_line(reason), consequence=consequence)
        except ConnectionError:
            if not consequence:
                say(f"rank {self.world.rank} could not tell rank 0, which is gone")

    def close(self) -> None:
        """Leave in good order: nobody takes our silence for death, and rank 0's server outlasts the others' goodbye."""
        if self._watchdog is None or self._client is None:
            return
        if self._supervisor and self._server:
            self._supervisor.closing = True
            wait_until(self._supervisor.all_left, seconds=6 * INTERVAL_SECONDS)
        self._watchdog.stop()
        with contextlib.suppress(ConnectionError):  # rank 0 may have left first; there is nobody to tell then
            self._client.send("bye")
        self._client.close()
        if self._server:
            self._server.close()
        if self._file is not None and self.world.rank == 0:
            self._file.unlink(missing_ok=True)
        self._watchdog = None


def meeting_file() -> Path:
    """Where rank 0 publishes its address: a folder that all nodes see, one file for each start of a world."""
    run_dir = os.environ.get("HVDTRAIN_RUN_DIR")
    folder = os.environ.get(RENDEZVOUS_DIR_VARIABLE) or (run_dir and f"{run_dir}/.rendezvous")
    return Path(folder or Path.home() / ".cache" / "hvdtrain" / "rendezvous") / launch_id()


def seconds_from(variable: str, default: float) -> float:
    """Seconds in an environment variable.

    Raises:
        UserError: it is not a number of seconds.
    """
    text = os.environ.get(variable) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise UserError(f"{variable}={text} is not a number of seconds")
    return value


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason given"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
