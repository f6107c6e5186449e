"""What the site profile allows at most, checked before anything is written. `limits.gpus` is checked where ranks are placed."""

from __future__ import annotations

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
