"""A submit that is killed while it writes cells."""

from __future__ import annotations

#: Dies by SIGKILL when it has written the cell n1-s1.
DIES_WRITING = """
import os, signal, sys
from hvdtrain.submit import cli, study

write = study.write_cell


def write_and_die(folder, *more):
    write(folder, *more)
    if folder.name == "n1-s1":
        os.kill(os.getpid(), signal.SIGKILL)


study.write_cell = write_and_die
sys.exit(cli.main())
"""
