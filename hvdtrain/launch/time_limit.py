"""When the job around this process ends, by a clock of its own; the limit may be changed while the job runs."""

from __future__ import annotations

import time

from hvdtrain.launch.allocation import Allocation


class TimeLimit:
    """The time limit of one start of a job.

    Args:
        job: as SLURM described it at the start.
        left: seconds to its end then, None without one.
    """

    def __init__(self, job: Allocation, left: float | None) -> None:
        self._job = job
        self._end = job.end
        # By a clock that nobody sets while the job runs.
        self._ends = None if left is None else time.monotonic() + left

    def left(self) -> float | None:
        """Seconds until the time limit; None without one."""
        return None if self._ends is None else self._ends - time.monotonic()

    def follow(self, now: Allocation) -> None:
        """Take over what SLURM says by now: somebody may have given the job more time."""
        if not self._runs(now) or self._ends is None or self._end is None:
            return
        if now.end is None:  # it has no limit any more
            self._ends = None
        else:
            # Two times of the controller's: this node's clock may have been set since.
            self._ends += now.end - self._end
        self._end = now.end

    def left_at_the_end(self, now: Allocation) -> float | None:
        """Seconds that were left when the ranks ended, by what they were told, and by SLURM where that is less.

        More time than was known when they were told came too late for them: they stopped for the limit before.
        """
        left = self.left()
        if left is None or now.end is None or self._end is None or not self._runs(now):
            return left
        return left + min(0.0, now.end - self._end)

    def _runs(self, now: Allocation) -> bool:
        # Of a job that it is ending SLURM says when that began, and of another start nothing about this one.
        return now.state == "RUNNING" and now.restarts == self._job.restarts
