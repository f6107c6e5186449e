"""Checks of one node: names, network, limits, cores, GPUs."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess

from hvdtrain import machine, world
from hvdtrain.doctor.check import REGISTRY, Context, Finding, failed, ok, skipped, warning
from hvdtrain.errors import UserError
from hvdtrain.launch import network
from hvdtrain.world import expand_hostlist

_PART = "node"
_FILES = 4096
_SHARED_MB = 1024


@REGISTRY.add(_PART, "host-name")
def host_name(context: Context) -> Finding:
    """Does this host's name lead to an address that others can use?"""
    name = socket.gethostname()
    try:
        address = network.resolve(name)
    except UserError as error:
        return failed(str(error), "Gloo and MPI find nodes by name; Horovod aborts", f"add {name} to DNS or /etc/hosts")
    if address.startswith("127."):
        return warning(
            f"{name} is {address} here",
            "with mpirun over several nodes rank 0 can only guess where the others reach it; srun does not mind",
            f"give {name} its real address in /etc/hosts",
        )
    return ok(f"{name} is {address}")


@REGISTRY.add(_PART, "other-names")
def other_names(context: Context) -> Finding:
    """Do the names of the other nodes of this job resolve?"""
    hosts = expand_hostlist(os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or "")
    hosts = [host for host in hosts if host]
    if len(hosts) < 2:
        return skipped("not in a job of several nodes (hvdtrain doctor --on-nodes 2)")
    missing = []
    for host in hosts:
        try:
            network.resolve(host)
        except UserError:
            missing.append(host)
    if missing:
        return failed(
            f"{', '.join(missing)} cannot be resolved", "ranks cannot find each other", "add them to DNS or /etc/hosts"
        )
    return ok(f"{len(hosts)} nodes resolve")


@REGISTRY.add(_PART, "interface")
def interface(context: Context) -> Finding:
    """Is there an interface that leaves the node, and does the one that was asked for exist?"""
    here = network.interfaces()
    outside = [each for each in here.values() if not each.stays_on_node]
    wanted = os.environ.get("HOROVOD_GLOO_IFACE")
    if wanted and wanted not in here:
        return failed(
            f"HOROVOD_GLOO_IFACE={wanted}, and there is no such interface",
            "Gloo would abort",
            f"interface = one of {', '.join(here)} in the site profile, or leave it out",
        )
    if not outside:
        return warning("no interface leaves this node", "only ranks on one node can train", "look at `ip address`")
    both = {os.environ.get("HOROVOD_GLOO_IFACE"), os.environ.get("NCCL_SOCKET_IFNAME")} - {None}
    if len(both) == 2:
        return warning(
            f"HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME differ ({', '.join(sorted(map(str, both)))})",
            "gradients and control would take different networks",
            "set interface in the site profile, which sets both",
        )
    return ok(", ".join(f"{each.name} ({each.address})" for each in outside))


