"""What long work on data tells the watchdog."""

from __future__ import annotations

from hvdtrain import launch


def alive(activity: str = "packing images") -> None:
    """The world is at work, though no step of training has been made. Cheap enough for every file."""
    if launch.active is not None:
        launch.active.progress(activity)
