"""Decodes a share of a tree into the packed file, in processes that import nothing of the training.

`python -m hvdtrain.data.packing` is such a process: its task comes as JSON on stdin, and on stdout go the numbers of files done and
at last the failures. (multiprocessing would import the job, and TensorFlow with it, in each of them; a fork would not survive MPI.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

#: Files between two reports.
_REPORT = 32


def decode_files(
    files: Sequence[tuple[int, str]], size: int, target: Path, processes: int, progress: Callable[[int], None]
) -> list[tuple[int, str]]:
    """Decode each file (row, path) into its row of `target`; returns the rows that failed, with the reason.

    Args:
        size: edge in pixels.
        target: of at least (largest row + 1) * size * size * 3 bytes.
        processes: how many to start.
        progress: called about once a second with the number of files done.
    """
    done = [0] * processes

    def run(worker: int) -> list[tuple[int, str]]:
        task = json.dumps({"files": files[worker::processes], "size": size, "target": str(target)})
        command = [sys.executable, "-m", "hvdtrain.data.packing"]
        # Pillow decodes in one thread; numpy's would only get in each other's way.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(task)
            process.stdin.close()
            last = ""
            for line in process.stdout:
                if line.strip().isdigit():
                    done[worker] = int(line)
                last = line
        if process.returncode:
            raise RuntimeError(f"a process that decodes images ended with status {process.returncode}")
        return [(int(row), str(reason)) for row, reason in json.loads(last)]

    with ThreadPoolExecutor(processes) as threads:
        running = [threads.submit(run, worker) for worker in range(processes)]
        while wait(running, timeout=1.0).not_done:
            progress(sum(done))
        return [failure for each in running for failure in each.result()]


def main() -> None:
    """One process' share."""
    from hvdtrain.data.decode import Unreadable, decode

    task = json.load(sys.stdin)
    row_bytes = task["size"] ** 2 * 3
    failed = []
    with open(task["target"], "r+b") as file:
        for count, (row, path) in enumerate(task["files"], 1):
            try:
                pixels = decode(Path(path), task["size"])
                file.seek(row * row_bytes)
                file.write(pixels.tobytes())
            except Unreadable as error:
                failed.append((row, str(error)))
            if count % _REPORT == 0:
                print(count, flush=True)
    print(json.dumps(failed), flush=True)


class Progress:
    """A line on stderr every few seconds, of a rate that the user can wait by."""

    def __init__(self, total: int, shown: bool) -> None:
        self._total, self._shown = total, shown
        self._began = self._last = time.monotonic()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if self._shown and now - self._last >= 2:
            self._last = now
            rate = done / (now - self._began)
            print(
                f"hvdtrain: packing images: {done / self._total:.0%}, {rate:.0f} images/s", file=sys.stderr, flush=True
            )


if __name__ == "__main__":
    main()