@REGISTRY.add(_PART, "ports")
def ports(context: Context) -> Finding:
    """Can a port be opened on that address, and be reached?"""
    outside = [each.address for each in network.interfaces().values() if not each.stays_on_node] or ["127.0.0.1"]
    with socket.socket() as server:
        try:
            server.bind((outside[0], 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=5):
                pass
        except OSError as error:
            return failed(
                f"a port on {outside[0]} cannot be used: {error}",
                "rank 0 serves the others at such a port",
                "ask the administrator whether a firewall closes ports between compute nodes",
            )
    return ok(f"a free port on {outside[0]} can be reached")


@REGISTRY.add(_PART, "proxy")
def proxy(context: Context) -> Finding:
    """Would Horovod's client ask a proxy for the other nodes?"""
    proxies = [name for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(name)]
    if not proxies:
        return ok("no proxy is set")
    return ok(f"{', '.join(proxies)} is set; the launcher exempts the nodes of a job (no_proxy)")


@REGISTRY.add(_PART, "open-files")
def open_files(context: Context) -> Finding:
    """May enough files be open? Every rank has connections to every other, several times."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if hard != resource.RLIM_INFINITY and hard < _FILES:
        return warning(
            f"at most {hard} open files",
            "large worlds and data loaders need more",
            f"ask for a hard limit of {_FILES} (ulimit -Hn)",
        )
    if soft < 1024:
        return warning(
            f"{soft} open files", "large worlds and data loaders need more", f"ulimit -n {min(hard, _FILES)}"
        )
    return ok(f"{soft} open files, {'no' if hard == resource.RLIM_INFINITY else hard} hard limit")


@REGISTRY.add(_PART, "locked-memory")
def locked_memory(context: Context) -> Finding:
    """May memory be locked? InfiniBand needs it."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    devices = machine.infiniband()
    if limit == resource.RLIM_INFINITY or not devices:
        return ok("no InfiniBand here" if not devices else "unlimited")
    return warning(
        f"{limit // 1024} KB may be locked, and there is InfiniBand ({', '.join(devices)})",
        "NCCL and MPI fall back to TCP, or fail",
        "in jobs: PropagateResourceLimitsExcept=MEMLOCK (administrator), or ulimit -l unlimited in setup",
    )


@REGISTRY.add(_PART, "cores")
def cores(context: Context) -> Finding:
    """How many cores may this process use?"""
    mine, all_ = machine.cores(), os.cpu_count() or 1
    asked = os.environ.get("SLURM_CPUS_PER_TASK")
    if asked and asked.isdigit() and world.slurm_task() is not None and mine < int(asked):
        return warning(
            f"this task is bound to {mine} cores and was given {asked}",
            "its threads share fewer cores than they think",
            'cpu_bind = "none" in the site profile, or --cpus-per-task for srun as well',
        )
    if mine == 1 and all_ > 1 and world.slurm_task() is not None:
        return warning(
            f"this task is bound to one of {all_} cores", "reading data will hold the GPU up", "give --cpus-per-task"
        )
    return ok(f"{mine} of {all_} cores")


@REGISTRY.add(_PART, "threads")
def threads(context: Context) -> Finding:
    """Does OMP_NUM_THREADS fit?"""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > machine.cores():
        return warning(
            f"OMP_NUM_THREADS={text} on {machine.cores()} cores",
            "threads take turns instead of working",
            "unset OMP_NUM_THREADS",
        )
    return ok(f"OMP_NUM_THREADS={text}" if text else "OMP_NUM_THREADS is not set; the launcher sets it for ranks")


@REGISTRY.add(_PART, "shared-memory")
def shared_memory(context: Context) -> Finding:
    """Is there enough /dev/shm for data loaders and NCCL?"""
    try:
        free = shutil.disk_usage("/dev/shm").free // 2**20
    except OSError as error:
        return warning(f"/dev/shm: {error.strerror}", "data loaders pass batches through it", "mount a tmpfs there")
    if free < _SHARED_MB:
        return warning(
            f"{free} MB free in /dev/shm",
            "data loaders and NCCL fail with a bus error when it is full",
            "in containers: --shm-size=8g",
        )
    return ok(f"{free:,} MB free in /dev/shm")


@REGISTRY.add(_PART, "gpus")
def gpus(context: Context) -> Finding:
    """Which GPUs does a process see, with which driver?"""
    if shutil.which("nvidia-smi") is None:
        hint = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hint and hint != "NoDevFiles":
            return warning(
                f"CUDA_VISIBLE_DEVICES={hint}, but there is no nvidia-smi",
                "without a driver ranks run on CPUs",
                "ask for a node with GPUs",
            )
        return skipped("no NVIDIA driver: ranks run on CPUs, and every record says so")
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        return failed(
            f"nvidia-smi: {(done.stdout + done.stderr).strip()}",
            "no GPU can be used",
            "drain the node; its driver is broken",
        )
    lines = done.stdout.strip().splitlines()
    if len({line.split(",")[0] for line in lines}) > 1:
        return warning(
            f"this node has several GPU models: {'; '.join(lines)}",
            "the slowest sets the pace of all ranks",
            "give --gpu-type",
        )
    visible = machine.visible_gpus(os.environ)
    return ok(f"{len(visible)} of {len(lines)} visible: {lines[0] if lines else 'none'}")


@REGISTRY.add(_PART, "horovod-variables")
def horovod_variables(context: Context) -> Finding:
    """Does the environment hold what breaks Horovod?"""
    hierarchical = [name for name in os.environ if name.startswith("HOROVOD_HIERARCHICAL_")]
    if hierarchical:
        return warning(
            f"{', '.join(hierarchical)} is set",
            "it hangs or aborts under Gloo; the launcher takes it away",
            f"unset {hierarchical[0]}",
        )
    stale = world.rank_variables()
    if stale and world.slurm_task() is None:
        return warning(
            f"{', '.join(stale)} is set outside of any launcher",
            "a job would take itself for one of several ranks",
            f"unset {stale[0]}",
        )
    timeout = os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "300")
    if re.fullmatch(r"\d+", timeout) and int(timeout) < 60:
        return warning(
            f"HOROVOD_GLOO_TIMEOUT_SECONDS={timeout}",
            "a node that pauses for so long ends the run",
            "unset HOROVOD_GLOO_TIMEOUT_SECONDS",
        )
    return ok("nothing in the environment hinders Horovod")
