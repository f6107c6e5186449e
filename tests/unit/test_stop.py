"""Requests to stop, and processes that a rank forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import multiprocessing, os, signal, time
from hvdtrain import stop
stop.install()
def double(number):
    return 2 * number
def report(queue):
    queue.put([signal.getsignal(number).name for number in stop.SIGNALS])
context = multiprocessing.get_context("fork")
"""
POOL = """
with stop.watching(), context.Pool(2) as pool:
    print(pool.map(double, [1, 2, 3]))
"""
DAEMON = """
stop.watch_always()
context.Process(target=time.sleep, args=(600,), daemon=True).start()
print("ends")
"""
HANDLERS = """
with stop.watching():
    queue = context.Queue()
    child = context.Process(target=report, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
    os.kill(os.getpid(), signal.SIGTERM)
    print(signal.Signals(stop.requested()).name)
"""


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (POOL, "[2, 4, 6]"),
        (DAEMON, "ends"),
        (HANDLERS, "['SIG_DFL', 'SIG_IGN', 'SIG_IGN']\nSIGTERM"),
    ],
)
def test_forked_helpers_end_when_they_are_told_to(rest: str, said: str) -> None:
    """multiprocessing sends them SIGTERM and waits: with a rank's handler they would only note it, for ever."""
    command = [sys.executable, "-c", BEGIN + rest]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, said, "")
