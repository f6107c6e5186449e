"""What site profile and user allow at most, checked before anything is written. `limits.gpus` is checked where ranks are placed."""

from __future__ import annotations

from collections.abc import Sequence

from hvdtrain.errors import UserError
from hvdtrain.site.profile import Limits
from hvdtrain.site.times import minutes
from hvdtrain.submit import queue


def check_time(limits: Limits, asked: str | None, origin: str) -> None:
    """Whether a cell may have that long.

    Args:
        asked: a time limit as SLURM writes it; None leaves it to the partition, which has limits of its own.
        origin: where `asked` stands, for the message.

    Raises:
        UserError: it may not, or it is no time; says how long it may.
    """
    if asked is None:
        return
    try:
        wanted = minutes(asked)
    except ValueError as error:
        raise UserError(f"{origin} {error}") from error
    if limits.time is not None and wanted > minutes(limits.time):
        raise UserError(
            f"{origin} asks for {asked}, and one cell may have {limits.time} (limits.time of the site profile); "
            f"nearest: --time {limits.time}"
        )


def check_hours(most: float | None, gpus: Sequence[int], time: str | None, fixed: bool = False) -> None:
    """Whether cells with so many GPUs each fit into `most` GPU-hours, if each of them takes all of its time limit once.

    What the cluster ends early and starts again takes its limit anew each time. `fixed`: --time does not change the limit.

    Raises:
        UserError: they do not, or have no limit; says what fits.
    """
    if most is None:
        return
    if time is None:
        raise UserError("--max-gpu-hours needs to know how long a cell may take: give --time too")
    try:
        hours = sum(gpus) * minutes(time) / 60
    except ValueError as error:
        raise UserError(f"--max-gpu-hours needs a time limit of cells: {error}") from error
    if hours <= most:
        return
    fits = 0 if fixed else int(most / sum(gpus) * 60)
    plural = "s" if len(gpus) > 1 else ""
    raise UserError(
        f"--max-gpu-hours {most:g}: {len(gpus)} cell{plural} of at most {time} in each start could use {hours:.4g} GPU-hours; "
        + (f"it fits with --time {fits} (minutes), or with fewer cells" if fits else "it fits with fewer GPUs or cells")
    )


def check_jobs(limits: Limits, new: int, what: str) -> None:
    """Whether so many more jobs fit into the user's part of the queue: one call of squeue, and none without a limit.

    Raises:
        UserError: they do not; says how many do.
    """
    most = limits.jobs
    if most is None:
        return
    queued = sum(1 for job in queue.live_and_recent().values() if job.live)
    if queued + new > most:
        raise UserError(
            f"{what} would make {queued + new} jobs of yours in the queue, and {most} are allowed "
            f"(limits.jobs of the site profile); at most {max(0, most - queued)} can be submitted now"
        )
