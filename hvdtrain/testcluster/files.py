"""The files of a cluster's directory, written before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.testcluster import config, tools
from hvdtrain.testcluster.plan import GPUS_PER_NODE, Plan


def write_files(plan: Plan) -> None:
    """Fill the directory: configuration, name resolution, stand-in GPUs, munge's key."""
    directory = plan.directory
    directory.chmod(0o755)
    for name in ("ctld", "log", "etc-node", "etc-machine"):
        (directory / name).mkdir()
    for node in plan.nodes:
        _make_node(directory / node.name)
    _write_texts(plan)
    key = directory / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))


def _make_node(place: Path) -> None:
    for part in ("spool", "tmp"):
        (place / part).mkdir(parents=True)
    (place / "tmp").chmod(0o1777)
    for index in range(GPUS_PER_NODE):
        # Slurm insists on a device; a link to one needs no right to make devices.
        (place / f"gpu{index}").symlink_to("/dev/null")


def _write_texts(plan: Plan) -> None:
    hosts = config.hosts(plan, os.uname().nodename)
    switch = _read("/etc/nsswitch.conf")
    texts = {
        "slurm.conf": config.slurm_conf(plan),
        "gres.conf": config.gres_conf(plan),
        "cgroup.conf": config.cgroup_conf(tools.slurm_version()),
        "env.sh": config.env_sh(plan),
        "etc-node/hosts": hosts,
        "etc-node/nsswitch.conf": config.nsswitch_conf(switch, on_node=True),
        "etc-machine/hosts": hosts + _read("/etc/hosts"),
        "etc-machine/nsswitch.conf": config.nsswitch_conf(switch, on_node=False),
    }
    for name, text in texts.items():
        (plan.directory / name).write_text(text)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""
