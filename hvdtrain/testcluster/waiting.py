"""Ranks of MPI that wait must sleep here: the nodes share the few cores of one machine.

Open MPI has no way to wait but to ask again and again; with `mpi_yield_when_idle` it calls `sched_yield` in between. On
Linux 6.18 two such threads kept both cores of a machine for minutes while forty others were ready to run: slurmd and munged
got no time, and 8 ranks never began. A library of the cluster's own makes that call a short sleep, in tasks of job steps only.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from hvdtrain.testcluster import tools

LIBRARY = "sleep-when-idle.so"
PROLOG = "task-prolog.sh"

# 0.5 ms: eight ranks on two cores leave them to those who compute, and a message waits for no longer than on a slow network.
_SOURCE = """\
#include <time.h>
int sched_yield(void)
{
    const struct timespec pause = {0, 500000};
    nanosleep(&pause, 0);
    return 0;
}
"""


def make(directory: Path) -> str:
    """Write the library and the task prolog that loads it; what is missing without it, empty when nothing is.

    The prolog is written in any case, since slurm.conf names it.
    """
    lines = "#!/bin/sh\n"
    problem = _compile(directory)
    if not problem:
        # What a task prolog prints as `export NAME=value` becomes part of the task's environment.
        lines += f'echo "export LD_PRELOAD={directory}/{LIBRARY}${{LD_PRELOAD:+:$LD_PRELOAD}}"\n'
    prolog = directory / PROLOG
    prolog.write_text(lines)
    prolog.chmod(0o755)
    return problem


def _compile(directory: Path) -> str:
    compiler = tools.find("cc") or tools.find("gcc")
    if compiler is None:
        return "there is no C compiler (apt-get install gcc)"
    command = [compiler, "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(directory / LIBRARY)]
    try:
        done = subprocess.run(command, input=_SOURCE, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler}: {error}"
    return "" if done.returncode == 0 else f"{compiler} failed: {done.stderr.strip()[-500:]}"
