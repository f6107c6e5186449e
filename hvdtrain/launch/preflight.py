"""What is checked before Horovod starts, in Python, where a failure is a message and not an abort.

Also the settings of a launch, and what Horovod's Gloo is told in HOROVOD_ variables.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import hvdtrain
from hvdtrain.errors import UserError
from hvdtrain.horovod_build import check
from hvdtrain.horovod_build.meeting import AT_ONCE_VARIABLE, TOKEN_VARIABLE
from hvdtrain.horovod_build.mpi_ring import SEGMENT_BYTES
from hvdtrain.launch import network
from hvdtrain.launch.control import Message
from hvdtrain.launch.rendezvous import Address, Client, await_address
from hvdtrain.launch.watchdog import say
from hvdtrain.world import World, launch_id

CONNECT_TIMEOUT_VARIABLE = "HVDTRAIN_CONNECT_TIMEOUT"
STALL_TIMEOUT_VARIABLE = "HVDTRAIN_STALL_TIMEOUT"
RENDEZVOUS_DIR_VARIABLE = "HVDTRAIN_RENDEZVOUS_DIR"
_ANOTHER_FOLDER = f"set {RENDEZVOUS_DIR_VARIABLE} (or --run-dir) to a folder that all nodes see and may write"
DEFAULT_CONNECT_TIMEOUT = 300.0
DEFAULT_STALL_TIMEOUT = 300.0
#: A week: who gives more, or inf, wants to wait for ever, but sockets hold no such number.
_LONGEST_CONNECT = 7 * 86400.0

#: What Open MPI is told, unless the user did. A message over TCP that is larger than this limit asks before it is sent, and two
#: ranks then send one after the other, at half the speed of the link. Pieces of gradients, and the header of their message, fit.
OPEN_MPI = {f"OMPI_MCA_btl_tcp_{limit}": str(SEGMENT_BYTES + 4096) for limit in ("eager_limit", "rndv_eager_limit")}


#: How large gradients that Horovod sends as one may be together, where it adds on CPUs. They are copied to a buffer and back, which
#: costs more than a message of its own from this size on (bench/settings.py). With NCCL, not measured, Horovod's own 128 MB stay.
FUSION_BYTES = 4 * 2**20


class LaunchError(UserError):
    """The world cannot start."""

    def __init__(self, message: str, agreed: bool = False) -> None:
        super().__init__(message)
        self.agreed = agreed


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


def connect_timeout() -> float:
    """Seconds to wait for all ranks at the start.

    Raises:
        UserError: what the user set is not a number of seconds.
    """
    return min(seconds_from(CONNECT_TIMEOUT_VARIABLE, DEFAULT_CONNECT_TIMEOUT), _LONGEST_CONNECT)


def meeting_file() -> Path:
    """Where rank 0 publishes its address: a folder that all nodes see, one file for each start of a world.

    Raises:
        LaunchError: no folder is named, and this user has no home.
    """
    run_dir = os.environ.get("HVDTRAIN_RUN_DIR")
    folder = os.environ.get(RENDEZVOUS_DIR_VARIABLE) or (run_dir and f"{run_dir}/.rendezvous")
    try:
        return Path(folder or Path.home() / ".cache" / "hvdtrain" / "rendezvous") / launch_id()
    except RuntimeError:
        raise LaunchError(f"there is no home folder on {platform.node()} to meet in: {_ANOTHER_FOLDER}") from None


def publish(address: Address, file: Path, node: str) -> None:
    """Rank 0, on `node`, says at `file` where it is.

    Raises:
        LaunchError: the folder cannot be written. The other ranks cannot hear of that, so rank 0 says it for all.
    """
    try:
        address.publish(file)
    except OSError as error:
        told = f"{file.parent} cannot be written on {node} ({error.strerror}): {_ANOTHER_FOLDER}"
        raise LaunchError(told, agreed=True) from None


def interface_towards(address: str | None) -> network.Interface:
    """The interface for Gloo when rank 0 (or, for rank 0, another node) is at `address`; None when all are on this node.

    Raises:
        UserError: there is none, or the one that the user chose does not lead there.
    """
    peer = None if address is None or address.startswith("127.") else address
    return network.choose(os.environ.get("HOROVOD_GLOO_IFACE"), peer)


def own_problem(world: World, framework: str, strategy: str = "horovod") -> str:
    """What this rank alone can see to be wrong; empty when nothing is.

    Args:
        strategy: what averages gradients; with any but "horovod" ranks only meet by Horovod, and send it nothing from a GPU.
    """
    if found := check.problem([framework]):
        return found
    build = check.installed()
    if world.launcher in ("pmix", "mpirun") and build is not None and not build.mpi:
        return (
            f"ranks were started by {world.launcher}, but Horovod was built without MPI. Type: hvdtrain build-horovod "
            "--mpi on   or start them with srun --mpi=none, which uses Gloo"
        )
    if world.launcher in ("gloo", "local") and build is not None and "rendezvous_token" not in build.features:
        return "the installed Horovod is of an earlier hvdtrain and cannot meet at our rendezvous. Type: hvdtrain build-horovod"
    # TensorFlow itself copies what Horovod has no operation for; PyTorch's tensors would end the process while they are sent.
    by_horovod = framework == "torch" and strategy == "horovod" and world.size > 1
    if by_horovod and world.device.startswith("cuda") and build is not None and build.cuda is None:
        return (
            "ranks are on GPUs, but Horovod was built without CUDA and cannot send what lies there. Type: hvdtrain "
            "build-horovod --cuda on   where nvcc is, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on CPUs"
        )
    # Six full meshes of sockets (global, local, cross, each twice), and room for files and data loaders.
    needed = 6 * 2 * world.size + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            return (
                f"{world.size} ranks need {needed} open files, but the limit is {hard}; raise it (ulimit -n {needed})"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return ""


def meet(world: World, framework: str, file: Path, problem: str, timeout: float) -> Client:
    """Wait for the other ranks at rank 0's server; returns when all are there and agree.

    Args:
        file: where rank 0 publishes its address.
        problem: what this rank found to be wrong; every rank then hears of it.
        timeout: seconds to wait for all.

    Raises:
        LaunchError: a rank has a problem, is missing, or contradicts another.
    """
    deadline = time.monotonic() + timeout
    # Rank 0 gives the verdict on who is missing, so the others wait a little longer than it does.
    patience = deadline + (0.0 if world.rank == 0 else 10.0)
    speak = time.monotonic() + 15.0
    clients: list[Client] = []

    def attempt(address: Address) -> Message | None:
        client = clients[-1] if clients and clients[-1].address == address else Client(address, world.rank)
        last_call = time.monotonic() > deadline
        try:
            answer = client.send("join", **introduction(world, framework, address, problem), last_call=last_call)
        except ConnectionError:
            client.close()
            return None
        clients[:] = [client]
        return answer

    try:
        answer = await_address(file, attempt, patience)
    except TimeoutError as error:
        raise LaunchError(
            f"rank {world.rank} on {world.node}: {error} within {timeout:g} s ({CONNECT_TIMEOUT_VARIABLE} sets how long)",
        ) from None
    while answer["state"] == "waiting":
        if time.monotonic() > patience:
            raise LaunchError(f"rank {world.rank} on {world.node}: rank 0 gave no verdict within {timeout:g} s")
        if world.rank == 0 and time.monotonic() > speak:
            say(f"waiting for all {world.size} ranks (up to {timeout:g} s)")
            speak = float("inf")
        time.sleep(asking_interval(world.size))
        answer = attempt(clients[-1].address) or answer
    if answer["state"] == "refused":
        # The others ask again: let them hear it from a server that is still there. They leave after rank 0, because srun ends
        # all ranks when one leaves, and rank 0 must have spoken by then.
        time.sleep(0.5 if world.rank == 0 else 2.0)
        raise LaunchError(answer["problem"], agreed=True)
    return clients[-1]


def asking_interval(size: int) -> float:
    """Seconds between two questions of a rank whether all are there: a thousand in a second are what rank 0 answers with ease."""
    return min(max(0.1, size / 1000), 0.4)


def introduction(world: World, framework: str, address: Address, problem: str) -> Message:
    """What a rank says of itself when it joins: place, process, software, and what it found to be wrong."""
    try:
        interface_towards(address.host)
    except UserError as error:
        problem = problem or str(error)
    versions = {"hvdtrain": hvdtrain.__version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in ("horovod", framework)}
    return {"place": asdict(world), "pid": os.getpid(), "problem": problem, "versions": versions}


def gloo_variables(world: World, address: Address, interface: str) -> dict[str, str]:
    """The environment that makes Horovod use Gloo over `interface`, meeting at `address`."""
    # A proxy between nodes of one cluster is never wanted, and Horovod's Python client would use it.
    no_proxy = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), address.host]))
    place = {
        name.upper(): str(getattr(world, name))
        for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    }
    return {
        **{f"HOROVOD_{name}": value for name, value in place.items()},
        "HOROVOD_HOSTNAME": world.node,
        # Both: either alone leaves the other at MPI when the build has it.
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(address.port),
        TOKEN_VARIABLE: address.secret,
        AT_ONCE_VARIABLE: "1",
        "no_proxy": no_proxy,
        "NO_PROXY": no_proxy,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
