"""The text of every configuration file, as functions of a plan."""

from __future__ import annotations

import re
import shlex

from hvdtrain.testcluster.plan import CPUS_PER_NODE, GPUS_PER_NODE, MEMORY_PER_NODE_MB, Plan

#: How long a job of the `preempt` partition may go on once it has been told to go.
GRACE_SECONDS = 10


def gpu_types(plan: Plan) -> list[str]:
    """The types of GPU in the cluster, each once."""
    return list(dict.fromkeys(node.gpu_type for node in plan.nodes))


def slurm_conf(plan: Plan) -> str:
    """Slurm's main configuration."""
    directory = plan.directory
    lines = [
        f"ClusterName={plan.name}",
        f"SlurmctldHost={plan.controller_name}({plan.host_address})",
        f"SlurmctldPort={plan.controller_port}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        # cred_expire is also how long Slurm holds a requeued job back (120 s unless set).
        f"AuthInfo=socket={directory}/munge.sock,cred_expire={plan.requeue_delay}",
        f"StateSaveLocation={directory}/ctld",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/%n/slurmd.pid",
        f"SlurmdSpoolDir={directory}/%n/spool",
        # PMIx keeps a directory per step here; shared between nodes they would fight over it.
        f"TmpFS={directory}/%n/tmp",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        # Nodes may claim more CPUs and memory than the machine has.
        "SlurmdParameters=config_overrides",
        # Needs no cgroup and therefore no systemd.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1000",
        "GresTypes=gpu",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=100000",
        "ReturnToService=2",
        "KillWait=5",
        f"SlurmdTimeout={plan.node_timeout}",
        "MailProg=/bin/true",
    ]
    if plan.mode == "namespaces":
        # Only the cluster's own address: nothing outside this machine can talk to the controller. The address is what
        # the controller's name resolves to, so this cannot be had where that is the machine's own name.
        lines.append("CommunicationParameters=NoCtldInAddrAny")
    if plan.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={plan.host_address}",
            f"AccountingStoragePort={plan.accounting_port}",
            f"AccountingStoragePass={directory}/munge.sock",
            "AccountingStorageTRES=" + ",".join(["gres/gpu", *(f"gres/gpu:{gpu}" for gpu in gpu_types(plan))]),
            # As at most sites: a wrong --account is refused when the job is submitted.
            "AccountingStorageEnforce=associations",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherFrequency=5",
        ]
    else:
        lines += ["AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none"]
    for node in plan.nodes:
        # In namespaces every slurmd has a host name of its own; on one host they share the machine's.
        host = node.name if plan.mode == "namespaces" else plan.controller_name
        lines.append(
            f"NodeName={node.name} NodeHostname={host} NodeAddr={node.address} Port={node.port} CPUs={CPUS_PER_NODE}"
            f" Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS_PER_NODE} ThreadsPerCore=1"
            f" RealMemory={MEMORY_PER_NODE_MB} Gres=gpu:{node.gpu_type}:{GPUS_PER_NODE} Feature={node.gpu_type}"
        )
    every = ",".join(node.name for node in plan.nodes)
    times = "DefaultTime=00:30:00 MaxTime=1-00:00:00"
    usual = f"{times} PriorityTier=10 PreemptMode=OFF"
    lines.append(f"PartitionName=all Nodes={every} Default=YES {usual}")
    for gpu in gpu_types(plan):
        members = ",".join(node.name for node in plan.nodes if node.gpu_type == gpu)
        lines.append(f"PartitionName={gpu} Nodes={members} {usual}")
    lines += [
        f"PartitionName=preempt Nodes={every} {times} PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_SECONDS}",
        f"PartitionName=short Nodes={every} MaxTime=00:01:00 PriorityTier=10 PreemptMode=OFF",
    ]
    keys = tuple(_replaced(text) for text in plan.settings)
    return "\n".join([*(line for line in lines if not line.startswith(keys or "?")), *plan.settings]) + "\n"


def _replaced(setting: str) -> str:
    """How the lines begin that a further one replaces; of partitions and nodes there are several, and those of other names stay."""
    key = setting.split("=")[0]
    return f"{setting.split()[0]} " if key in ("PartitionName", "NodeName") else f"{key}="


def gres_conf(plan: Plan) -> str:
    """Which files stand in for GPUs."""
    last = GPUS_PER_NODE - 1
    lines = ["AutoDetect=off"]
    for node in plan.nodes:
        files = f"{plan.directory}/{node.name}/gpu[0-{last}]"
        lines.append(f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={files}")
    return "\n".join(lines) + "\n"


def cgroup_conf(version: tuple[int, int]) -> str:
    """Keeps slurmd away from the machine's control groups, which it would otherwise inspect and sometimes reject."""
    return f"CgroupPlugin={'disabled' if version >= (24, 5) else 'cgroup/v1'}\n"


def slurmdbd_conf(plan: Plan, password: str) -> str:
    """Configuration of the accounting daemon; Slurm insists that only its owner may read it."""
    return (
        "\n".join(
            [
                f"AuthType=auth/munge\nAuthInfo=socket={plan.directory}/munge.sock",
                f"DbdHost={plan.controller_name}",
                f"DbdAddr={plan.host_address}",
                f"DbdPort={plan.accounting_port}",
                "SlurmUser=root",
                f"PidFile={plan.directory}/slurmdbd.pid",
                "StorageType=accounting_storage/mysql",
                "StorageHost=127.0.0.1",
                f"StoragePort={plan.database_port}",
                "StorageUser=slurm",
                f"StoragePass={password}",
                "StorageLoc=slurm_acct",
                "DebugLevel=info",
            ]
        )
        + "\n"
    )


def hosts(plan: Plan, machine: str) -> str:
    """A hosts file with every node, the controller, and the name of the machine that jobs are submitted from."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines.append(f"{plan.host_address} {' '.join(dict.fromkeys([plan.controller_name, machine]))}")
    lines += [f"{node.address} {node.name}" for node in plan.nodes]
    return "\n".join(lines) + "\n"


def nsswitch_conf(machine: str, *, on_node: bool) -> str:
    """The machine's nsswitch.conf, its text being `machine`, changed to look host names up in the hosts file first.

    A resolver service of the machine that comes first would answer from the machine's own hosts file. Nodes have no way
    out and therefore no other source: a name server could only time out.
    """
    pattern = re.compile(r"\s*hosts\s*:(.*)")
    others = [line for line in machine.splitlines() if not pattern.match(line)]
    sources = [word for line in machine.splitlines() if (found := pattern.match(line)) for word in found[1].split()]
    rest = [] if on_node else [word for word in sources or ["dns"] if word != "files"]
    return "\n".join([*others, " ".join(["hosts:", "files", *rest])]) + "\n"


def client_environment(plan: Plan) -> dict[str, str]:
    """The variables that make srun, sbatch, squeue... talk to this cluster."""
    return {
        "SLURM_CONF": str(plan.slurm_conf),
        "HVDTRAIN_TESTCLUSTER": str(plan.directory),
        # All nodes share this machine's cores: more threads would only hinder.
        "OMP_NUM_THREADS": "1",
    }


def env_sh(plan: Plan) -> str:
    """A file for `source` with the client's variables."""
    lines = [f"# source this to use the test cluster '{plan.name}'"]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in client_environment(plan).items()]
    return "\n".join(lines) + "\n"
