"""Figures drawn by several processes are those that one draws."""

from __future__ import annotations

import os
import time

import pytest

from analysis.plots.at_once import at_once


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_in_their_order(processes: int) -> None:
    made = at_once([lambda index=index: b"%d" % index for index in range(7)], processes)  # type: ignore[misc]
    assert made == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]


def test_by_several_processes_at_the_same_time() -> None:
    made = at_once([lambda: (time.sleep(0.05), b"%d" % os.getpid())[1]] * 8, 2)
    assert len(set(made)) == 2
    assert made[::2] == [b"%d" % os.getpid()] * 4


def test_what_an_ended_process_leaves_is_drawn_here() -> None:
    own = os.getpid()

    def draw(index: int) -> bytes:
        if index == 3 and os.getpid() != own:
            os._exit(9)
        return b"%d" % index

    assert at_once([lambda index=index: draw(index) for index in range(6)], 2) == [b"0", b"1", b"2", b"3", b"4", b"5"]  # type: ignore[misc]


def test_what_a_figure_raises_is_raised() -> None:
    def broken() -> bytes:
        raise ValueError("no such font")

    with pytest.raises(ValueError, match="no such font"):
        at_once([lambda: b"", lambda: b"", lambda: b"", broken], 2)
