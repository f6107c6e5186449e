"""No process outlives the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """For `Popen(preexec_fn=...)`: the kernel sends the child signal `number` when this process ends, even of SIGKILL.

    Linux only (prctl(2), PR_SET_PDEATHSIG); the setting survives exec.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def set_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died between fork and prctl
            os.kill(os.getpid(), number)

    return set_signal
