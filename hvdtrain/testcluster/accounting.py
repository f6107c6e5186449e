"""Accounting: a MariaDB of the cluster's own and slurmdbd, so that sacct works."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from hvdtrain.testcluster import config, process, tools
from hvdtrain.testcluster.errors import ClusterError
from hvdtrain.testcluster.plan import Plan

# The account that jobs may be charged to.
ACCOUNT = "test"

# Durability costs seconds at start and protects nothing here: the data is deleted with the cluster.
_DATABASE_OPTIONS = (
    "--skip-networking=0",
    "--bind-address=127.0.0.1",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-lock-wait-timeout=900",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--performance-schema=0",
)


def prepare(plan: Plan) -> subprocess.Popen[bytes]:
    """Begin to make an empty database; a few seconds of work that can go on beside the rest."""
    password = secrets.token_hex(16)
    directory = plan.directory
    secret = directory / "slurmdbd.conf"
    secret.touch(0o600)
    secret.write_text(config.slurmdbd_conf(plan, password))
    users = directory / "database-users.sql"
    users.touch(0o600)
    users.write_text(
        f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';\nGRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';\n"
    )
    argv = [tools.path("mariadb-install-db"), "--no-defaults", f"--datadir={directory}/database", "--user=root"]
    argv += ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-flush-method=nosync"]
    env = {**os.environ, process.MARKER: str(directory)}
    with open(directory / "mariadb-install-db.log", "wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env)


def database_command(plan: Plan) -> list[str]:
    """The database server's command line."""
    directory = plan.directory
    return [
        tools.path("mariadbd"),
        "--no-defaults",
        f"--datadir={directory}/database",
        f"--socket={directory}/database.sock",
        f"--pid-file={directory}/mariadbd.pid",
        f"--port={plan.database_port}",
        f"--init-file={directory}/database-users.sql",
        "--user=root",
        *_DATABASE_OPTIONS,
    ]


def finish_preparing(work: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait for `prepare`'s work."""
    try:
        status = work.wait(timeout=60)
    except subprocess.TimeoutExpired as error:
        work.kill()
        work.wait()
        raise ClusterError("mariadb-install-db did not end within 60 s") from error
    if status != 0:
        text = (directory / "mariadb-install-db.log").read_text(errors="replace")
        raise ClusterError(f"mariadb-install-db ended with status {status}:\n{text[-1500:]}")


def wait_for_port(address: str, port: int, healthy: Callable[[], None], seconds: float = 30) -> None:
    """Return when something accepts connections; `healthy` raises when waiting has become pointless."""
    deadline = time.monotonic() + seconds
    while True:
        healthy()
        try:
            with socket.create_connection((address, port), timeout=1):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"nothing answers at {address}:{port} after {seconds:.0f} s: {error}") from error
        time.sleep(0.05)


def register(plan: Plan) -> None:
    """Make the cluster, the account `test` and its users known, as a site's administrator does."""
    env = {**tools.clean_environment(), **config.client_environment(plan)}
    users = {"root", os.environ.get("SUDO_USER", "root")}
    for words in (
        ["cluster", plan.name],
        ["account", ACCOUNT],
        ["user", ",".join(sorted(users)), f"account={ACCOUNT}"],
    ):
        tools.call(["sacctmgr", "--immediate", "add", *words], env=env)
