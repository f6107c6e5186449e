"""The programs a cluster is made of: found, never installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from hvdtrain.testcluster.errors import ClusterError, MissingToolsError

# Program -> Debian and Ubuntu package.
_PACKAGES = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "sinfo": "slurm-wlm",
    "munged": "munge",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "sh": "dash",
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-wlm",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
# Slurm's PMIx plugin opens libpmix.so, without a version number, at run time. On Debian only this package has a file of
# that name, and no package of Slurm depends on it.
PMIX_PACKAGE = "libpmix-dev"
_SLURM = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo", "munged", "sh")
_NAMESPACES = ("ip", "tc", "nsenter", "unshare", "mount", "hostname")
_ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")


def find(program: str) -> str | None:
    """Full path of `program`. Daemons live in sbin, which is not on every PATH."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def path(program: str) -> str:
    """Full path of `program`, or MissingToolsError."""
    require([program])
    found = find(program)
    assert found is not None
    return found


def needed(*, namespaces: bool, accounting: bool) -> list[str]:
    """The programs that a cluster with these options uses."""
    return [*_SLURM, *(_NAMESPACES if namespaces else ()), *(_ACCOUNTING if accounting else ())]


def require(programs: Iterable[str]) -> None:
    """Raise MissingToolsError naming every missing program and the packages that bring them."""
    missing = [program for program in programs if find(program) is None]
    if missing:
        packages = sorted({_PACKAGES.get(program, program) for program in missing})
        if "slurm-wlm" in packages:
            packages.append(PMIX_PACKAGE)
        raise MissingToolsError(
            f"not installed: {', '.join(missing)}\n"
            f"On Debian or Ubuntu: apt-get install {' '.join(packages)}\n"
            "Their own services are not needed and may stay off: the test cluster starts its own daemons."
        )


def call(argv: Sequence[str], *, env: dict[str, str] | None = None, timeout: float = 30) -> str:
    """Run a program to its end and return what it printed; ClusterError with its words when it fails."""
    program = find(argv[0]) or argv[0]
    try:
        done = subprocess.run([program, *argv[1:]], env=env, capture_output=True, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{' '.join(argv)}: {error}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()
        raise ClusterError(f"{' '.join(argv)} ended with status {done.returncode}: {words}")
    return done.stdout


def slurm_version() -> tuple[int, int]:
    """Slurm's release, e.g. (22, 5)."""
    text = call(["slurmd", "-V"])
    found = re.search(r"(\d+)\.(\d+)", text)
    if not found:
        raise ClusterError(f"slurmd -V printed {text.strip()!r}, which holds no version")
    return int(found[1]), int(found[2])


def clean_environment() -> dict[str, str]:
    """The environment without anything that belongs to another Slurm cluster or job."""
    foreign = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "PMI")
    return {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
